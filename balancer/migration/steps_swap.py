"""The swap of a split or merge, and what comes after it. Called by the runner.

The swap is one transaction on the node: the roots' locks first (nobody is refused, everybody waits some milliseconds),
the last changes replayed and compared, old partitions out, new ones in. The directory follows. Between the two the
node is right under both maps: an old tablet stays `owned` there until it is retired.
"""

from balancer.directory.model import MigrationMode
from balancer.errors import Refused, Unavailable
from balancer.migration import guards
from balancer.migration.context import Context, partitions_of
from balancer.migration.control import Overrun
from balancer.migration.machine import Event
from balancer.migration.steps_reshard import catch_up, families, replay_once
from balancer.nodes import capture, fence, partition, reshard, schema
from balancer.nodes.connection import Cursor, translated
from balancer.nodes.objects import bound_constraint


def swapping(ctx: Context) -> Event:
    """Swaps, unless that has happened already. Raises `Overrun` if it may not go on from what it knows."""
    if swapped(ctx):
        return Event.STEP
    if ctx.prepared is None:
        raise Overrun("the swap was interrupted before it happened")
    ctx.note(fences=ctx.detail.fences + 1)
    if ctx.record.mode is MigrationMode.REPLICATE:
        catch_up(ctx)
        guards.clear_the_way(ctx, ctx.roots)
    guards.check_fingerprints(ctx)
    work = families(ctx)
    began = ctx.clock.monotonic()
    try:
        with ctx.source() as cursor:
            _swap(ctx, cursor, work)
    except Unavailable as error:
        guards.name_blockers(ctx, ctx.roots)
        # Nothing was applied, so writers go on meanwhile; an unknown outcome is another error.
        raise Overrun(str(error)) from error
    ctx.note(pause=ctx.clock.monotonic() - (ctx.fenced_at or began))
    ctx.fenced_at = None
    return Event.STEP


def retiring(ctx: Context) -> Event:
    """Old tablets are told to be gone; their rows go after a grace."""
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
        for number, place in reversed(list(enumerate(ctx.source_places))):
            capture.drop_capture(cursor, ctx.id, number, place.partition)
            partition.drop_partition(cursor, place.partition)
    return Event.STEP


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


def _swap(ctx: Context, cursor: Cursor, work: list[reshard.Family]) -> None:
    # A validation that PostgreSQL insists on (a foreign key between the roots) must not keep everybody out for long.
    limit = max(1, round(ctx.settings.write_pause_budget * 4000))
    cursor.execute("SELECT set_config('statement_timeout', %s, true)", (f"{limit}ms",))
    reshard.lock_roots(cursor, ctx.roots, ctx.settings.lock_timeout)
    if _owned(ctx, cursor):
        return  # a commit whose answer was lost came through after we had asked: the locks had to wait for it
    old = [place.partition for place in ctx.source_places]
    if ctx.record.mode is MigrationMode.REPLICATE:
        for family in work:
            replay_once(cursor, family)
    else:
        if ctx.fence is None:
            raise Refused("the fence was raised by a predecessor")
        fence.check_standing(cursor, old, ctx.fence, ctx.settings.lock_timeout)
    for place in reversed(ctx.source_places_by_root()):  # a referenced root's rows go last, and come first
        partition.detach_locked(cursor, place.root, place.partition)
        partition.release_references(cursor, place.partition, ctx.roots, ctx.settings.lock_timeout)
    for place in ctx.target_places_by_root():
        partition.attach(cursor, place, bound_constraint(ctx.id))
    node = ctx.record.source_node
    gone = fence.Fence(ctx.id, ctx.leadership.epoch, fence.MOVED, 0, ctx.sources[0].id, node, ctx.sources[0].epoch)
    fence.mark_moved(cursor, old, gone, ctx.settings.lock_timeout)
    rows = [
        *(
            schema.OwnedTablet(tablet.id, tablet.epoch, schema.OwnState.OWNED, partitions_of(ctx.table, tablet))
            for tablet in ctx.record.targets
        ),
        # Still its own under the old map: whoever has that reaches the rows through the root.
        *(
            schema.OwnedTablet(tablet.id, tablet.epoch, schema.OwnState.OWNED, partitions_of(ctx.table, tablet), ctx.id)
            for tablet in ctx.sources
        ),
    ]
    schema.write_tablets(cursor, rows)
