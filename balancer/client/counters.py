"""What a router has encountered: counters that an application can export, and spans if it passes a tracer.

`router.counters.values()` is a plain dictionary, for Prometheus or anything else. With `tracer=` (an OpenTelemetry
`Tracer`; the library does not import it) every wait for a tablet becomes a span `balancer.wait` with its refusals as
events, and every retried `run` adds an event to the current span. Only the unusual is counted, so an ordinary
transaction costs nothing.
"""

import threading
from contextlib import suppress
from typing import Any

from balancer.client.failures import Failure
from balancer.client.locate import Location

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
