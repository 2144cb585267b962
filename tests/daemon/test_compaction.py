"""What is forgotten, and what never is: a directory stays small, and whatever recovery needs stays in it."""

import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from uuid import uuid4

import pytest

from balancer.clock import SystemClock
from balancer.daemon import housekeeping
from balancer.daemon.housekeeping import Housekeeping
from balancer.directory.contract import Directory
from balancer.directory.history import records_of
from balancer.directory.invariants import faults_of
from balancer.directory.model import Change, Command, CommandState, MigrationKind, Pause, Pin, Plan, Put, Record
from balancer.directory.notes import SAMPLES, SLOTS
from balancer.directory.open import open_directory
from balancer.directory.snapshot import Snapshot
from balancer.directory.store import commit
from balancer.features.ddl.apply import TOPIC as DDL
from balancer.features.ddl.apply import SchemaChange, changes_of
from balancer.migration.pool import standing
from balancer.migration.progress import TOPIC as PROGRESS
from balancer.settings import Settings, load_settings
from tests.support.commands import started
from tests.support.directories import fill, migration, moved, transaction
from tests.support.forgetting import KEPT

EXTRA = 23
"""Records of each kind beyond those that are kept: several commits of `tests.support.forgetting`."""


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.quick), "zookeeper"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/directory.db"
    return f"zk://{request.getfixturevalue('zookeeper').address}/compaction-{uuid4().hex}"


@pytest.fixture
def settings(tmp_path: Path, url: str) -> Settings:
    (tmp_path / "bundles").mkdir()
    nodes = "\n".join(f'[nodes.{name}]\ndsn = "postgresql://u@{name}/x"' for name in ("pg-a", "pg-b", "pg-c"))
    (tmp_path / "bundles" / "shop.toml").write_text(nodes)
    (tmp_path / "balancer.toml").write_text(f'directory = "{url}"\n')
    return load_settings(tmp_path / "balancer.toml")


@pytest.fixture
def directory(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Directory]:
    for name in ("KEPT_MIGRATIONS", "KEPT_COMMANDS"):
        monkeypatch.setattr(housekeeping, name, KEPT)
    with open_directory(url, lease=2.0) as opened:
        fill(opened)
        grow_old(opened)
        unfinished(opened)
        yield opened


def grow_old(directory: Directory) -> None:
    """Records of a long life, each older than what is kept."""
    tablet = directory.snapshot().tablet(1)
    ended = [
        replace(migration(tablet, "pg-b", "done"), id=f"old{at:04d}", finished=True, updated=float(at))
        for at in range(KEPT + EXTRA)
    ]
    answered = [Command(f"old{at:04d}", "plan", {}, "ann", float(at), CommandState.DONE) for at in range(KEPT + EXTRA)]
    changes: list[Change] = [*map(Put, ended), *map(Put, answered), Put(Pin(1, 5.0))]
    directory.commit(transaction(changes, directory.snapshot().version))


def unfinished(directory: Directory) -> None:
    """What a successor must find: each older than everything that is forgotten."""
    view = directory.snapshot()
    running = replace(migration(view.tablet(2), "pg-c", "sealing"), id="running", updated=0.0)
    heat = replace(
        migration(view.tablet(3), view.tablet(3).node, "done"),
        id="heat",
        operation=MigrationKind.SPLIT,
        targets=(view.tablet(4),),
        finished=True,
        detail={"code": "heat-split"},
        updated=0.0,
    )
    commands = [
        Command("waiting", "move", {"tablet": 1}, "ann", 0.0),
        Command("accepted", "move", {"tablet": 1}, "ann", 0.0, CommandState.ACCEPTED),
        Command("steers", "pause", {"migration": "running"}, "ann", 0.0, CommandState.DONE),
    ]
    records: list[Record] = [running, heat, *commands]
    importing = Pause("shop", None, "ann", '{"state": "copying"}', "import imported")
    held = Pause("shop", None, "ann", "schema change d1")
    plan = Plan("p1", "shop", 0.0, "approved", {"actions": []})
    directory.commit(transaction([*map(Put, [*records, importing, held, plan, Pin(2, None)])], view.version))
    directory.publish(DDL, "d1", asdict(SchemaChange("d1", "shop", "ALTER TABLE …", "ann", 0.0)))
    directory.publish(PROGRESS, "running", {"bytes": 5})


def what_recovery_reads(directory: Directory) -> object:
    view = directory.snapshot()
    return (
        view.migrations["running"],
        view.migration_of(2),
        view.migrations["heat"],
        [view.commands[name] for name in ("waiting", "accepted", "steers")],
        standing(view),
        dict(view.pauses),
        dict(view.plans),
        view.pins[2],
        changes_of(directory),
        directory.published(PROGRESS),
        {table: list(view.tablets(table)) for table in view.tables},
        dict(view.tables),
        dict(view.counters),
        dict(view.nodes),
    )


def lawful(view: Snapshot) -> bool:
    return not list(faults_of(records_of(view)))


def keeper_of(directory: Directory, settings: Settings) -> Housekeeping:
    leadership = directory.campaign("second", timeout=30)
    assert leadership is not None
    return Housekeeping(directory, leadership, lambda: settings, SystemClock())


@pytest.mark.parametrize("number", [1, 9])
def test_killed_in_the_middle_nothing_is_lost_and_the_successor_goes_on(
    number: int, url: str, directory: Directory, settings: Settings, tmp_path: Path
) -> None:
    before = what_recovery_reads(directory)
    command = ("-m", "tests.support.forgetting", url, tmp_path, str(number))
    with started(*command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stands\n"
        process.kill()
    half = directory.snapshot()
    assert what_recovery_reads(directory) == before
    assert lawful(half)
    assert len(half.migrations) + len(half.commands) > 2 * KEPT + 5
    assert keeper_of(directory, settings).forget() == 2 * EXTRA + 1 - 5 * (number - 1)
    with open_directory(url) as fresh:
        view = fresh.snapshot()
        assert what_recovery_reads(fresh) == before
        assert lawful(view)
        assert min(key for key in view.migrations if key.startswith("old")) == f"old{EXTRA:04d}"
        assert sum(key.startswith("old") for key in view.commands) == KEPT


def test_a_log_that_has_been_cut_takes_no_unfinished_work_with_it(
    url: str, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is history; what is to be done is in records. So is what an old transaction could do twice."""
    monkeypatch.setattr(commit, "LOG_KEPT", 5)
    before = what_recovery_reads(directory)
    for _ in range(12):
        view = directory.snapshot()
        directory.commit(transaction([Put(moved(view.tablet(8), "pg-a"))], view.version))
    assert len(directory.history(0, 100)) <= 6
    with open_directory(url) as fresh:
        found = what_recovery_reads(fresh)
        assert fresh.snapshot().tablet(8).epoch == 13
    tablets = before[10], found[10]  # type: ignore[index]
    assert before[:10] == found[:10]  # type: ignore[index]
    assert tablets[0] != tablets[1]


def test_reports_of_keys_by_programs_that_are_gone_are_forgotten(directory: Directory, settings: Settings) -> None:
    """A program that is started each day under another name leaves a note each day."""
    now = SystemClock().now().timestamp()
    for number in range(20):
        directory.publish(SAMPLES, f"web-{number}.1", {"at": now - 86400, "seconds": 10.0, "tables": {}})
    directory.publish(SAMPLES, "web-now.1", {"at": now, "seconds": 10.0, "tables": {}})
    directory.publish(SAMPLES, "nonsense.1", {"at": "yesterday"})
    directory.publish(SAMPLES, SLOTS[0], {"at": now - 86400, "seconds": 10.0, "tables": {}})
    keeper_of(directory, settings).forget_notes()
    assert set(directory.published(SAMPLES)) == {"web-now.1", SLOTS[0]}
    assert changes_of(directory)
