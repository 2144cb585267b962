"""Markers in a migration's stream: rows that arrive on the target behind everything that was committed before them.

Sent on the source and waited for on the target, while catching up and behind the fence. Called by the steps.

The lag of a replicated move while it catches up: what it costs, whether it shrinks, and how that is put into words.

Called by the steps that wait for the stream. A catch-up that does not converge is visible long before it is given up:
what the migration waits for includes the trend of the last looks.

What a move owes to foreign keys that point to reference tables: the target's copy must have what the source's has.

A row that moves may refer to a row of a reference table that has reached the source's node but not yet the target's. So
behind the fence, when no more such rows can arrive, the home sends a marker through the target's stream: what the
source had seen was committed at the home before it, and is there when the marker is. Called by the steps of a move.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from balancer.errors import Refused, Unavailable
from balancer.migration.context import Context
from balancer.migration.machine import Track
from balancer.nodes.session.connection import Connection, Cursor, last_rows, run_together, translated
from balancer.nodes.tablets import replication
from balancer.nodes.tablets.object_names import stream_name
from balancer.nodes.tablets.reference_copies import read_streams, referred_to, tablet_of

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


POLL = 0.001
LOOK_INTERVAL = 0.2


def next_marker(ctx: Context, cursor: Cursor) -> int:
    run_together(cursor, replication.marker_statements(ctx.stream))
    return int(last_rows(cursor)[0][0])


def await_marker(ctx: Context, number: int, patience: float, watch: LagGauge | None = None) -> int:
    """Returns how many of the markers before it are missing: none, unless the target went back in time.

    With a watch, the lag is checked meanwhile: where there is much of it, the watch decides and not the patience.
    """
    target = ctx.links.control(ctx.record.target_node)
    began = looked = ctx.clock.monotonic()
    while True:
        ctx.checkpoint()
        with translated(ctx.record.target_node):
            newest, missing = replication.arrived_markers(target, ctx.stream)
        if newest >= number:
            return missing
        now = ctx.clock.monotonic()
        if watch is not None and now - looked > LOOK_INTERVAL:
            looked = now
            watch.check()
            ctx.progress.waiting(f"the stream: {watch.trend.words()}")
        if now - began > patience and not (watch is not None and watch.behind):
            raise Unavailable(f"node {ctx.record.target_node} has not applied the stream for {patience:.1f} s")
        ctx.clock.sleep(POLL)


PATIENCE = 30.0
"""Seconds to wait where writers are held back for the whole copy anyway."""

Mark = tuple[str, int]
"""A stream and the number of the marker that was sent through it."""


def find(ctx: Context) -> None:
    """Finds, before anybody waits, which homes will be asked. Raises `Unavailable` if the target has no copy yet."""
    source, target = ctx.record.source_node, ctx.record.target_node
    with translated(source):
        wanted = referred_to(ctx.links.control(source), ctx.roots) if source != target else []
    if not wanted:
        ctx.followed = ()
        return
    with translated(target):
        here = {one.tablet for one in referred_to(ctx.links.control(target), ctx.roots) if not one.home}
        streams = {tablet_of(stream): stream for stream in read_streams(ctx.links.control(target)).subscriptions}
    followed = []
    for one in wanted:
        if one.tablet in here:
            continue  # the target is its home
        if one.tablet not in streams:
            # This is temporary: the leader makes one, and makes all of them again when a home has moved.
            raise Unavailable(f"node {target} has no copy of the reference table {one.table} that follows its home yet")
        followed.append((one.home or source, streams[one.tablet]))
    ctx.followed = tuple(followed)


def send(ctx: Context) -> list[Mark]:
    """Asks each home for a marker, while the fence stands."""
    marks = []
    for home, stream in ctx.followed:
        # Not over the connection that holds the source's partitions: its transaction is open.
        with ctx.links.data(home) as connection, ctx.long_work(connection, home) as cursor:
            run_together(cursor, replication.marker_statements(stream))
            number = int(last_rows(cursor)[0][0])
            replication.delete_markers_before(cursor, stream, number)
            marks.append((stream, number))
    return marks


def await_all(ctx: Context, marks: Sequence[Mark]) -> None:
    """Waits until the target has applied all of them."""
    node = ctx.record.target_node
    since, patience = ctx.clock.monotonic(), PATIENCE
    if ctx.track is Track.MOVE_REPLICATE and ctx.fenced_at is not None:
        # A little less than the longest writers are held back, so that the error gives the reason and not only the
        # time.
        since, patience = ctx.fenced_at, 0.9 * ctx.settings.write_pause_budget
    for stream, number in marks:
        while True:
            ctx.checkpoint()
            with translated(node):
                if replication.newest_marker(ctx.links.control(node), stream) >= number:
                    break
            if ctx.clock.monotonic() > since + patience:
                raise Unavailable(f"node {node} has not caught up with the reference tables that its rows refer to")
            ctx.clock.sleep(POLL)
