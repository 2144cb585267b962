"""A whole instance in this process, on real nodes: modes, schedules, pauses, dead nodes, and a tick that fails."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from balancer.clock import SystemClock
from balancer.daemon.daemon import HOUSEKEEPING, Daemon
from balancer.directory.model import Command, CommandState, Put
from balancer.directory.open import open_directory
from balancer.errors import Unavailable
from balancer.instruments import declared
from balancer.planner.bundle_state import BundleState, StateWord
from balancer.settings import load_settings
from tests.support.directories import transaction
from tests.support.fleet import Fleet, owners, until
from tests.support.waiting import surely


class SetClock(SystemClock):
    """The machine's clock, with a wall time that the test sets; its seconds are real."""

    def __init__(self, start: datetime | None = None) -> None:
        self.offset = timedelta() if start is None else start - datetime.now(UTC)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.offset


class Instance:
    """A daemon, and the loop that steps it."""

    def __init__(self, config: Path, clock: SystemClock | None = None) -> None:
        self.daemon = Daemon(load_settings(config), clock or SystemClock())
        self._ended = threading.Event()
        self._loop = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self.daemon.start()
        self._loop.start()

    def stop(self) -> None:
        self._ended.set()
        if self._loop.is_alive():
            self._loop.join()
        self.daemon.stop()

    def _run(self) -> None:
        while not self._ended.wait(0.1):
            self.daemon.step()

    def state(self, bundle: str = "shop") -> BundleState | None:
        return self.daemon.states().get(bundle)

    def word(self, bundle: str = "shop") -> StateWord | None:
        found = self.state(bundle)
        return found.word if found else None

    def sentence(self, bundle: str = "shop") -> str:
        found = self.state(bundle)
        return found.sentence if found else ""

    def metric(self, name: str, **labels: str) -> float | None:
        return self.daemon.instruments.registry.get_sample_value(name, labels)

    def leads(self) -> bool:
        return self.daemon.leading is not None

    def owners(self) -> dict[str, int]:
        return owners(self.daemon.follower().snapshot)

    def ticks(self, count: int = 2, bundle: str = "shop") -> None:
        """Waits for some ticks more."""
        for _ in range(count):
            found = self.state(bundle)
            until(lambda found=found: self.state(bundle) is not found, 30, "a tick")  # type: ignore[misc]

    def give(self, verb: str, **arguments: object) -> str:
        """A command, as the command line gives it; returns the answer."""
        directory = self.daemon.directory()
        now = self.daemon.clock.now().timestamp()
        command = Command(f"c{now}", verb, arguments, "ann@host", now)
        directory.commit(transaction([Put(command)], directory.snapshot().version))

        def answered() -> bool:
            return directory.snapshot().commands[command.id].state is not CommandState.WAITING

        until(answered, 20, f"an answer to {verb}")
        return directory.snapshot().commands[command.id].result


@contextmanager
def instance(fleet: Fleet, clock: SystemClock | None = None, config: Path | None = None) -> Iterator[Instance]:
    made = Instance(config or fleet.config, clock)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_autonomous_balances_by_itself_and_feeds_every_metric(fleet: Fleet) -> None:
    fleet.write("autonomous", checks="enable = true\nshare = 1.0")
    with instance(fleet) as running:
        registry = running.daemon.instruments.registry
        fed: set[str] = set()

        def balanced() -> bool:
            fed.update(sample.name for family in registry.collect() for sample in family.samples)
            return running.word() is StateWord.BALANCED and running.owners() == {"a": 4, "b": 4}

        until(balanced, 90, "the balance")
        assert "nothing to do" in running.sentence()
        running.give("plan", bundle="shop")
        running.daemon.run_soon(HOUSEKEEPING)
        value = registry.get_sample_value
        until(lambda: value("balancer_leftovers", {"bundle": "shop", "node": "a"}) == 0.0, 30, "housekeeping")
        quiet = {
            "balancer_node_capacity",  # the file names no disk sizes
            "balancer_http_requests_total",  # nobody has asked anything over HTTP
            "balancer_http_seconds",
            "balancer_reference_copies_missing",  # the bundle has no reference table
            "balancer_reference_lag_bytes",
        }

        def silent() -> list[str]:
            return sorted({one.name for one in declared() if not fed.intersection(one.series())} - quiet)

        # The checks run by themselves, and a command is counted just after its answer is in the directory.
        surely(lambda: balanced() and not silent(), 30)
        assert not silent()
        assert value("balancer_leader") == 1.0
        assert (value("balancer_poll_seconds_sum", {"bundle": "shop"}) or 0.0) > 0.0
        assert (value("balancer_directory_commit_seconds_count", {"outcome": "committed"}) or 0.0) > 10
        assert sum(actions(registry)) == 4.0
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("migration-", "poll"))]


def actions(registry: CollectorRegistry) -> list[float]:
    """Actions that became migrations, by series."""
    samples = [sample for family in registry.collect() for sample in family.samples]
    return [sample.value for sample in samples if sample.name == "balancer_actions_total"]


def test_observe_proposes_and_starts_nothing(fleet: Fleet) -> None:
    fleet.write("observe")
    with instance(fleet) as running:
        until(lambda: running.word() is StateWord.BLOCKED, 30, "a verdict")
        running.ticks()
        assert "the mode is observe: 4 actions proposed, none will be started" in running.sentence()
        snapshot = running.daemon.follower().snapshot
        assert not snapshot.migrations
        assert [plan.state for plan in snapshot.plans.values()] == ["proposed"]


def test_what_is_new_in_the_files_counts_at_once_however_long_a_tick_is(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.write("observe")
    with instance(fleet, config=fleet.write_daemon(tick="1h")) as running:
        until(running.leads, 30, "an election")
        until(lambda: running.state() is not None, 30, "a tick")
        asked: list[str] = []
        soon = running.daemon.run_soon

        def watched(bundle: str) -> None:
            asked.append(bundle)
            soon(bundle)

        monkeypatch.setattr(running.daemon, "run_soon", watched)
        running.daemon.reload()
        assert asked == [], "nothing is new"
        fleet.write("autonomous")
        running.daemon.reload()
        assert asked == ["shop"]
        until(lambda: running.owners().get("b", 0) > 0, 60, "a move")


def test_a_closed_schedule_waits_and_an_open_one_acts(fleet: Fleet) -> None:
    fleet.write(
        "autonomous", tablet_balancer_config="enable_cell_balancer = true\ntablet_balancer_schedule = 'hours == 3'"
    )
    clock = SetClock(datetime(2026, 3, 1, 2, 0, tzinfo=UTC))
    with instance(fleet, clock) as running:
        until(lambda: running.word() is StateWord.WAITING, 30, "a verdict")
        running.ticks()
        assert "4 actions until the schedule opens, until 2026-03-01 03:00 UTC (hours == 3)" in running.sentence()
        assert running.owners() == {"a": 8, "b": 0}
        clock.offset += timedelta(minutes=60)
        until(lambda: running.owners() == {"a": 4, "b": 4}, 60, "the balance")
        until(lambda: running.word() is StateWord.BALANCED, 30, "a verdict")


def test_a_successor_keeps_to_the_schedule_that_its_predecessor_waited_for(fleet: Fleet) -> None:
    fleet.write(
        "autonomous", tablet_balancer_config="enable_cell_balancer = true\ntablet_balancer_schedule = 'hours == 3'"
    )
    clock = SetClock(datetime(2026, 3, 1, 2, 0, tzinfo=UTC))
    with instance(fleet, clock) as first, instance(fleet, clock, fleet.write_daemon("second")) as second:
        until(lambda: first.daemon.leading is not None or second.daemon.leading is not None, 30, "an election")
        leader, standby = (first, second) if first.daemon.leading is not None else (second, first)
        until(lambda: {leader.word(), standby.word()} == {StateWord.WAITING}, 30, "both verdicts")
        leader.daemon.hand_over()
        until(lambda: standby.daemon.leading is not None, 30, "a handover")
        standby.ticks()
        assert not standby.daemon.follower().snapshot.migrations, "it is closed for the successor, too"
        clock.offset += timedelta(minutes=60)
        until(lambda: standby.owners() == {"a": 4, "b": 4}, 60, "the balance")
        until(lambda: standby.word() is StateWord.BALANCED, 30, "a verdict")


@pytest.mark.parametrize(
    ("formula", "before"),
    [
        ("minutes % 20 == 0", "02:19"),
        ("hours % 2 == 0 && minutes == 30", "02:29"),
        ("(hours * 60 + minutes) % 40 == 10", "02:49"),
        ("hours < 6 && minutes % 20 == 0", "02:19"),
        ("hours in 1, 3, 5", "02:59"),
    ],
)
def test_a_window_that_opened_between_two_daemons_is_not_lost(fleet: Fleet, formula: str, before: str) -> None:
    fleet.write(
        "autonomous",
        tablet_balancer_config=f"enable_cell_balancer = true\ntablet_balancer_schedule = '{formula}'",
        migration='retire_grace = "100ms"\nmoves_per_node = 4\nmoves_total = 4\ncool_down = "0s"',
    )
    hour, minute = map(int, before.split(":"))
    clock = SetClock(datetime(2026, 3, 1, hour, minute, 5, tzinfo=UTC))
    with instance(fleet, clock) as first:
        until(lambda: first.word() is StateWord.WAITING, 30, "a verdict")
        until(lambda: first.daemon.directory().published("status"), 30, "a note of it")
    clock.offset += timedelta(minutes=5)  # nothing ran in the minute in which the schedule was open
    with instance(fleet, clock) as second:
        until(lambda: second.owners() == {"a": 4, "b": 4}, 60, "the balance")
        until(lambda: second.word() is StateWord.BALANCED, 30, "a verdict")


SLOW = 'finish_by = "park"\nthrottle = "20kB"\nretire_grace = "100ms"\nmoves_per_node = 1\nmoves_total = 1'


def test_what_runs_over_the_end_of_its_window_is_parked_and_goes_on_in_the_next(fleet: Fleet) -> None:
    fleet.write(
        "autonomous",
        tablet_balancer_config="enable_cell_balancer = true\ntablet_balancer_schedule = 'hours == 3'",
        migration=SLOW,
    )
    clock = SetClock(datetime(2026, 3, 1, 3, 30, tzinfo=UTC))
    with instance(fleet, clock) as running:
        until(lambda: running.daemon.follower().snapshot.migrations, 30, "a move")
        (begun,) = running.daemon.follower().snapshot.migrations
        clock.offset += timedelta(minutes=40)
        until(lambda: running.word() is StateWord.WAITING, 30, "parking")
        assert running.sentence().startswith("move of tablet")
        assert "held" in running.sentence()
        note = running.daemon.directory().published("progress").get(begun, {})
        until(lambda: parked(running, begun), 20, "a safe point")
        running.ticks(3)
        assert not running.daemon.follower().snapshot.migrations[begun].finished, note
        assert running.owners() == {"a": 8, "b": 0}
        clock.offset += timedelta(hours=23)
        until(lambda: running.daemon.follower().snapshot.migrations[begun].state == "done", 60, "the move's end")


def test_a_round_outside_of_the_schedule_starts_what_is_wanted_and_nothing_more(fleet: Fleet) -> None:
    fleet.write(
        "autonomous",
        tablet_balancer_config="enable_cell_balancer = true\ntablet_balancer_schedule = 'hours == 3'",
        migration=SLOW.replace("20kB", "200kB"),
    )
    clock = SetClock(datetime(2026, 3, 1, 5, 0, tzinfo=UTC))
    with instance(fleet, clock) as running:
        until(lambda: running.word() is StateWord.WAITING, 30, "a verdict")
        answer = running.give("run-now", bundle="shop")
        (begun,) = running.daemon.directory().snapshot().migrations
        assert answer == f"a round of bundle shop: 1 migration started: {begun}"
        directory = running.daemon.directory()
        until(lambda: directory.snapshot().migrations[begun].state == "done", 60, "the move's end")
        running.ticks(3)
        assert list(directory.snapshot().migrations) == [begun], "the schedule is closed"
        assert running.owners() == {"a": 7, "b": 1}
        reasons = [entry.reason for entry in directory.history(limit=1000)]
        assert f"run-now: {answer}" in reasons


def test_a_successor_carries_out_a_round_that_its_predecessor_did_not(fleet: Fleet) -> None:
    fleet.write(
        "autonomous", tablet_balancer_config="enable_cell_balancer = true\ntablet_balancer_schedule = 'hours == 3'"
    )
    clock = SetClock(datetime(2026, 3, 1, 5, 0, tzinfo=UTC))
    with instance(fleet, clock) as first:
        until(lambda: first.word() is StateWord.WAITING, 30, "a verdict")
    command = Command("c1", "run-now", {"bundle": "shop"}, "ann@host", clock.now().timestamp())
    with open_directory(load_settings(fleet.config).daemon.directory) as directory:
        directory.commit(transaction([Put(command)], directory.snapshot().version))
    with instance(fleet, clock) as second:
        until(lambda: second.owners()["b"] > 0, 60, "a move")
        found = second.daemon.directory().snapshot().commands["c1"]
        assert found.state is CommandState.DONE
        assert "migration" in found.result


def parked(running: Instance, migration: str) -> bool:
    note = running.daemon.directory().published("progress").get(migration, {})
    return "window" in str(note.get("waiting_for", ""))


def test_a_pause_keeps_everything_back_until_it_is_ended(fleet: Fleet) -> None:
    fleet.write("observe")
    with instance(fleet) as running:
        until(running.state, 30, "a tick")
        assert running.give("pause", bundle="shop").startswith("bundle shop starts nothing new")
        fleet.write("autonomous")
        until(lambda: "paused by an operator; 4 actions held back" in running.sentence(), 30, "a verdict")
        assert not running.daemon.follower().snapshot.migrations
        running.give("resume", bundle="shop")
        until(lambda: running.owners() == {"a": 4, "b": 4}, 60, "the balance")


@pytest.fixture
def second_bundle(fleet: Fleet) -> Callable[[str], None]:
    """Writes a bundle of its own with one node, which nothing answers for."""

    def write(node: str) -> None:
        text = f'mode = "autonomous"\n[nodes.{node}]\ndsn = "postgresql://u@127.0.0.1:1/x"\n'
        (fleet.folder / "bundles" / "other.toml").write_text(text)

    return write


def test_a_dead_node_blocks_its_bundle_and_no_other(fleet: Fleet, second_bundle: Callable[[str], None]) -> None:
    second_bundle("dead")
    with instance(fleet) as running:
        until(lambda: running.owners() == {"a": 4, "b": 4}, 60, "the balance of the living bundle")
        until(lambda: running.word("other") is StateWord.BLOCKED, 30, "a verdict")
        assert running.sentence("other").startswith("dead is down since ")
        until(lambda: running.word() is StateWord.BALANCED, 30, "a verdict")


def test_a_tick_that_fails_is_a_state_and_the_next_one_is_as_good_as_any(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.write("observe")
    with instance(fleet) as running:
        until(running.state, 30, "a tick")
        broken = running.daemon.follower()

        def fail(*_: object) -> None:
            raise Unavailable("the poll broke down")

        with monkeypatch.context() as patch:
            patch.setattr("balancer.polling.poller.Poller.poll", fail)
            until(lambda: running.sentence() == "the tick failed: the poll broke down", 30, "a failed tick")
            patch.setattr("balancer.polling.poller.Poller.poll", lambda *_: 1 / 0)
            until(lambda: "a defect: ZeroDivisionError" in running.sentence(), 30, "a defect")
        assert broken is running.daemon.follower()
        until(lambda: "the mode is observe" in running.sentence(), 30, "a good tick")
        errors = running.daemon.instruments.registry.get_sample_value
        assert (errors("balancer_tick_errors_total", {"bundle": "shop"}) or 0) >= 2


def test_a_bundle_that_leaves_the_configuration_is_forgotten(
    fleet: Fleet, second_bundle: Callable[[str], None]
) -> None:
    fleet.write("observe")
    second_bundle("dead")
    with instance(fleet) as running:
        until(lambda: running.word("other"), 30, "a tick")
        (fleet.folder / "bundles" / "other.toml").unlink()
        value = running.daemon.instruments.registry.get_sample_value
        until(lambda: value("balancer_configuration_reload_failed") == 1.0, 20, "the alert")
        assert running.word("other") is not None
        running.daemon.reload(confirmed=True)
        until(lambda: running.word("other") is None, 30, "a reload")
        running.ticks()
        assert value("balancer_paused", {"bundle": "other"}) is None
        assert value("balancer_paused", {"bundle": "shop"}) == 0.0


def test_the_configuration_file_may_be_unreadable_for_a_while(fleet: Fleet, tmp_path: Path) -> None:
    fleet.write("observe")
    with instance(fleet) as running:
        until(running.state, 30, "a tick")
        text = fleet.config.read_text()
        fleet.config.unlink()
        value = running.daemon.instruments.registry.get_sample_value
        until(lambda: value("balancer_configuration_reload_failed") == 1.0, 20, "the alert")
        running.ticks()
        fleet.config.write_text(text)
        until(lambda: value("balancer_configuration_reload_failed") == 0.0, 20, "its end")
