"""How fast a migration copies: at a set rate, or, with `throttle = "auto"`, as its nodes' own commits allow.

For `auto` a thread times an empty commit on each node: it changes nothing, and waits for the disk as the application's
commits do. `balancer.policies.pacing` decides what that means for the rate. Called by the steps that copy rows.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from psycopg import sql

from balancer.clock import Clock
from balancer.migration.background import Background
from balancer.migration.context import Context
from balancer.nodes.connection import Connection, translated
from balancer.policies.options import AUTO
from balancer.policies.pacing import FIRST, adjusted

Rate = Callable[[], float | None]
"""Bytes per second, now; None: no limit; 0: nothing right now."""

LOOK = 0.1
"""Seconds between two commits on a node."""
LOOKS = 5
"""Commits by which a rate is judged."""
REST_EVERY = 30.0
"""Seconds after which the copy rests briefly, to see how long commits take without it."""
_COMMIT = sql.SQL("BEGIN; SET LOCAL synchronous_commit TO on; SELECT pg_current_xact_id(); COMMIT")


@contextmanager
def pace(ctx: Context) -> Iterator[Rate]:
    """The rate for the length of a copy."""
    fixed = ctx.settings.throttle
    if fixed != AUTO:
        yield lambda: fixed
        return
    probe = _Probe(ctx)
    with Background(probe.run, "commit-probe"):
        yield probe.rate


class _Probe:
    """Belongs to its thread, except `rate`. If it fails, the copy continues at the last good rate."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._right = FIRST
        self._resting = True  # until it is known how long commits take without the copy

    def rate(self) -> float:
        return 0.0 if self._resting else self._right

    def run(self, stop: threading.Event) -> None:
        ctx = self._ctx
        nodes = sorted({ctx.record.source_node, ctx.record.target_node})
        try:
            with ExitStack() as stack:
                sessions = {node: stack.enter_context(ctx.links.data(node)) for node in nodes}
                while not stop.is_set():
                    self._follow(sessions, stop)
        finally:
            self._resting = False

    def _follow(self, sessions: dict[str, Connection], stop: threading.Event) -> None:
        """From one rest of the copy to the next."""
        clock, share = self._ctx.clock, self._ctx.settings.throttle_share
        self._resting = True
        stop.wait(LOOK)  # what is in flight finishes
        quiet = self._look(sessions, stop, LOOK / 5)
        self._resting = False
        until = clock.monotonic() + REST_EVERY
        while not stop.is_set() and clock.monotonic() < until:
            busy = self._look(sessions, stop, LOOK)
            self._right = min(adjusted(self._right, quiet[node], busy[node], share) for node in sessions)

    def _look(self, sessions: dict[str, Connection], stop: threading.Event, interval: float) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {node: [] for node in sessions}
        for _ in range(LOOKS):
            for node, session in sessions.items():
                began = self._ctx.clock.monotonic()
                with translated(node):
                    session.execute(_COMMIT)
                found[node].append(self._ctx.clock.monotonic() - began)
            if stop.wait(interval):
                break
        return found


class Throttle:
    """Lets this many bytes through per second, in bursts of up to a tenth of a second's worth. For one thread."""

    def __init__(self, clock: Clock, rate: Rate, share: float = 1.0) -> None:
        self._clock = clock
        self._rate = rate
        self._share = share  # of the rate, where several threads copy
        self._ahead = 0.0  # seconds of work that were done too early
        self._last = clock.monotonic()

    def spend(self, size: int) -> None:
        """Sleeps if more was spent than the rate allows."""
        while (rate := self._rate()) == 0.0:
            self._clock.sleep(0.02)
        if rate is None:
            return
        now = self._clock.monotonic()
        self._ahead = max(0.0, self._ahead - (now - self._last)) + size / (rate * self._share)
        self._last = now
        if self._ahead > 0.1:
            self._clock.sleep(self._ahead - 0.05)
