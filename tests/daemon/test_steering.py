"""What an operator has said about a migration outlives the leader that was told."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from balancer.daemon.housekeeping import KEPT_COMMANDS, forgettable
from balancer.directory.model import Command, CommandState, Put, Remove, Transaction
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.migration.pool import standing
from tests.support.running import ROWS, Running, product, until


@pytest.fixture
def running(tmp_path: Path, postgres15: PostgresServer, postgres18: PostgresServer) -> Iterator[Running]:
    with product(tmp_path, {"a": postgres15, "b": postgres18}) as made:
        yield made


TIGHT = 'write_pause_budget = "2ms"\nlock_timeout = "1ms"\n'
AMPLE = 'write_pause_budget = "5s"\nfence_deadline = "10s"\n'  # on a machine that others keep busy, too


@contextmanager
def held_up(running: Running) -> Iterator[str]:
    """A daemon and a migration that cannot get on: no switch fits into what its writers may wait."""
    file = running.folder / "bundles" / "shop.toml"
    file.write_text(file.read_text().replace("[migration]\n", f"[migration]\n{TIGHT}"))
    with running.daemon("one"):
        tablet = next(tablet for tablet in running.snapshot().tablets(1) if tablet.node == "a")
        moved = running.balancer("move", str(tablet.id), "b")
        assert moved.code == 0, moved.err
        (migration,) = running.snapshot().migrations
        until(lambda: "a switch would take" in note(running, migration).get("waiting_for", ""), "it is held up")
        yield migration
    file.write_text(file.read_text().replace(TIGHT, AMPLE))


def note(running: Running, migration: str) -> dict[str, str]:
    return running.published("progress").get(migration) or {}


def test_a_pause_survives_the_leader_that_was_asked_for_it(running: Running) -> None:
    with held_up(running) as migration:
        paused = running.balancer("pause", migration, "--migration")
        assert paused.out == f"migration {migration} pauses at its next safe point\n"
        until(lambda: note(running, migration).get("paused"), "it is paused")
    with running.daemon("two"):
        until(lambda: note(running, migration).get("paused"), "it is paused under the successor")
        time.sleep(1.0)
        assert not running.snapshot().migrations[migration].finished
        (shown,) = [line for line in running.balancer("moves").out.splitlines() if migration in line]
        assert "paused" in shown
        assert "an operator to resume it" in shown
        assert running.balancer("resume", migration, "--migration").code == 0
        until(lambda: running.snapshot().migrations[migration].finished, "it goes on")
        assert running.snapshot().migrations[migration].state == "done"
    assert running.rows("orders") == list(range(1, ROWS + 1))


def test_a_cancel_survives_too_and_a_pause_has_no_duration(running: Running) -> None:
    with held_up(running) as migration:
        refused = running.balancer("pause", migration, "--migration", "--for", "1h")
        assert (refused.code, refused.err) == (
            4,
            "a single migration is paused until it is resumed: leave the duration out\n",
        )
        assert running.balancer("pause", migration, "--migration").code == 0
        until(lambda: note(running, migration).get("paused"), "it is paused")
    # As if the leader had died right after its answer.
    with open_directory(f"sqlite://{running.folder}/directory.db") as directory:
        cancel = Command(
            "0", "cancel", {"migration": migration}, "test", time.time(), CommandState.DONE, "is being cancelled"
        )
        directory.commit(Transaction((Put(cancel),), directory.snapshot().version, "a test's", "test"))
    with running.daemon("two"):
        until(lambda: running.snapshot().migrations[migration].finished, "it ends")
    assert running.snapshot().migrations[migration].state == "cancelled"
    assert running.rows("orders") == list(range(1, ROWS + 1))


def test_housekeeping_keeps_what_a_successor_must_know(running: Running) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    with held_up(running) as migration:
        assert running.balancer("pause", migration, "--migration").code == 0
        with open_directory(f"sqlite://{running.folder}/directory.db") as directory:
            many = tuple(
                Put(Command(f"c{number}", "plan", {}, "test", time.time() + number, CommandState.DONE))
                for number in range(KEPT_COMMANDS + 20)
            )
            directory.commit(Transaction(many, directory.snapshot().version, "many commands", "test"))
            snapshot = directory.snapshot()
        dropped = {change.key for change in forgettable(snapshot, now) if isinstance(change, Remove)}
        kept = {command.verb for command in snapshot.commands.values() if command.id not in dropped}
        assert "pause" in kept
        assert "move" not in kept
        assert standing(snapshot) == {migration: "pause"}
        assert running.balancer("cancel", migration).code == 0
        until(lambda: running.snapshot().migrations[migration].finished, "a paused one can be cancelled")
