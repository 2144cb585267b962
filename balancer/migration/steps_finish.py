"""After the commit of a move: opening the target, retiring the source. Called by the runner until it succeeds.

The owner has changed, so there is no way back from here and none is needed: every step may be repeated.
"""

from balancer.errors import Refused
from balancer.migration.background import Background
from balancer.migration.context import Context, partitions_of
from balancer.migration.machine import Event
from balancer.nodes import capture, fence, partition, replication, schema, sequences
from balancer.nodes.connection import NO_STATEMENT_TIMEOUT, Cursor, Statement, lock_timeout, run_together
from balancer.nodes.objects import bound_constraint


def opening(ctx: Context) -> Event:
    """The new owner is opened and the former one told; no proven read there may miss a write here."""
    # The thread has the source's connection to itself: this one speaks to the target only.
    with Background(lambda _: _mark_moved(ctx), "mark-moved") as marking:
        with ctx.target() as cursor:
            _open_target(ctx, cursor)
            # A former owner that is out of our reach is not waited for longer: it is told in `retiring`.
            marking.wait(ctx.settings.write_pause_budget)
        if ctx.fenced_at is not None:
            ctx.note(pause=ctx.clock.monotonic() - ctx.fenced_at)
            ctx.fenced_at = None
    return Event.STEP


def _open_target(ctx: Context, cursor: Cursor) -> None:
    """One transaction: attached, `owned`, its sequences ahead of what the rows contain. What can, travels together."""
    names = partitions_of(ctx.table, ctx.moved)
    attached = partition.attachments(cursor, names)
    statements: list[Statement] = [
        lock_timeout(ctx.settings.lock_timeout),
        # There is no way back: what PostgreSQL insists on (a foreign key between the roots) must not be cut short.
        NO_STATEMENT_TIMEOUT,
    ]
    if replication.subscription_exists(cursor, ctx.id):
        statements.append(replication.disable_statement(ctx.id))
    for place in ctx.target_places:  # referenced roots before those that refer to them
        if attached.get(place.partition) is None:
            statements += fence.drop_statements(place.partition)
            statements += partition.attach_statements(place, bound_constraint(ctx.id))
    statements += sequences.raise_statements(ctx.detail.sequences)
    owned = schema.OwnedTablet(ctx.moved.id, ctx.moved.epoch, schema.OwnState.OWNED, names)
    run_together(cursor, [*statements, *schema.tablet_statements([owned])])


def retiring(ctx: Context) -> Event:
    """Tells former clients where the tablet went, takes the stream away, then the rows."""
    _mark_moved(ctx)
    _remove_stream(ctx)
    for place in reversed(ctx.source_places):  # a referenced root's rows go last
        with ctx.source_command() as connection:
            connection.execute("SELECT set_config('lock_timeout', '10s', false)")
            partition.detach(connection, place.root, place.partition)
        with ctx.source() as cursor:
            partition.release_references(cursor, place.partition, ctx.roots)
    _wait_for_grace(ctx)
    _drop_rows(ctx)
    return Event.STEP


def _mark_moved(ctx: Context) -> None:
    names = partitions_of(ctx.table, ctx.sources[0])
    gone = fence.Fence(ctx.id, ctx.leadership.epoch, fence.MOVED, 0, ctx.moved.id, ctx.moved.node, ctx.moved.epoch)
    told = schema.OwnedTablet(ctx.moved.id, ctx.moved.epoch, schema.OwnState.MOVED, names, moved_to=ctx.moved.node)
    with ctx.source() as cursor:
        # One whose detach was begun was marked before that, and cannot be altered until the detach is finished.
        there = [name for name, pending in partition.attachments(cursor, names).items() if not pending]
        marks = fence.moved_statements(there, gone, ctx.settings.lock_timeout * 5)
        run_together(cursor, [*marks, *schema.tablet_statements([told])])


def _remove_stream(ctx: Context) -> None:
    with ctx.target_command() as connection:
        replication.drop_subscription(connection, ctx.id)
    with ctx.target() as cursor:
        replication.delete_markers(cursor, ctx.id)
    with ctx.source_command() as connection:
        replication.drop_slot(connection, ctx.id)
    with ctx.source() as cursor:
        replication.drop_publication(cursor, ctx.id)
        replication.delete_markers(cursor, ctx.id)


def _wait_for_grace(ctx: Context) -> None:
    switched = ctx.detail.switched
    if switched is not None:
        left = switched + ctx.settings.retire_grace - ctx.clock.now().timestamp()
        ctx.progress.waiting("readers of the former owner")
        ctx.sleep(max(0.0, min(left, ctx.settings.retire_grace)))


def _drop_rows(ctx: Context) -> None:
    """Only what is detached and `moved` under the epoch that this migration gave away."""
    node = ctx.record.source_node
    with ctx.source() as cursor:
        row = cursor.execute(
            "SELECT state, epoch FROM balancer.tablet WHERE id = %s FOR UPDATE", (ctx.moved.id,)
        ).fetchone()
        if row != (str(schema.OwnState.MOVED), ctx.moved.epoch):
            raise Refused(f"node {node} does not say that tablet {ctx.moved.id} has moved: its rows are kept")
        for index, place in reversed(list(enumerate(ctx.source_places))):
            capture.drop_capture(cursor, ctx.id, index, place.partition)
            partition.drop_partition(cursor, place.partition)
