"""The lag of a replicated move while it catches up: what it costs, whether it shrinks, and how that is put into words.

Called by the steps that wait for the stream. A catch-up that does not converge is visible long before it is given up:
what the migration waits for includes the trend of the last looks.
"""

from collections import deque
from dataclasses import dataclass, field

from balancer.errors import Refused
from balancer.migration.context import Context
from balancer.nodes import replication
from balancer.nodes.connection import Connection, translated
from balancer.nodes.objects import stream_name

SMALL = 1_000_000  # bytes of log: less than this is gone in a moment
LOOKS = 20  # the looks that make up a trend
LEAST_SECONDS = 1.0  # that a trend must span
STEADY = 0.02  # of the lag per second: less is neither growing nor shrinking


@dataclass
class Trend:
    """How a lag changes, from looks at it."""

    looks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=LOOKS))

    def add(self, now: float, lag: int) -> None:
        """Adds a look, at a moment of the monotonic clock."""
        self.looks.append((now, lag))

    def rate(self) -> float | None:
        """Bytes per second by which it grows (least squares); None: too few looks to tell."""
        if len(self.looks) < 3 or self.looks[-1][0] - self.looks[0][0] < LEAST_SECONDS:
            return None
        count = len(self.looks)
        time = sum(at for at, _ in self.looks) / count
        mean = sum(lag for _, lag in self.looks) / count
        spread = sum((at - time) ** 2 for at, _ in self.looks)
        return sum((at - time) * (lag - mean) for at, lag in self.looks) / spread

    def words(self) -> str:
        """For people."""
        if not self.looks:
            return ""
        lag, rate = self.looks[-1][1], self.rate()
        behind = f"{lag / 1e6:.1f} MB behind"
        if rate is None:
            return behind
        if abs(rate) < max(1.0, STEADY * lag):
            return f"{behind} and not shrinking" if lag >= SMALL else behind
        if rate > 0:
            return f"{behind} and growing by {rate / 1e6:.2f} MB/s"
        return f"{behind} and shrinking by {-rate / 1e6:.2f} MB/s, about {lag / -rate:.0f} s left"


class LagGauge:
    """Follows the stream's lag; raises when it costs too much, or does not shrink."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._best: int | None = None
        self._since = ctx.clock.monotonic()
        self._errors: int | None = None
        self.trend = Trend()

    @property
    def behind(self) -> bool:
        """Whether there is still much to apply: a marker may then take long."""
        return bool(self.trend.looks) and self.trend.looks[-1][1] >= SMALL

    def check(self) -> int:
        """The lag in bytes. Raises `Refused` with the figures."""
        ctx = self._ctx
        source = ctx.links.control(ctx.record.source_node)
        with translated(ctx.record.source_node):
            state = replication.stream_state(source, ctx.id)
        now = ctx.clock.monotonic()
        ctx.progress.lag(state.lag)
        self.trend.add(now, state.lag)
        if state.lost:
            raise Refused(f"node {ctx.record.source_node} has removed log that the move needed: the slot is lost")
        if state.retained > ctx.settings.wal_budget:
            raise Refused(
                f"the move keeps {state.retained} bytes of write-ahead log on node {ctx.record.source_node},"
                f" more than the {ctx.settings.wal_budget} allowed"
            )
        self._check_apply(ctx.links.control(ctx.record.target_node))
        if self._best is None or state.lag < self._best or state.lag < SMALL:
            self._best, self._since = state.lag, now
        elif now - self._since > ctx.settings.lag_patience:
            raise Refused(
                f"node {ctx.record.target_node} does not catch up: {self.trend.words()}, no better for"
                f" {now - self._since:.0f} s; move it at a quieter time or throttle the writers"
            )
        return state.lag

    def _check_apply(self, target: Connection) -> None:
        """An apply that keeps failing will not succeed by itself."""
        ctx = self._ctx
        with translated(ctx.record.target_node):
            errors = replication.apply_error(target, ctx.id)
        if self._errors is None:
            self._errors = errors
        elif errors > self._errors + 3:
            raise Refused(
                f"node {ctx.record.target_node} cannot apply the changes; its log says why (subscription"
                f" {stream_name(ctx.id)})"
            )
