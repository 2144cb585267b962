"""Markers in a migration's stream: rows that arrive on the target behind everything that was committed before them.

Sent on the source and waited for on the target, while catching up and behind the fence. Called by the steps.
"""

from balancer.errors import Unavailable
from balancer.migration.context import Context
from balancer.migration.lag import LagGauge
from balancer.nodes import replication
from balancer.nodes.connection import Cursor, last_rows, run_together, translated

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
