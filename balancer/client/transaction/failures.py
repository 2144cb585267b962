"""What a driver's error means to a client of a cluster whose tablets move. No I/O.

What a router has encountered: counters that an application can export, and spans if it passes a tracer.

`router.counters.values()` is a plain dictionary, for Prometheus or anything else. With `tracer=` (an OpenTelemetry
`Tracer`; the library does not import it) every wait for a tablet becomes a span `balancer.wait` with its refusals as
events, and every retried `run` adds an event to the current span. Only the unusual is counted, so an ordinary
transaction costs nothing.

When a whole transaction is retried, and after which pause. Used by `Router.run` and `AsyncRouter.run`.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import Any

import psycopg

from balancer.directory.locate import Location

MOVING = "TB001"
MOVED = "TB002"
"""The first word of the detail of a node's refusal, whose SQLSTATE is one that every retry loop knows."""

_LOST = {"57P01", "57P02", "57P03", "57P05"}  # the server ends the session, or is starting up or shutting down
_AGAIN = {"40001", "40P01"}  # serialization failure, deadlock: PostgreSQL asks for a retry


class Failure(StrEnum):
    """What to do about an error."""

    MOVING = "moving"  # wait a moment
    MOVED = "moved"  # look the key up again
    LOST = "lost"  # connect again
    AGAIN = "again"  # run the transaction again
    OTHER = "other"  # the application's own


def classify(error: psycopg.Error) -> Failure:
    """For an error while a transaction runs: statements are the application's."""
    state, word = error.sqlstate, refusal(error)
    if word == MOVING:
        return Failure.MOVING
    if word == MOVED or _no_partition(error):
        return Failure.MOVED
    if state in _AGAIN:
        return Failure.AGAIN
    broken = state is None and isinstance(error, psycopg.OperationalError)
    return Failure.LOST if broken or state in _LOST or (state or "").startswith("08") else Failure.OTHER


def classify_entry(error: psycopg.Error) -> Failure:
    """For an error while a transaction begins: all statements are ours."""
    if error.sqlstate in ("55P03", "40P01"):  # a lock was not granted: a switch is under way
        return Failure.MOVING
    if error.sqlstate == "42P01":  # a partition was dropped between our look and our lock
        return Failure.MOVED
    return classify(error)


def refusal(error: psycopg.Error) -> str:
    """`MOVING` or `MOVED` if a node has refused because of a move; empty for every other error."""
    word = (error.diag.message_detail or "").partition(" ")[0] if error.sqlstate == "40001" else ""
    return word if word in (MOVING, MOVED) else ""


def _no_partition(error: psycopg.Error) -> bool:
    """A row for which this node has no partition: a check violation that names no constraint."""
    return error.sqlstate == "23514" and not error.diag.constraint_name


_MEANINGS = {
    "waits": "transactions that could not begin at the first try",
    "wait_seconds": "seconds that those waited",
    "moving": "refusals because a tablet was being switched",
    "moved": "refusals because a tablet was elsewhere by then",
    "lost": "connections that could not be opened, or broke, while a transaction began",
    "gave_up": "transactions that did not begin within their patience",
    "retries": "functions of run that were called again",
}


class Counters:
    """Of one router. May be used from several threads."""

    def __init__(self, tracer: Any = None) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, float] = dict.fromkeys(_MEANINGS, 0.0)
        self._tracer = tracer

    @staticmethod
    def meanings() -> dict[str, str]:
        """The names of the counters, each with what it counts."""
        return dict(_MEANINGS)

    def values(self) -> dict[str, float]:
        """The counters now; each only grows."""
        with self._lock:
            return dict(self._values)

    def wait(self, table: str) -> "Wait":
        """For one transaction that begins."""
        return Wait(self, table)

    def retried(self, failure: str) -> None:
        """A function of `run` is called again."""
        self.add("retries")
        if self._tracer is not None:
            with suppress(ImportError):
                from opentelemetry import trace  # noqa: PLC0415 - installed if there is a tracer

                trace.get_current_span().add_event("balancer.retry", {"balancer.reason": failure})

    def add(self, name: str, amount: float = 1.0) -> None:
        with self._lock:
            self._values[name] += amount

    def span(self, name: str) -> Any:
        """A started span; None: nobody wants one."""
        return None if self._tracer is None else self._tracer.start_span(name)


class Wait:
    """What one transaction encounters while it begins. Usually nothing at all."""

    __slots__ = ("_began", "_counters", "_span", "_table")

    def __init__(self, counters: Counters, table: str) -> None:
        self._counters = counters
        self._table = table
        self._began: float | None = None
        self._span: Any = None

    def refused(self, location: Location, failure: Failure, now: float) -> None:
        """An attempt failed."""
        if self._began is None:
            self._began = now
            self._counters.add("waits")
            self._span = self._counters.span("balancer.wait")
        if failure.value in _MEANINGS:
            self._counters.add(failure.value)
        if self._span is not None:
            words = {
                "balancer.node": location.node,
                "balancer.tablet": location.tablet,
                "balancer.reason": str(failure),
            }
            self._span.add_event("balancer.refusal", words)

    def over(self, location: Location, now: float, *, gave_up: bool = False) -> None:
        """It has begun, or never will."""
        if self._began is None:
            return
        self._counters.add("wait_seconds", now - self._began)
        if gave_up:
            self._counters.add("gave_up")
        if self._span is not None:
            self._span.set_attribute("balancer.table", self._table)
            self._span.set_attribute("balancer.node", location.node)
            self._span.set_attribute("balancer.gave_up", gave_up)
            self._span.end()
            self._span = None
        self._began = None


_FIRST, _LONGEST = 0.002, 0.2


class Attempts:
    """The attempts of one transaction until a deadline (monotonic seconds)."""

    def __init__(self, deadline: float, monotonic: Callable[[], float], counters: Counters | None = None) -> None:
        self._counters = counters
        self._deadline = deadline
        self._monotonic = monotonic
        self._pause = _FIRST
        self._last: psycopg.Error | None = None

    def left(self) -> float:
        """Seconds for the next attempt. If a pause took longer than intended, the last error says more than that."""
        left = self._deadline - self._monotonic()
        if left <= 0 and self._last is not None:
            raise self._last
        return left

    def pause_after(self, error: psycopg.Error) -> float:
        """Seconds to wait before the next attempt. Raises the error itself if a retry is useless or too late.

        Only errors that leave nothing committed come here: a connection lost during COMMIT is `OutcomeUnknown`.
        """
        if classify(error) is Failure.OTHER or self._monotonic() + self._pause >= self._deadline:
            raise error
        if self._counters is not None:
            self._counters.retried(classify(error))
        self._last = error
        pause = self._pause
        self._pause = min(pause * 2, _LONGEST)
        return pause
