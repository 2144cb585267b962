"""What ends a migration, or keeps it from fencing, before it can hurt: DDL, exhausted resources, disk, transactions in
the way. Called by the steps; each raises an error that names what is wrong. A lag that does not shrink is handled in
`lag`.

About the disk: no query of plain PostgreSQL tells how much space is free, not even for a superuser (`pg_stat_file` and
`pg_ls_dir` give the sizes of files, never of what holds them). So a node's free space is known only where the bundle's
file gives its `disk`, and the planner uses that; `disk_budget` limits a single migration, and a disk that fills up
anyway ends the migration by name, with the source untouched.
"""

from collections.abc import Sequence

from psycopg import sql
from psycopg.rows import TupleRow

from balancer.errors import Refused, Unavailable
from balancer.migration.context import Context
from balancer.migration.control import Overrun
from balancer.migration.machine import Track
from balancer.nodes import blockers, catalog, fence, outside_keys, owners_code, references, root_facts
from balancer.nodes.blockers import WantedLock
from balancer.nodes.connection import Connection, Cursor, Statement, run_together, translated
from balancer.nodes.fingerprint import fingerprint_statement, fingerprints, read_fingerprints
from balancer.nodes.names import Name


def take_fingerprints(ctx: Context) -> None:
    """Remembers the fingerprint of every table concerned, before its definition is read."""
    ctx.note(fingerprints={})
    for node in _watched(ctx):
        with translated(node), ctx.links.control(node).cursor() as cursor:
            take_fingerprints_again(ctx, cursor, node)


def take_fingerprints_again(ctx: Context, cursor: Cursor, node: str) -> None:
    """After a change of our own that stays until the end."""
    found = fingerprints(cursor, _watched(ctx)[node])
    fresh = {f"{node}:{name}": digest for name, digest in found.items()}
    ctx.note(fingerprints={**ctx.detail.fingerprints, **fresh})


def check_fingerprints(ctx: Context) -> None:
    """Raises `Refused` if somebody has changed the definition of a table since the migration began.

    Takes no locks: only to notice early. What counts is `check_definitions`.
    """
    for node in _watched(ctx):
        with translated(node), ctx.links.control(node).cursor() as cursor:
            check_definitions(ctx, cursor, node)


def check_definitions(ctx: Context, cursor: Cursor, node: str) -> None:
    """The same for one node, in a transaction whose locks keep DDL out until it ends."""
    run_together(cursor, [definitions_statement(ctx, node)])
    compare_definitions(ctx, node, cursor.fetchall())


def definitions_statement(ctx: Context, node: str) -> Statement:
    """What `compare_definitions` compares, as part of a message that does more: writers may be waiting for its end."""
    if ctx.planned_on.get(node) is ctx.links.control(node):
        return sql.SQL("EXECUTE {}").format(_PLANNED)
    return fingerprint_statement(_watched(ctx)[node])


def plan_definitions(ctx: Context) -> None:
    """Has the servers plan that query before anybody waits: planning takes longer than answering."""
    for node, names in _watched(ctx).items():
        connection = ctx.links.control(node)
        if ctx.planned_on.get(node) is not connection:
            with translated(node):
                connection.execute(sql.SQL("PREPARE {} AS {}").format(_PLANNED, fingerprint_statement(names)))
            ctx.planned_on[node] = connection


_PLANNED = sql.Identifier("balancer definitions")


def compare_definitions(ctx: Context, node: str, rows: Sequence[TupleRow]) -> None:
    """Raises `Refused` if what `definitions_statement` has found is not what the migration began with."""
    for name, digest in read_fingerprints(_watched(ctx)[node], rows).items():
        if digest != ctx.detail.fingerprints.get(f"{node}:{name}"):
            raise Refused(f"the definition of {name} on node {node} was changed while the migration ran")


def refuse_closed(ctx: Context, rows: Sequence[TupleRow]) -> None:
    """Raises `Refused` if `closed_statement` has found one: only a person may let anybody continue there."""
    for (number,) in rows:
        node = ctx.record.source_node
        raise Refused(f"tablet {number} is closed on node {node}, which has gone back in time")


def _watched(ctx: Context) -> dict[str, list[Name]]:
    """ATTACH and DETACH of other tablets leave a root's own definition alone."""
    sources = [place.partition for place in ctx.source_places]
    return {ctx.record.target_node: [*ctx.roots], ctx.record.source_node: [*sources, *ctx.roots]}


def standing(ctx: Context) -> None:
    """Raises `Refused` unless the fence still stands: what was read behind one that does not stand proves nothing."""
    if ctx.fence is None:
        return
    names = [place.partition for place in ctx.source_places]
    ctx.reopen()
    with ctx.source() as cursor:
        fence.check_standing(cursor, names, ctx.fence, ctx.settings.lock_timeout)


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
    """Raises `Refused` if a root, on either node, has become one that no tablet can leave or enter."""
    key = [column.name for column in ctx.table.key_columns]
    for node in dict.fromkeys((ctx.record.source_node, ctx.record.target_node)):
        try:
            with translated(node), ctx.links.control(node).cursor() as cursor:
                for root in ctx.roots:
                    catalog.read_root(cursor, root, whole=ctx.table.whole)
                outside_keys.check_outside_keys(cursor, ctx.roots, key)
        except Refused as error:
            raise Refused(f"on node {node}: {error}") from error


def check_owners_code(ctx: Context) -> None:
    """Raises `Refused` if code of the tables' owners would run with our rights, on either node."""
    sources = [place.partition for place in ctx.source_places]
    for node in dict.fromkeys((ctx.record.source_node, ctx.record.target_node)):
        with translated(node), ctx.links.control(node).cursor() as cursor:
            tables = [*ctx.roots, *(sources if node == ctx.record.source_node else ())]
            check_owners_code_of(ctx, cursor, node, tables)


def look_at_source(ctx: Context, connection: Connection) -> None:
    """Raises `Refused` if the owner has given the source's partitions code that the next query would run as us.

    Outside of a transaction, so that the newest catalog is seen. PostgreSQL plans every chunk again, and a lock that
    keeps out new indexes and statistics would keep out VACUUM, and other chunks, for as long as a copy takes. So this
    is checked before each chunk, and what an owner does in the moment between is the owner's affair (`docs/limits.md`).
    """
    node = ctx.record.source_node
    with translated(node), connection.cursor() as cursor:
        check_owners_code_of(ctx, cursor, node, [place.partition for place in ctx.source_places])


def check_owners_code_of(ctx: Context, cursor: Cursor, node: str, tables: Sequence[Name]) -> None:
    """The same for some tables, inside the caller's transaction."""
    if ctx.settings.trust_table_owners:
        return
    try:
        owners_code.check_owners_code(cursor, tables)
    except Refused as error:
        raise Refused(f"on node {node}: {error}") from error


def check_capacity(ctx: Context) -> None:
    """Raises `Unavailable` naming what is used up: other moves and standbys may release it."""
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
    """Remembers how long ATTACH will take to check foreign keys among the roots, by running the same query.

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


def clear_the_way(ctx: Context, node: str, tables: Sequence[Name], wanted: WantedLock) -> None:
    """Raises `Overrun` naming the oldest transaction that a lock would wait for; ends it if that is allowed."""
    with ctx.node(node) as cursor:
        found = blockers.find_blockers(cursor, tables, wanted)
        _send_away(ctx, cursor, found)
    lasting = [blocker for blocker in found if blocker.age > ctx.settings.lock_timeout]
    if lasting:
        raise Overrun(f"waits for {lasting[0]} on node {node}")


def lasting_blocker(
    ctx: Context, node: str, tables: Sequence[Name], wanted: WantedLock, age: float
) -> blockers.Blocker | None:
    """The oldest transaction that a lock would wait for, if it is that old. Vacuums are sent away, and whatever the
    operator has allowed to end."""
    with ctx.node(node) as cursor:
        found = blockers.find_blockers(cursor, tables, wanted)
        _send_away(ctx, cursor, found)
    return found[0] if found and found[0].age > age else None


def name_blockers(ctx: Context, node: str, tables: Sequence[Name], wanted: WantedLock) -> None:
    """After a lock was not granted in time: raises `Overrun` naming its holder, if there still is one; ends it if that
    is allowed."""
    try:
        with ctx.node(node) as cursor:
            found = blockers.find_blockers(cursor, tables, wanted)
            _send_away(ctx, cursor, found)
    except Unavailable:
        return  # the server itself is gone: the error at hand says so
    if found:
        raise Overrun(f"waits for {found[0]} on node {node}")


def _send_away(ctx: Context, cursor: Cursor, found: Sequence[blockers.Blocker]) -> None:
    """A vacuum would give way by itself, but only to a session that waits longer than we do: it is cancelled."""
    for blocker in found:
        if blocker.what == "autovacuum worker":
            blockers.cancel(cursor, blocker)
        elif ctx.settings.terminate_blockers and blocker.age > ctx.settings.blocker_age:
            blockers.terminate(cursor, blocker)


def total_size(cursor: Cursor, partitions: Sequence[Name]) -> int:
    """Size in bytes of these partitions with their indexes."""
    row = cursor.execute(
        "SELECT coalesce(sum(pg_total_relation_size(r)), 0)::bigint FROM unnest(%s::regclass[]) AS r",
        ([str(partition) for partition in partitions],),
    ).fetchone()
    return int(row[0]) if row else 0
