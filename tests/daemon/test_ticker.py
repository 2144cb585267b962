"""The ticker: on time by the monotonic clock, whatever the wall clock does, and never twice at once."""

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from balancer.clock import SystemClock
from balancer.daemon.scheduler import Ticker

pytestmark = pytest.mark.quick


class JumpingClock(SystemClock):
    """The machine's clock, whose wall time somebody has set."""

    offset = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.offset


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture
def ticker(clock: JumpingClock) -> Iterator[Ticker]:
    ticker = Ticker(clock)
    ticker.start()
    yield ticker
    ticker.stop()


def test_a_function_runs_at_once_and_again(ticker: Ticker) -> None:
    runs = threading.Semaphore(0)
    ticker.set({"shop": (0.05, runs.release)})
    assert all(runs.acquire(timeout=20) for _ in range(3))


def test_a_slow_function_neither_overlaps_itself_nor_holds_up_another(ticker: Ticker) -> None:
    inside, worst = [0], [0]
    others = threading.Semaphore(0)
    go_on = threading.Event()

    def slow() -> None:
        inside[0] += 1
        worst[0] = max(worst[0], inside[0])
        go_on.wait(20)
        inside[0] -= 1

    ticker.set({"slow": (0.02, slow), "other": (0.02, others.release)})
    assert all(others.acquire(timeout=20) for _ in range(5))
    go_on.set()
    assert worst == [1]


def test_a_function_that_fails_is_called_again(ticker: Ticker) -> None:
    runs = threading.Semaphore(0)

    def fail() -> None:
        runs.release()
        raise ValueError("a tick's own boundary must not be needed for the next one")

    ticker.set({"shop": (0.05, fail)})
    assert all(runs.acquire(timeout=20) for _ in range(2))


def test_a_late_function_is_nudged_although_the_wall_clock_was_set_back(ticker: Ticker, clock: JumpingClock) -> None:
    runs = threading.Semaphore(0)
    clock.offset = timedelta(hours=1)  # the next run is planned an hour ahead of what the scheduler's clock says
    ticker.set({"shop": (0.05, runs.release)})
    clock.offset = timedelta()
    assert not runs.acquire(timeout=0.3)
    deadline = time.monotonic() + 20
    while not ticker.nudge():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert runs.acquire(timeout=20)


def test_a_wall_clock_that_jumps_by_years_costs_one_run(ticker: Ticker, clock: JumpingClock) -> None:
    runs = threading.Semaphore(0)
    clock.offset = timedelta(days=-20000)
    began = time.monotonic()
    ticker.set({"shop": (0.5, runs.release)})
    assert all(runs.acquire(timeout=20) for _ in range(3))
    assert 0.5 < time.monotonic() - began < 20


def test_a_run_asked_for_while_one_runs_follows_it_at_once(ticker: Ticker) -> None:
    began, go_on = threading.Semaphore(0), threading.Event()

    def slow() -> None:
        began.release()
        go_on.wait(20)

    ticker.set({"shop": (60.0, slow)})
    assert began.acquire(timeout=20)
    ticker.run_soon("shop")
    ticker.run_soon("shop")
    go_on.set()
    assert began.acquire(timeout=20)
    assert not began.acquire(timeout=0.3)
    ticker.run_soon("unknown")


def test_it_stops_although_another_run_is_asked_for_meanwhile(ticker: Ticker) -> None:
    began, go_on = threading.Semaphore(0), threading.Event()

    def slow() -> None:
        began.release()
        go_on.wait(20)

    ticker.set({"shop": (60.0, slow)})
    assert began.acquire(timeout=20)
    ticker.run_soon("shop")
    stopping = threading.Thread(target=ticker.stop, daemon=True)
    stopping.start()
    time.sleep(0.3)  # it waits for the function now, whose end asks for another run
    go_on.set()
    stopping.join(20)
    assert not stopping.is_alive()
    assert not began.acquire(blocking=False)


def test_what_is_taken_away_is_not_called_any_more(ticker: Ticker) -> None:
    first, second = threading.Semaphore(0), threading.Semaphore(0)
    ticker.set({"a": (0.02, first.release)})
    assert first.acquire(timeout=20)
    ticker.set({"b": (0.02, second.release)})
    while first.acquire(timeout=0.2):
        pass
    assert second.acquire(timeout=20)
    assert not first.acquire(timeout=0.1)


def test_what_is_set_again_as_it_was_goes_on_as_it_was(ticker: Ticker) -> None:
    """A file that changes is one of hundreds: the others' bundles do not all tick because of it."""
    calls: list[str] = []
    told = threading.Semaphore(0)

    def call(name: str) -> None:
        calls.append(name)
        told.release()

    ticker.set({"shop": (60.0, partial(call, "shop"))})
    assert told.acquire(timeout=20)
    ticker.set({"shop": (60.0, partial(call, "shop")), "other": (60.0, partial(call, "other"))})
    assert told.acquire(timeout=20)
    ticker.set({"shop": (60.0, partial(call, "shop")), "other": (61.0, partial(call, "other"))})
    assert told.acquire(timeout=20)
    ticker.set({"shop": (60.0, partial(call, "changed")), "other": (61.0, partial(call, "other"))})
    assert told.acquire(timeout=20)
    assert calls == ["shop", "other", "other", "changed"]
