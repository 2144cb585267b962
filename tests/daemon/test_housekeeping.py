"""What the leader does now and then: nothing grows for ever."""

from dataclasses import replace
from pathlib import Path

import pytest

from balancer.clock import SystemClock
from balancer.daemon import housekeeping
from balancer.daemon.housekeeping import Housekeeping, forgettable
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Command, CommandState, MigrationKind, Pause, Pin, Put, Record, RecordKind, Remove
from balancer.migration.progress import TOPIC
from balancer.settings import load_settings
from tests.support.directories import migration, transaction

pytestmark = pytest.mark.quick


@pytest.fixture
def keeper(tmp_path: Path, directory: Directory, leadership: Leadership) -> Housekeeping:
    (tmp_path / "bundles").mkdir()
    nodes = "\n".join(f'[nodes.{name}]\ndsn = "postgresql://u@{name}/x"' for name in ("pg-a", "pg-b", "pg-c"))
    (tmp_path / "bundles" / "shop.toml").write_text(nodes)
    (tmp_path / "balancer.toml").write_text(f'directory = "sqlite://{tmp_path}/directory.db"\n')
    settings = load_settings(tmp_path / "balancer.toml")
    return Housekeeping(directory, leadership, lambda: settings, SystemClock())


def test_old_records_are_forgotten_in_small_commits(
    directory: Directory, keeper: Housekeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "KEPT_MIGRATIONS", 3)
    monkeypatch.setattr(housekeeping, "KEPT_COMMANDS", 2)
    monkeypatch.setattr(housekeeping, "AT_ONCE", 4)
    tablet = directory.snapshot().tablet(1)
    old = [replace(migration(tablet, "pg-b", "done"), finished=True, updated=float(at)) for at in range(8)]
    running = migration(tablet, "pg-b", "copying")
    done = [Command(f"c{at}", "plan", {}, "ann", float(at), CommandState.DONE) for at in range(5)]
    waiting = Command("c9", "plan", {}, "ann", 0.0)
    records: list[Record] = [*old, running, *done, waiting, Pin(1, 5.0), Pin(2, None), Pause("shop", 6.0)]
    directory.commit(transaction([*map(Put, records)], directory.snapshot().version))
    version = directory.snapshot().version
    assert keeper.forget() == 10
    snapshot = directory.snapshot()
    assert set(snapshot.migrations) == {running.id, *(record.id for record in old[-3:])}
    assert set(snapshot.commands) == {"c3", "c4", "c9"}
    assert (list(snapshot.pins), list(snapshot.pauses)) == ([2], []), "those that are over go"
    assert snapshot.version == version + 3
    assert keeper.forget() == 0


def test_what_made_tablets_for_heat_is_kept_as_long_as_they_live(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "KEPT_MIGRATIONS", 0)
    snapshot = directory.snapshot()
    split = replace(
        migration(snapshot.tablet(1), "pg-b", "done"),
        operation=MigrationKind.SPLIT,
        finished=True,
        detail={"code": "heat-split"},
    )
    gone = replace(split, id="gone", targets=(replace(split.targets[0], id=777),))
    directory.commit(transaction([Put(split), Put(gone)], snapshot.version))
    later = gone.updated + housekeeping.KEPT_SECONDS + 1
    assert list(forgettable(directory.snapshot(), later)) == [Remove(RecordKind.MIGRATION, "gone")]


def test_what_ended_within_the_hour_is_kept_as_tablets_rest_after_it(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "KEPT_MIGRATIONS", 1)
    monkeypatch.setattr(housekeeping, "MOST_MIGRATIONS", 4)
    snapshot = directory.snapshot()
    one = migration(snapshot.tablet(1), "pg-b", "done")
    ended = [replace(one, id=f"m{at}", finished=True, updated=10_000.0 + at) for at in range(6)]
    directory.commit(transaction([*map(Put, ended)], snapshot.version))
    now = 10_003.0 + housekeeping.KEPT_SECONDS
    dropped = [change.key for change in forgettable(directory.snapshot(), now) if isinstance(change, Remove)]
    assert dropped == ["m0", "m1", "m2"], "m3 to m5 ended within the hour"
    soon = [change.key for change in forgettable(directory.snapshot(), 10_006.0) if isinstance(change, Remove)]
    assert soon == ["m0", "m1"], "no more than four, whatever their age"


def test_notes_of_ended_migrations_go(directory: Directory, keeper: Housekeeping) -> None:
    running = migration(directory.snapshot().tablet(1), "pg-b", "copying")
    directory.commit(transaction([Put(running)], directory.snapshot().version))
    for name in (running.id, "ended"):
        directory.publish(TOPIC, name, {})
    keeper.forget_notes()
    assert set(directory.published(TOPIC)) == {running.id}
