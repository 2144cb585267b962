"""The way back: everything a migration made is undone, writers first. Called by the runner until it succeeds.

The journal says `cancelling` or `restarting`, so what was made can no longer be committed. Lifting the fence comes
first and needs only the source; each later part may fail and be repeated without the earlier ones.
"""

from balancer.directory.model import MigrationKind
from balancer.migration.context import Context
from balancer.migration.machine import Event
from balancer.migration.steps_switch import detach_incoming, let_writers_on
from balancer.nodes import capture, chunks, fence, mirror, partition, replication, schema
from balancer.nodes.connection import Cursor


def cancelling(ctx: Context) -> Event:
    """Lifts the fence, removes the incoming partitions and the stream."""
    let_writers_on(ctx, capturing=False)
    _take_away(ctx)
    return Event.BROKEN if ctx.detail.failed else Event.CLEANED


def restarting(ctx: Context) -> Event:
    """The same, and forgets everything known about the copy: it is started over."""
    let_writers_on(ctx, capturing=False)
    ctx.checkpoint()
    _take_away(ctx)
    ctx.forget_copy()
    return Event.STEP


def _take_away(ctx: Context) -> None:
    if ctx.record.operation is MigrationKind.MOVE:
        with ctx.target() as cursor:
            replication.drop_subscription(cursor, ctx.id)
        with ctx.target() as cursor:
            detach_incoming(ctx, cursor, undone=True)
    _drop_incoming(ctx)
    if ctx.record.operation is MigrationKind.MOVE:
        with ctx.source() as cursor:
            replication.drop_slot(cursor, ctx.id)
    _clean_source(ctx)


def _drop_incoming(ctx: Context) -> None:
    """Removes only what is `incoming` under this very migration."""
    with ctx.target() as cursor:
        for name in (name for row in _incoming(ctx, cursor) for name in row.partitions):
            if partition.exists(cursor, name):
                partition.release_references(cursor, name, ctx.settings.lock_timeout)
    with ctx.target() as cursor:
        mine = _incoming(ctx, cursor)
        for row in mine:
            for name in reversed(row.partitions):
                partition.drop_partition(cursor, name)
        schema.forget_tablets(cursor, [row.id for row in mine])
        replication.delete_markers(cursor, ctx.id)
        replication.forget_switch(cursor, ctx.id)
        chunks.drop_notes(cursor, ctx.id)


def _incoming(ctx: Context, cursor: Cursor) -> list[schema.OwnedTablet]:
    rows = schema.read_tablets(cursor)
    return [row for row in rows if row.migration == ctx.id and row.state is schema.OwnState.INCOMING]


def _clean_source(ctx: Context) -> None:
    with ctx.source() as cursor:
        replication.drop_publication(cursor, ctx.id)
        replication.delete_markers(cursor, ctx.id)
    # Dropping a trigger waits for readers, and makes others wait behind it: briefly, partition by partition.
    for index, place in enumerate(ctx.source_places):
        with ctx.source() as cursor:
            fence.drop_fence(cursor, [place.partition], ctx.settings.lock_timeout)
            mirror.drop(cursor, ctx.id, index, place.partition)
            capture.drop_capture(cursor, ctx.id, index, place.partition)
