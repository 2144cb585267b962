"""However many nodes hang, the others are asked, and threads stay few."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from balancer.clock import SystemClock
from balancer.errors import BalancerError, Unavailable
from balancer.nodes.session.ask_all import AskPool, FanOut, Unreachable
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.quick
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def hanging(release: threading.Event) -> Callable[[], str]:
    def ask() -> str:
        release.wait(60)
        return "late"

    return ask


def threads_of(names: list[str]) -> int:
    return sum(name == "asker" for name in names)


def test_more_nodes_hang_than_may_be_asked_at_once(release: threading.Event) -> None:
    fan_out: FanOut[str] = FanOut(SystemClock(), AskPool(SystemClock(), at_once=3))
    questions = {f"d{number}": hanging(release) for number in range(9)} | {"z": lambda: "fine"}
    first = fan_out.ask(questions, 4)
    assert first["z"] == "fine", "each third of those that hang makes room for others"
    assert all(isinstance(first[node], Unreachable) for node in questions if node != "z")


def test_threads_are_bounded_and_shared(release: threading.Event) -> None:
    askers = AskPool(SystemClock(), at_once=2, most=5)
    before = threads_of([thread.name for thread in threading.enumerate()])
    asked = [askers.submit(hanging(release)) for _ in range(20)]
    askers.wait(asked, 0.5)
    assert threads_of([thread.name for thread in threading.enumerate()]) - before <= 5
    release.set()
    askers.wait(asked, None)
    assert [future.result() for future in asked] == ["late"] * 20


def test_errors_of_ours_are_answers_and_others_are_raised() -> None:
    def away() -> int:
        raise Unavailable("gone")

    askers = AskPool(SystemClock())
    answers = askers.ask_all({"a": lambda: 1, "b": away})
    assert answers["a"] == 1
    assert isinstance(answers["b"], BalancerError)
    with pytest.raises(ZeroDivisionError):
        askers.ask_all({"a": lambda: 1 // 0})


def test_a_silent_node_is_waited_for_once(release: threading.Event) -> None:
    """Its patience in the first tick, a moment in those that follow, and all of it again once it has answered late."""
    waited: list[float | None] = []

    class Watched(AskPool):
        def wait(self, futures: list[threading.Event], seconds: float | None) -> None:  # type: ignore[override]
            waited.extend([seconds] * bool(futures))
            super().wait(futures, None if seconds is None else min(seconds, 0.2))  # type: ignore[arg-type]

    fan_out: FanOut[str] = FanOut(ManualClock(START), Watched(SystemClock()))
    assert isinstance(fan_out.ask({"x": hanging(release)}, 5.0)["x"], Unreachable)
    open_question = fan_out._open["x"]
    fan_out.ask({"x": hanging(release)}, 5.0)
    assert waited == [5.0], "while its question is open it is not asked again"
    release.set()
    assert open_question.result(30) == "late"
    assert fan_out.ask({"x": lambda: "fine"}, 5.0) == {"x": "fine"}
    assert waited == [5.0, 5.0], "it has answered, if late"

    def away() -> str:
        raise Unavailable("gone")

    fan_out.ask({"x": away}, 5.0)
    fan_out.ask({"x": away}, 5.0)
    assert waited[2:] == [5.0, 1.0], "it was silent the last time"
