"""What ends a migration, or keeps it from fencing, before it can hurt: DDL, what is used up, disk, transactions in the
way. Called by the steps; each raises an error that names what is wrong. A lag that does not shrink is in `lag`.

Of the disk: no query of plain PostgreSQL tells how much space is free, not even a superuser's (`pg_stat_file` and
`pg_ls_dir` give sizes of files, never of what holds them). So the free space of a node is known only where the bundle's
file gives its `disk`, and the planner counts with that; `disk_budget` limits a single migration, and a disk that fills
up all the same ends the migration by name, with the source untouched.
"""

from collections.abc import Sequence

from balancer.errors import Refused, Unavailable
from balancer.migration.context import Context
from balancer.migration.control import Overrun
from balancer.migration.machine import Track
from balancer.nodes import blockers, catalog, outside_keys, references, root_facts, shape
from balancer.nodes.connection import Cursor, translated
from balancer.nodes.names import Name


def take_fingerprints(ctx: Context) -> None:
    """Remembers what every table concerned looks like now."""
    found = {}
    for node, names in _watched(ctx).items():
        with translated(node), ctx.links.control(node).cursor() as cursor:
            for name in names:
                found[f"{node}:{name}"] = shape.fingerprint(cursor, name)
    ctx.note(fingerprints=found)


def check_fingerprints(ctx: Context) -> None:
    """Raises `Refused` if somebody has changed the definition of a table since the migration began."""
    for node, names in _watched(ctx).items():
        with translated(node), ctx.links.control(node).cursor() as cursor:
            for name in names:
                before = ctx.detail.fingerprints.get(f"{node}:{name}")
                if before is not None and shape.fingerprint(cursor, name) != before:
                    raise Refused(f"the definition of {name} on node {node} was changed while the migration ran")


def _watched(ctx: Context) -> dict[str, list[Name]]:
    sources = [place.partition for place in ctx.source_places]
    watched = {ctx.record.source_node: [*sources]}
    if ctx.record.target_node != ctx.record.source_node:
        # ATTACH and DETACH of other tablets leave a root's own definition alone.
        watched[ctx.record.source_node] += ctx.roots
        watched[ctx.record.target_node] = list(ctx.roots)
    return watched


def check_roots_agree(ctx: Context) -> None:
    """Raises `Refused` naming the first difference between the roots of both nodes."""
    for root in ctx.roots:
        sides = []
        for node in (ctx.record.source_node, ctx.record.target_node):
            with translated(node), ctx.links.control(node).cursor() as cursor:
                sides.append(root_facts.read_facts(cursor, root))
        for text in root_facts.differences(sides[0], sides[1], ctx.record.source_node, ctx.record.target_node):
            raise Refused(f"{root} differs between the nodes: {text}")


def check_roots(ctx: Context) -> None:
    """Raises `Refused` if a root, on either node, has come to be what no tablet can leave or enter."""
    key = [column.name for column in ctx.table.columns]
    for node in dict.fromkeys((ctx.record.source_node, ctx.record.target_node)):
        try:
            with translated(node), ctx.links.control(node).cursor() as cursor:
                for root in ctx.roots:
                    catalog.read_root(cursor, root)
                outside_keys.check_outside_keys(cursor, ctx.roots, key)
        except Refused as error:
            raise Refused(f"on node {node}: {error}") from error


def check_capacity(ctx: Context) -> None:
    """Raises `Unavailable` naming what is used up: others' moves and standbys may give it back."""
    source = ctx.links.control(ctx.record.source_node)
    with translated(ctx.record.source_node):
        row = source.execute(_SOURCE_CAPACITY).fetchone()
    assert row is not None
    slots, senders = row
    node = ctx.record.source_node
    if slots <= 0:
        raise Unavailable(f"node {node} has no replication slot left: raise max_replication_slots")
    if senders <= 0:
        raise Unavailable(f"node {node} has no WAL sender left: raise max_wal_senders")
    with translated(ctx.record.target_node):
        row = ctx.links.control(ctx.record.target_node).execute(_TARGET_CAPACITY).fetchone()
    assert row is not None
    if row[0] <= 0:
        raise Unavailable(
            f"node {ctx.record.target_node} has no worker left for a subscription:"
            " raise max_logical_replication_workers and max_worker_processes"
        )


_SOURCE_CAPACITY = """
    SELECT current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots),
           current_setting('max_wal_senders')::int - (SELECT count(*) FROM pg_stat_replication)
"""
_TARGET_CAPACITY = """
    SELECT current_setting('max_logical_replication_workers')::int
           - (SELECT count(*) FROM pg_stat_subscription WHERE pid IS NOT NULL)
"""


def check_disk(ctx: Context, size: int) -> None:
    """Raises `Refused` if the tablet is larger than a migration may add on the target."""
    limit = ctx.settings.disk_budget
    if limit is not None and size > limit:
        raise Refused(f"the tablet has {size} bytes; a migration may add {limit} on node {ctx.record.target_node}")


def check_references(ctx: Context, cursor: Cursor, limit: float) -> None:
    """Remembers how long ATTACH will check foreign keys among the roots, by asking what it asks.

    Raises `Refused` if writers would wait for that longer than allowed; a copy behind a fence is not limited. A move by
    a superuser's role leaves nothing to check (`nodes.references`).
    """
    seconds = 0.0
    for reference in references.read_references(cursor, ctx.roots):
        if references.unchecked(cursor, reference, ctx.target_places):
            began = ctx.clock.monotonic()
            references.count_orphans(cursor, reference, ctx.target_places)
            seconds += ctx.clock.monotonic() - began
    if seconds > limit and ctx.track is not Track.MOVE_READ_ONLY:
        raise Refused(
            f"the foreign key between the roots takes {seconds * 1000:.0f} ms to check while everybody waits, and"
            f" {limit * 1000:.0f} ms are allowed: raise write_pause_budget, or move with a superuser's role, which need"
            " not check it"
        )
    ctx.note(attach=seconds)


def clear_the_way(ctx: Context, partitions: Sequence[Name]) -> None:
    """Raises `Overrun` naming the oldest transaction that a fence would wait for; ends it if that is allowed."""
    source = ctx.links.control(ctx.record.source_node)
    with translated(ctx.record.source_node):
        found = blockers.find_blockers(source, partitions)
        for blocker in found:
            if blocker.what == "autovacuum worker":
                blockers.cancel(source, blocker)
            elif ctx.settings.terminate_blockers and blocker.age > ctx.settings.blocker_age:
                blockers.terminate(source, blocker)
    lasting = [blocker for blocker in found if blocker.age > ctx.settings.lock_timeout]
    if lasting:
        raise Overrun(f"waits for {lasting[0]}")


def name_blockers(ctx: Context, partitions: Sequence[Name]) -> None:
    """After a lock was not granted in time: raises `Overrun` naming who holds it, if somebody still does.

    A vacuum would give way by itself, but only to who waits for longer than we do: it is cancelled.
    """
    try:
        source = ctx.links.control(ctx.record.source_node)
        with translated(ctx.record.source_node):
            found = blockers.find_blockers(source, partitions)
            for vacuum in (blocker for blocker in found if blocker.what == "autovacuum worker"):
                blockers.cancel(source, vacuum)
    except Unavailable:
        return  # the server itself is gone: that is said by the error at hand
    if found:
        raise Overrun(f"waits for {found[0]}")


def total_size(cursor: Cursor, partitions: Sequence[Name]) -> int:
    """Bytes of these partitions with their indexes."""
    row = cursor.execute(
        "SELECT coalesce(sum(pg_total_relation_size(r)), 0)::bigint FROM unnest(%s::regclass[]) AS r",
        ([str(partition) for partition in partitions],),
    ).fetchone()
    return int(row[0]) if row else 0
