"""A follower among thousands: reads are put off where servers are slow, and never for somebody who waits."""

import threading
from datetime import UTC, datetime

import pytest

from balancer.directory.snapshot import Snapshot
from balancer.directory.store import follower as watch
from balancer.directory.store.follower import PollingFollower, put_off
from tests.support.fleet import until
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.quick


class Told:
    """A signal that a test gives."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.taken = 0

    def wait(self, timeout: float) -> None:
        self._event.wait(min(timeout, 60.0))
        self._event.clear()
        self.taken += 1

    def wake(self) -> None:
        self._event.set()

    def close(self) -> None:
        self._event.set()


class SlowServers:
    """What a follower reads: each read takes a second of its clock."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.version = 1
        self.reads: list[bool] = []

    def read(self, fresh: bool) -> Snapshot:
        self.reads.append(fresh)
        self._clock.advance(1.0)
        return Snapshot(version=self.version)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


def test_a_quick_answer_puts_nothing_off_and_a_slow_one_more() -> None:
    assert put_off(0.0, 0.99) == put_off(0.04, 0.99) == put_off(1.0, 0.0) == 0.0
    assert 0.0 < put_off(0.06, 0.99) < put_off(0.08, 0.99) < put_off(1.0, 0.99) == put_off(100.0, 0.99) <= 0.25
    assert len({put_off(1.0, number / 1000) for number in range(1000)}) == 4


def test_commits_that_come_together_are_read_together_and_at_once_for_those_who_wait(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_SPREAD_MOST", 60.0)
    monkeypatch.setattr(watch, "_SPREAD", 60.0)
    monkeypatch.setattr(watch._RANDOM, "random", lambda: 0.99)
    servers, told = SlowServers(clock), Told()
    follower = PollingFollower(servers.read, told, clock, confirm_every=1000.0)
    try:
        servers.version = 2
        told.wake()
        assert follower.wait(1, 10.0).version == 2  # the first read has shown that they are slow
        reads = len(servers.reads)
        for version in (3, 4):
            servers.version = version
            taken = told.taken
            told.wake()
            if version == 3:
                until(lambda taken=taken: told.taken > taken, 10, "the signal")  # type: ignore[misc]
        assert follower.wait(2, 0.3, patient=True).version == 2
        assert len(servers.reads) == reads
        assert follower.wait(2, 10.0).version == 4
        assert servers.reads[reads:].count(False) <= 2
    finally:
        follower.close()


def test_it_is_asked_for_certain_as_often_as_the_follower_wants(clock: ManualClock) -> None:
    """An application asks rarely: a signal is enough to read, and its read confirms nothing."""
    servers, told = SlowServers(clock), Told()
    follower = PollingFollower(servers.read, told, clock, confirm_every=100.0)
    try:
        servers.version = 2
        told.wake()
        assert follower.wait(1, 10.0).version == 2
        assert servers.reads == [True, False]
        clock.advance(200.0)
        assert follower.age() > 200.0
        told.wake()
        until(lambda: servers.reads[-1], 10, "a read that confirms")
        assert follower.age() < 2.0
    finally:
        follower.close()
