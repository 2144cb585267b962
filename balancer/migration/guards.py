"""What ends a migration, or keeps it from fencing, before it can hurt: DDL, exhausted resources, disk, transactions in
the way. Called by the steps; each raises an error that names what is wrong. A lag that does not shrink is handled in
`stream`.

About the disk: no query of plain PostgreSQL tells how much space is free, not even for a superuser (`pg_stat_file` and
`pg_ls_dir` give the sizes of files, never of what holds them). So a node's free space is known only where the bundle's
file gives its `disk`, and the planner uses that; `disk_budget` limits a single migration, and a disk that fills up
anyway ends the migration by name, with the source untouched.

Which mode a migration gets if nobody has asked for one: replicate, or read-only where that cannot work.

Called in `planned`, before anything is made: both modes begin alike, and the choice is journaled with the next state. A
temporary shortage (a slot that others use) is waited for and is not a reason to hold writers back for a whole copy.

Renews the fence of a read-only migration while its rows are copied, in a thread with a connection of its own.

If the daemon dies, nobody renews and the fence ends by itself. A renewal that fails (a vacuum holds the lock, the
server is away for a moment) is retried while the fence stands; after that the error is raised when the block is left,
and sealing would refuse such a fence anyway.
"""

import threading
from collections.abc import Sequence

from psycopg import sql
from psycopg.rows import TupleRow

from balancer.directory.model import MigrationKind, MigrationMode
from balancer.errors import OutcomeUnknown, Refused, Unavailable
from balancer.migration.concurrency import Background
from balancer.migration.context import Context
from balancer.migration.machine import Track
from balancer.migration.retries import Overrun
from balancer.naming import Name
from balancer.nodes.catalog import foreign_keys, owners_code, roots
from balancer.nodes.catalog.preflight import why_not_receive, why_not_send
from balancer.nodes.catalog.shapes import (
    Shape,
    fingerprint_statement,
    fingerprints,
    keys_of_other_types,
    read_fingerprints,
    read_shape,
)
from balancer.nodes.schema import blockers
from balancer.nodes.schema.blockers import WantedLock
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.connection import Connection, Cursor, Statement, run_together, translated
from balancer.nodes.session.holder import NodeSessions
from balancer.nodes.tablets import fence, references
from balancer.nodes.tablets.fence import renew_fence


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
                sides.append(roots.read_facts(cursor, root))
        for text in roots.differences(sides[0], sides[1], ctx.record.source_node, ctx.record.target_node):
            raise Refused(f"{root} differs between the nodes: {text}")


def check_roots(ctx: Context) -> None:
    """Raises `Refused` if a root, on either node, has become one that no tablet can leave or enter."""
    key = [column.name for column in ctx.table.key_columns]
    for node in dict.fromkeys((ctx.record.source_node, ctx.record.target_node)):
        try:
            with translated(node), ctx.links.control(node).cursor() as cursor:
                for root in ctx.roots:
                    roots.read_root(cursor, root, whole=ctx.table.whole)
                foreign_keys.check_outside_keys(cursor, ctx.roots, key)
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
    a superuser's role leaves nothing to check (`nodes.tablets.references`).
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


RETRY_SECONDS = 0.2


class FenceKeeper:
    """A block during which the context's fence does not expire."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._running: Background[None] = Background(self._keep, "fence-keeper")

    def __enter__(self) -> "FenceKeeper":
        if self._ctx.fence is None:
            raise Refused("there is no fence to keep: the migration must begin again")
        self._running.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._running.__exit__(kind, error, trace)
        if error is None:
            self._running.result()

    def _keep(self, stop: threading.Event) -> None:
        ctx = self._ctx
        assert ctx.fence is not None
        seconds = ctx.settings.read_only_fence_deadline
        links = NodeSessions(ctx.links.address, ctx.id)
        try:
            while not stop.wait(seconds / 3):
                self._renew(links, seconds, stop)
        finally:
            links.close()

    def _renew(self, links: NodeSessions, seconds: float, stop: threading.Event) -> None:
        ctx, node = self._ctx, self._ctx.record.source_node
        assert ctx.fence is not None
        names = [place.partition for place in ctx.source_places]
        until = ctx.clock.monotonic() + seconds / 2  # a third of its time has passed: then it still has a sixth left
        while True:
            ctx.leadership.check()
            try:
                with node_transaction(links.control(node), ctx.leadership.epoch, node) as cursor:
                    # Recorded before the commit, whose answer may be lost: from then on either deadline may stand.
                    ctx.fence = renew_fence(cursor, names, ctx.fence, seconds, ctx.settings.lock_timeout)
            except (Unavailable, OutcomeUnknown):
                links.close()
                if ctx.clock.monotonic() > until:
                    raise
                if stop.wait(RETRY_SECONDS):
                    return  # the fence still stands, as far as is known; sealing asks the node itself
            else:
                return
