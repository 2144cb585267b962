"""A node that hangs, fails or comes back never holds up the others."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from balancer.clock import SystemClock
from balancer.errors import Unavailable
from balancer.nodes.session.ask_all import AskPool, FanOut, Unreachable
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.quick
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def fan_out(clock: ManualClock) -> Iterator[FanOut[str]]:
    made: FanOut[str] = FanOut(clock, AskPool(SystemClock(), at_once=2))
    yield made
    made.close()


def failing() -> str:
    raise Unavailable("node x cannot be reached")


def answering(text: str) -> Callable[[], str]:
    return lambda: text


def test_answers_and_failures_are_values(fan_out: FanOut[str], clock: ManualClock) -> None:
    first = fan_out.ask({"a": answering("fine"), "x": failing}, 5)
    assert first == {"a": "fine", "x": Unreachable(START.timestamp(), "cannot be reached")}
    clock.advance(60)
    again = fan_out.ask({"a": answering("fine"), "x": failing}, 5)
    assert again["x"] == Unreachable(START.timestamp(), "cannot be reached")
    assert fan_out.ask({"x": answering("back")}, 5) == {"x": "back"}
    assert fan_out.ask({"x": failing}, 5)["x"] == Unreachable(START.timestamp() + 60, "cannot be reached")


def test_a_question_that_hangs_is_not_asked_twice_and_does_not_hold_up_others(fan_out: FanOut[str]) -> None:
    release = threading.Event()
    asked = []

    def hanging() -> str:
        asked.append(1)
        release.wait(30)
        return "late"

    try:
        for _ in range(3):
            started = time.monotonic()
            answers = fan_out.ask({"a": answering("fine"), "x": hanging}, 0.5)
            assert time.monotonic() - started < 10, "not for the thirty seconds of the one that hangs"
            assert answers["a"] == "fine"
            assert isinstance(answers["x"], Unreachable)
            assert answers["x"].reason == "no answer within 0.5 s"
        assert asked == [1]
    finally:
        release.set()
    for _ in range(100):
        if fan_out.ask({"x": answering("back")}, 1) == {"x": "back"}:
            return
        time.sleep(0.05)
    pytest.fail("the node was not asked again after the late answer")


def test_living_nodes_go_before_dead_ones(fan_out: FanOut[str]) -> None:
    order: list[str] = []

    def dead(node: str) -> Callable[[], str]:
        def ask() -> str:
            order.append(node)
            raise Unavailable("gone")

        return ask

    def living() -> str:
        order.append("living")
        return "fine"

    questions = {"d1": dead("d1"), "d2": dead("d2"), "d3": dead("d3"), "z": living}
    fan_out.ask(questions, 5)
    order.clear()
    fan_out.ask(questions, 5)
    assert order.index("living") < 2  # two workers: nobody waited for a dead one
