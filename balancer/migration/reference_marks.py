"""What a move owes to foreign keys that point to reference tables: the target's copy must have what the source's has.

A row that moves may refer to a row of a reference table that has reached the source's node but not yet the target's. So
behind the fence, when no more such rows can arrive, the home sends a marker through the target's stream: what the
source had seen was committed at the home before it, and is there when the marker is. Called by the steps of a move.
"""

from collections.abc import Sequence

from balancer.errors import Unavailable
from balancer.migration.context import Context
from balancer.migration.machine import Track
from balancer.nodes import replication
from balancer.nodes.connection import last_rows, run_together, translated
from balancer.nodes.reference_copies import read_streams, referred_to, tablet_of

POLL = 0.001
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
