"""The swap of a split or merge, and what comes after it. Called by the runner.

The swap is one transaction on the node. First it keeps writers out of roots and old partitions (nobody is refused,
everybody waits a few milliseconds); both, because a write by a partition's own name takes no lock on its root. Then the
last changes are replayed and compared, by a second session that commits them: a reader on an older snapshot would not
see them in the new partitions, so it waits for such readers; those that begin later see every row. Then readers are
kept out too, old partitions go out and new ones come in. The directory follows. Between the two the node is right under
both maps: an old tablet stays `owned` there until it is retired.

Writers that waited for the swap with an older snapshot (REPEATABLE READ, without `hold`) would find no row to change.
They are refused by a trigger on the roots (`refuse_old_snapshot`), which goes when no such snapshot is left.
"""

from datetime import datetime

from balancer.directory.model import MigrationMode
from balancer.errors import Refused, Unavailable
from balancer.migration import guards
from balancer.migration.context import Context, partitions_of
from balancer.migration.control import Overrun
from balancer.migration.machine import Event
from balancer.migration.steps_copy import read_shapes
from balancer.migration.steps_reshard import (
    LOOK_INTERVAL,
    catch_up,
    families,
    model_of,
    replay_once,
    replay_transaction,
)
from balancer.nodes import blockers, capture, fence, partition, references, reshard, schema, set_aside, snapshots
from balancer.nodes.closed import closed_statement
from balancer.nodes.connection import Connection, Cursor, run_together, translated
from balancer.nodes.objects import bound_constraint


def swapping(ctx: Context) -> Event:
    """Swaps, unless that has happened already. Raises `Overrun` if what it knows does not allow it to proceed."""
    if swapped(ctx):
        return Event.STEP
    if ctx.prepared is None:
        raise Overrun("the swap was interrupted before it happened")
    ctx.note(fences=ctx.detail.fences + 1)
    node = ctx.record.source_node
    concerned = [*ctx.roots, *(place.partition for place in ctx.source_places)]
    if ctx.record.mode is MigrationMode.REPLICATE:
        catch_up(ctx)
        guards.clear_the_way(ctx, node, concerned, blockers.SWAP)
    guards.check_fingerprints(ctx)
    work = families(ctx)
    began = ctx.clock.monotonic()
    try:
        with ctx.source() as cursor, ctx.links.data(node) as beside:
            _swap(ctx, cursor, beside, work)
    except Unavailable as error:
        guards.name_blockers(ctx, node, concerned, blockers.SWAP)
        # Nothing was applied, so writers continue meanwhile; an unknown outcome is another error.
        raise Overrun(str(error)) from error
    ctx.note(pause=ctx.clock.monotonic() - (ctx.fenced_at or began))
    ctx.fenced_at = None
    return Event.STEP


def retiring(ctx: Context) -> Event:
    """Marks the old tablets as gone; their rows go after a grace."""
    node = ctx.record.source_node
    with ctx.source() as cursor:
        schema.write_tablets(
            cursor,
            [
                schema.OwnedTablet(
                    tablet.id, tablet.epoch, schema.OwnState.MOVED, partitions_of(ctx.table, tablet), moved_to=node
                )
                for tablet in ctx.sources
            ],
        )
    if ctx.detail.switched is not None:
        left = ctx.detail.switched + ctx.settings.retire_grace - ctx.clock.now().timestamp()
        ctx.sleep(max(0.0, min(left, ctx.settings.retire_grace)))
    with ctx.source() as cursor:
        moment = snapshots.moment_of(cursor)
    while older := _older_snapshots(ctx, moment):
        ctx.progress.waiting(f"{older[0]} on node {node}, which must not write by it")
        ctx.sleep(LOOK_INTERVAL)
    for root in ctx.roots:
        with ctx.source() as cursor:
            partition.set_lock_timeout(cursor, ctx.settings.lock_timeout)
            reshard.admit_old_snapshots(cursor, root, ctx.id)
    with ctx.source() as cursor:
        going = list(reversed(list(enumerate(ctx.source_places))))
        for number, place in going:
            capture.drop_capture(cursor, ctx.id, number, place.partition)
        names, gone = [place.partition for _, place in going], [tablet.id for tablet in ctx.sources]
        kept = set_aside.drop_or_set_aside(cursor, gone, names, ctx.id, ctx.settings.lock_timeout)
    if kept:
        ctx.note(kept=kept)
    return Event.STEP


def _older_snapshots(ctx: Context, moment: datetime) -> list[blockers.Blocker]:
    node = ctx.record.source_node
    with translated(node):
        return snapshots.older_snapshots(ctx.links.control(node), moment)


def swapped(ctx: Context) -> bool:
    """What the node says: all new tablets are its own, or none is."""
    node = ctx.record.source_node
    with translated(node), ctx.links.control(node).cursor() as cursor:
        return _owned(ctx, cursor)


def _owned(ctx: Context, cursor: Cursor) -> bool:
    node = ctx.record.source_node
    rows = {row.id: row.state for row in schema.read_tablets(cursor)}
    states = {rows.get(tablet.id) for tablet in ctx.record.targets}
    if states == {schema.OwnState.OWNED}:
        return True
    if schema.OwnState.OWNED in states:
        raise Refused(f"node {node} owns only some of the tablets that migration {ctx.id} makes")
    return False


def _swap(ctx: Context, cursor: Cursor, beside: Connection, work: list[reshard.Family]) -> None:
    # A validation that PostgreSQL insists on (a foreign key between the roots) must not keep everybody out for long.
    limit = max(1, round(ctx.settings.write_pause_budget * 4000))
    cursor.execute("SELECT set_config('statement_timeout', %s, true)", (f"{limit}ms",))
    old = [place.partition for place in ctx.source_places]
    reshard.keep_writers_out(cursor, ctx.roots, old, ctx.settings.lock_timeout)
    if _owned(ctx, cursor):
        return  # a commit whose answer was lost came through after we had asked: the locks had to wait for it
    run_together(cursor, [closed_statement(tablet.id for tablet in ctx.sources)])
    guards.refuse_closed(ctx, cursor.fetchall())
    guards.check_definitions(ctx, cursor, ctx.record.source_node)
    if ctx.record.mode is MigrationMode.READ_ONLY:
        if ctx.fence is None:
            raise Refused("the fence was raised by a predecessor")
        fence.check_standing(cursor, old, ctx.fence, ctx.settings.lock_timeout)
    with replay_transaction(ctx, beside) as last:
        for family in work if ctx.record.mode is MigrationMode.REPLICATE else ():
            replay_once(last, family)
        newest = _transaction_of(last)
    moment = _outlive(ctx, cursor, beside)
    reshard.keep_everybody_out(cursor, ctx.roots, old)
    for place in reversed(ctx.source_places_by_root()):  # a referenced root's rows go last, and come first
        partition.detach_locked(cursor, place.root, place.partition)
        partition.release_references(cursor, place.partition, ctx.settings.lock_timeout)
    shapes = read_shapes(ctx)
    for place in ctx.target_places_by_root():
        partition.grant(cursor, model_of(ctx, place, shapes), place.partition)
        partition.give_to_owner(cursor, model_of(ctx, place, shapes), place.partition)
        partition.add_triggers(cursor, model_of(ctx, place, shapes), place.partition)
        partition.attach(cursor, place)
        partition.drop_bound(cursor, place.partition, bound_constraint(ctx.id))
        if references.may_prepare(cursor):
            references.wake_references(cursor, place.partition)
    if snapshots.older_snapshots(beside, moment):  # those that wait for us
        for root in ctx.roots:
            reshard.refuse_old_snapshots(cursor, root, ctx.id, newest)
    new = tuple(place.partition for place in ctx.target_places_by_root())
    node = ctx.record.source_node
    gone = fence.Fence(ctx.id, ctx.leadership.epoch, fence.MOVED, 0, ctx.sources[0].id, node, ctx.sources[0].epoch)
    fence.mark_moved(cursor, old, gone, ctx.settings.lock_timeout)
    rows = [
        *(
            schema.OwnedTablet(tablet.id, tablet.epoch, schema.OwnState.OWNED, partitions_of(ctx.table, tablet))
            for tablet in ctx.record.targets
        ),
        # Still the node's own under the old map: a client with that map reaches the rows through the root, and holds
        # them where they are now.
        *(schema.OwnedTablet(tablet.id, tablet.epoch, schema.OwnState.OWNED, new, ctx.id) for tablet in ctx.sources),
    ]
    schema.write_tablets(cursor, rows)


def _transaction_of(cursor: Cursor) -> str:
    """The transaction that has written the last rows of the new partitions."""
    row = cursor.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    return str(row[0])


def _outlive(ctx: Context, cursor: Cursor, beside: Connection) -> datetime:
    """Waits, with writers kept out, for sessions whose snapshot is older than the last row of the new partitions.

    Not for those that wait for us: they are writers. In READ COMMITTED they take another snapshot when they continue,
    and with an older one they are refused. Raises `Overrun` if it takes longer than half of what writers may wait.
    Returns the moment from which snapshots are new enough.
    """
    row = cursor.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    until = ctx.clock.monotonic() + ctx.settings.write_pause_budget / 2
    with translated(ctx.record.source_node):
        moment = snapshots.moment_of(beside)
        while older := snapshots.older_snapshots(beside, moment, not_behind=int(row[0])):
            if ctx.clock.monotonic() > until:
                raise Overrun(f"waits for {older[0]}, which would not see the new partitions' rows")
            ctx.clock.sleep(0.002)
    return moment
