"""The consistency checker in a daemon: by itself, gently, and a new leader goes on where the last one stood."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from balancer.client import Router
from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.features.checker import duty, loop
from balancer.features.checker.book import read_book
from balancer.features.checker.duty import CheckKeeper
from balancer.instruments import Instruments
from balancer.nodes.session.addresses import address_in
from balancer.nodes.session.connection import Address, Connection
from balancer.planner.metrics import Reporter
from balancer.policies.check_options import CheckKind
from balancer.policies.checking import CheckResult, CheckUnit
from tests.daemon.conftest import _logs_apart as _logs_apart
from tests.daemon.conftest import directory as directory
from tests.daemon.conftest import fleet as fleet
from tests.daemon.test_daemon import instance
from tests.support.commands import balancer_here
from tests.support.fleet import Fleet, until
from tests.support.opening import connect

CHECKS = 'enable = true\nshare = 1.0\nevery = "1s"'
STRAY = "CREATE TABLE restored PARTITION OF orders FOR VALUES WITH (MODULUS 8, REMAINDER 3)"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CONFIRM_PAUSE", 0.0)


@contextmanager
def node(fleet: Fleet, name: str) -> Iterator[Connection]:
    with connect(Address(name, fleet.dsns[name])) as connection:
        yield connection


def test_what_is_found_is_in_metrics_history_doctor_and_verify_and_goes_when_it_is_mended(fleet: Fleet) -> None:
    fleet.write("observe", checks=CHECKS)
    labels = {"bundle": "shop", "kind": "strays"}
    with instance(fleet) as running, node(fleet, "b") as stranger, Router.connect(fleet.url, samples=False) as router:
        until(lambda: running.metric("balancer_check_timestamp_seconds", bundle="shop", kind="sums"), 60, "a round")
        assert running.metric("balancer_check_findings", **labels) == 0
        assert balancer_here("doctor", "--config", fleet.config).out.strip() == "nothing is wrong"
        stranger.execute(STRAY)
        tablet = next(one for one in router.snapshot.tablets(1) if one.bounds.remainder == 3)  # type: ignore[union-attr]
        until(lambda: running.metric("balancer_check_findings", **labels) == 1, 30, "the finding")
        shown = balancer_here("verify", "-o", "json", "--config", fleet.config)
        assert shown.code == 1
        (found,) = json.loads(shown.out)["shop"]["findings"]
        assert (found["kind"], found["tablet"], found["node"], found["root"]) == (
            "strays",
            tablet.id,
            "b",
            "public.orders",
        )
        doctor = balancer_here("doctor", "--config", fleet.config)
        assert doctor.code == 1
        assert "check of strays: node b has public.restored attached" in doctor.out
        assert "DETACH PARTITION public.restored" in doctor.out
        stranger.execute("DROP TABLE restored")
        until(lambda: running.metric("balancer_check_findings", **labels) == 0, 30, "its end")
        history = balancer_here("history", "--config", fleet.config).out
        assert "check of strays: found: node b has public.restored attached" in history
        assert "check of strays: no longer found: node b" in history
        assert json.loads(balancer_here("verify", "-o", "json", "--config", fleet.config).out)["shop"]["past"]


@pytest.fixture
def parts(fleet: Fleet) -> Fleet:
    fleet.write("observe", checks='enable = true\nshare = 1.0\nkinds = ["map", "bounds"]')
    return fleet


@contextmanager
def keeper(fleet: Fleet, directory: Directory) -> Iterator[CheckKeeper]:
    leadership = directory.campaign("test", 20.0)
    assert leadership is not None
    settings = fleet.settings()
    made = CheckKeeper(
        directory,
        leadership,
        addresses=lambda name: address_in(settings, name),
        settings=lambda: settings,
        reporter=Reporter(Instruments()),
        clock=SystemClock(),
    )
    yield made
    leadership.resign()


def round_over(keeping: CheckKeeper, directory: Directory) -> None:
    def kept() -> bool:
        keeping.keep("shop")
        return bool(read_book(directory, "shop").past)

    until(kept, 60, "the end of the round")


def test_a_new_leader_goes_on_where_the_last_one_stood(parts: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first leader is killed after five looks: it closes nothing."""
    looked: list[CheckUnit] = []
    real = loop.Checker._look

    def look(self: loop.Checker, unit: CheckUnit) -> CheckResult:
        looked.append(unit)
        if len(looked) == 6:
            raise KeyboardInterrupt  # as good as a kill: nothing is tidied up
        return real(self, unit)

    monkeypatch.setattr(loop.Checker, "_look", look)
    monkeypatch.setattr(duty, "SAVE", 0.0)
    with parts.directory() as directory, keeper(parts, directory) as first, pytest.raises(KeyboardInterrupt):
        round_over(first, directory)
    with parts.directory() as directory, keeper(parts, directory) as second:
        round_over(second, directory)
        second.close()
        book = read_book(directory, "shop")
    rows = [unit for unit in looked if unit.kind is CheckKind.BOUNDS]
    again = [unit for place, unit in enumerate(rows) if unit in rows[:place]]
    assert [unit.kind for unit in looked].count(CheckKind.MAP) == 1, "the second began with what the first had not done"
    assert len(again) == 1, "only the look that was cut off was repeated"
    assert (book.past[0].number, book.past[0].rows) == (1, 2000)


def test_outside_of_its_schedule_nothing_is_looked_at(parts: Fleet) -> None:
    parts.write("observe", checks=f'{CHECKS}\nschedule = "hours > 24"')
    with parts.directory() as directory, keeper(parts, directory) as keeping:
        keeping.keep("shop")
        keeping.close()
        assert read_book(directory, "shop").round is None


def test_the_share_of_the_time_is_kept(parts: Fleet) -> None:
    """By the work that was measured and the time that passed: no more than a call's worth above its share."""
    parts.write("observe", checks='enable = true\nshare = 0.2\nkinds = ["bounds"]')
    with parts.directory() as directory, keeper(parts, directory) as keeping:
        clock = SystemClock()
        began = clock.monotonic()
        round_over(keeping, directory)
        (past,) = read_book(directory, "shop").past
        assert clock.monotonic() - began >= past.seconds * 3
        keeping.close()
