"""Which mode a migration gets if nobody has asked for one: replicate, or read-only where that cannot work.

Called in `planned`, before anything is made: both modes begin alike, and the choice is journaled with the next state. A
temporary shortage (a slot that others use) is waited for and is not a reason to hold writers back for a whole copy.
"""

from balancer.directory.model import MigrationKind, MigrationMode
from balancer.errors import Refused
from balancer.migration.context import Context
from balancer.nodes.connection import translated
from balancer.nodes.preflight import why_not_receive, why_not_send
from balancer.nodes.shape import Shape, keys_of_other_types, read_shape


def choose_mode(ctx: Context) -> None:
    """Makes the migration read-only where replicate cannot work. Raises `Refused`, saying why, if it was asked for."""
    if ctx.record.mode is not MigrationMode.REPLICATE:
        return
    why = why_not_replicate(ctx)
    if not why:
        return
    if not ctx.detail.fallback:
        raise Refused(f"{why}: use mode read-only")
    ctx.become_read_only(why)


def why_not_replicate(ctx: Context) -> str:
    """What keeps these tablets from being replicated, in words; empty: nothing does."""
    source, target = ctx.record.source_node, ctx.record.target_node
    with translated(source), ctx.links.control(source).cursor() as cursor:
        shapes = [read_shape(cursor, place.partition) for place in ctx.source_places]
        odd = [
            f"{shape.name}: {name} {kind}"
            for shape in shapes
            for name, kind in keys_of_other_types(cursor, shape.name, shape.key).items()
        ]
        sending = why_not_send(cursor)
    without = [str(shape.name) for shape in shapes if not shape.key]
    if without:
        return f"{', '.join(without)} has no primary key or unique index as replica identity"
    if odd:
        return f"changed rows are found by their key, and of an extension's type that is not sure ({', '.join(odd)})"
    if ctx.record.operation is not MigrationKind.MOVE:
        return _why_no_mirror(ctx, shapes)  # a split needs a key and no stream
    late = [str(shape.name) for shape in shapes if _is_checked_late(shape)]
    if late:
        return f"the primary key of {', '.join(late)} is deferrable, so it cannot be a replica identity"
    if sending:
        return f"node {source}: {sending}"
    with translated(target), ctx.links.control(target).cursor() as cursor:
        receiving = why_not_receive(cursor)
    return f"node {target}: {receiving}" if receiving else ""


def _why_no_mirror(ctx: Context, shapes: list[Shape]) -> str:
    """A row is looked for in the new partition that its key belongs to."""
    for place, shape in zip(ctx.source_places, shapes, strict=True):
        if missing := [column.name for column in place.columns if column.name not in shape.key]:
            return f"the replica identity of {shape.name} does not contain {', '.join(missing)}, by which it is split"
    return ""


def _is_checked_late(shape: Shape) -> bool:
    """PostgreSQL takes no such key for a replica identity, and refuses UPDATE and DELETE while it publishes them."""
    late = any(index.constraint == "p" and index.deferrable for index in shape.indexes)
    return shape.replica_identity == "d" and late
