"""Where a key lives: the coordinator's answer for applications that do not keep the directory themselves."""

from collections.abc import Sequence

from balancer.api.keytext import position_of
from balancer.api.shapes import RouteShape
from balancer.directory.handover_record import signpost
from balancer.directory.snapshot import Snapshot


def route(snapshot: Snapshot, table_name: str, key: Sequence[str], with_dsn: bool) -> RouteShape:
    """The owner of a key."""
    table = snapshot.table(table_name)
    tablet = snapshot.locate(table.id, position_of(table, key))
    node = snapshot.nodes.get(tablet.node)
    return RouteShape(
        table=table.name,
        tablet=tablet.id,
        epoch=tablet.epoch,
        node=tablet.node,
        dsn=node.dsn if node and with_dsn else "",
        state=tablet.state,
        moving=snapshot.migration_of(tablet.id) is not None,
        version=snapshot.version,
        handed_over=signpost(snapshot, table.id),
    )


def version_of(tag: str | None) -> int | None:
    """The directory's version in our own ETag; None: there is none, or it is somebody else's."""
    text = (tag or "").removeprefix("W/").strip('"')
    return int(text) if text.isdecimal() and len(text) < 20 else None
