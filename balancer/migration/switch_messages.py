"""The messages of a switch, composed before anybody waits for them. Called by `steps_switch`, in this order.

Those that are known before the fence are composed right before it (`compose`); the others when first asked for. The
next fence discards them all.
"""

from collections.abc import Sequence

from psycopg import sql
from psycopg.rows import TupleRow

from balancer.directory.model import Tablet
from balancer.errors import Refused
from balancer.migration import comparison, guards
from balancer.migration.context import Context, partitions_of
from balancer.migration.control import Overrun
from balancer.migration.machine import Track
from balancer.migration.steps_copy import read_shapes
from balancer.migration.steps_finish import opening_statements, told_moved
from balancer.nodes import checksum, fence, partition, replication, schema
from balancer.nodes.closed import closed_statement
from balancer.nodes.connection import Statement, lock_timeout, statement_timeout
from balancer.nodes.names import Name
from balancer.nodes.shape import Shape


def compose(ctx: Context, names: list[Name], fencing: list[Statement]) -> None:
    """What will be sent while writers wait, as far as it is known beforehand."""
    source = ctx.record.source_node
    ctx.messages.clear()
    ctx.message("fence", source, lambda: fencing)
    if ctx.track is not Track.MOVE_REPLICATE:
        return  # writers wait for a whole copy
    hold(ctx, names)
    seal(ctx, names)
    moved(ctx, names)
    if not ctx.table.everywhere:
        shapes = read_shapes(ctx)
        ctx.message("rest", source, lambda: _rest_statements(ctx))
        close(ctx)
        attach(ctx, shapes)
        if not ctx.sequences:
            open_(ctx)


def fence_statements(ctx: Context, names: list[Name], standing: fence.Fence) -> list[Statement]:
    """What raises the fence, and what has to be true under its lock."""
    locks, triggers = fence.raise_statements(names, standing, ctx.settings.lock_timeout, ctx.source_ids)
    looks = closed_statement(ctx.source_ids), guards.definitions_statement(ctx, ctx.record.source_node)
    tablets = schema.tablet_statements([_fenced(ctx, tablet, standing) for tablet in ctx.sources])
    return [*locks, *looks, *triggers, *tablets]


def _fenced(ctx: Context, tablet: Tablet, standing: fence.Fence) -> schema.OwnedTablet:
    names = partitions_of(ctx.table, tablet)
    deadline = fence.deadline_of(standing)
    return schema.OwnedTablet(tablet.id, tablet.epoch, schema.OwnState.FENCED, names, ctx.id, deadline)


def hold(ctx: Context, names: list[Name]) -> Statement:
    """Takes the partitions' lock for as long as the transaction lasts, and checks the fence under it."""

    def make() -> list[Statement]:
        limit = sql.SQL("SET LOCAL idle_in_transaction_session_timeout TO {}").format(
            sql.Literal(f"{round(ctx.settings.fence_deadline * 1000)}ms")
        )
        return [limit, *fence.look_statements(names, ctx.settings.lock_timeout, ctx.source_ids)]

    return ctx.message("hold", ctx.record.source_node, make)


def _rest_statements(ctx: Context) -> list[Statement]:
    """Asks for each partition's changed rows that have not been compared."""
    rows = map(comparison.rows_of, read_shapes(ctx))
    return [checksum.changed_statement(one, ctx.id, index, most_rest(ctx)) for index, one in enumerate(rows)]


def seal(ctx: Context, names: list[Name]) -> Statement:
    """Seals the fence, with what must be true for it."""

    def make() -> list[Statement]:
        assert ctx.fence is not None
        look = fence.look_statements(names, ctx.settings.lock_timeout, ctx.source_ids)
        sealing = fence.seal_statements(names, ctx.fence, ctx.source_ids)
        return [guards.definitions_statement(ctx, ctx.record.source_node), *look, *sealing]

    return ctx.message("seal", ctx.record.source_node, make)


def moved(ctx: Context, names: list[Name]) -> Statement:
    """What says where the tablet went."""
    return ctx.message("moved", ctx.record.source_node, lambda: told_moved(ctx, names))


def close(ctx: Context) -> Statement:
    """What precedes ATTACH on the target."""
    node, names = ctx.record.target_node, [place.partition for place in ctx.target_places]
    return ctx.message(
        "close", node, lambda: [*_closing_statements(ctx, names), guards.definitions_statement(ctx, node)]
    )


def _closing_statements(ctx: Context, names: list[Name]) -> list[Statement]:
    """What precedes ATTACH: locks that keep DDL out, the end of the stream, the guard against everybody's writes."""
    lock = sql.SQL("LOCK TABLE ONLY {} IN SHARE UPDATE EXCLUSIVE MODE")
    return [
        lock_timeout(ctx.settings.lock_timeout),
        # What PostgreSQL insists on (a foreign key that must be checked) may take long, but not forever.
        statement_timeout(ctx.settings.write_pause_budget * 4 if ctx.track is Track.MOVE_REPLICATE else 0),
        *(lock.format(root.identifier) for root in ctx.roots),
        *([replication.disable_statement(ctx.id)] if ctx.track is Track.MOVE_REPLICATE else []),
        *fence.trigger_statements(names, ctx.guard, [ctx.moved.id]),
        *made_ready(ctx),
        schema.touch_statement(ctx.moved.id),
    ]


def made_ready(ctx: Context) -> list[Statement]:
    """What the target's transaction needs that makes it ready: the switch's number, and whether all that it relies on
    is here. That is looked at in this very transaction, whatever has become of the session that saw it arrive: the last
    marker of the stream, or, in read-only mode, the number that was written behind the copied rows."""
    if ctx.track is not Track.MOVE_REPLICATE:
        return [replication.switch_here_statement(ctx.id)]
    return [*replication.switch_statements(ctx.id, ctx.detail.switch), replication.arrived_statement(ctx.stream)]


def check_arrived(ctx: Context, rows: Sequence[TupleRow]) -> None:
    """Raises an error if the target has lost what had arrived there before the switch, by the last of `made_ready`."""
    node = ctx.record.target_node
    if ctx.track is not Track.MOVE_REPLICATE:
        if rows[0][0] != ctx.detail.switch:
            raise Overrun(f"node {node} has lost rows that were copied there: they will be copied again")
        return
    newest, missing = rows[0]
    if newest < ctx.detail.marker:
        raise Overrun(f"node {node} has lost changes that it had applied: they will be streamed again")
    if missing and not ctx.table.everywhere:  # the stream of a reference table forgets its old markers
        raise Refused(f"node {node} has lost changes that it had applied: did it go back in time?")


def attach(ctx: Context, shapes: tuple[Shape, ...]) -> Statement:
    """Makes the target's partitions parts of their roots."""
    return ctx.message("attach", ctx.record.target_node, lambda: _attaching_statements(ctx, shapes))


def _attaching_statements(ctx: Context, shapes: tuple[Shape, ...]) -> list[Statement]:
    found: list[Statement] = []
    for place, shape in zip(ctx.target_places, shapes, strict=True):  # referenced roots come first
        found += [partition.owner_statement(shape, place.partition), partition.attach_statement(place)]
    return found


def open_(ctx: Context) -> Statement:
    """What opens the target."""
    return ctx.message("open", ctx.record.target_node, lambda: opening_statements(ctx))


def most_rest(ctx: Context) -> int:
    """How many entries of the log of changes are read behind the fence at most, and one more."""
    return ctx.settings.verify_keys_in_fence * 4 + 1
