"""Makes a table ready for messages: gives it an outbox and an inbox as further roots, however it came to be.

Order: the two roots on every node; then, while no tablet of the table migrates, their partitions on each tablet's
owner, empty, and the directory's commit, which makes them roots of the table. The commit is refused if a migration has
begun, or a tablet has moved, meanwhile; partitions that were made for it are then dropped, and it is retried. Then each
node is told. An interruption at any point loses nothing: run it again.

`tell_node` is also what the leader calls for every node, again and again: nodes join, and files change.

Removes the outbox and the inbox from a table: undoes `enable`.

Order: on every node both roots are *closed*, by a constraint that no row satisfies, which PostgreSQL accepts only if
there are no rows; then the directory's commit, which is refused if a migration has begun, or a tablet has moved, since
the map was read; then the roots are dropped. So nothing can be in them at the commit, nor arrive later, when no move
would carry it. Committing first could leave a message behind at a former owner; dropping first, an interruption would
leave tablets without partitions that the directory gives them. An interruption before the commit leaves closed roots:
messages wait or are refused at `send`, and either command, run again, ends that. One after the commit leaves empty
roots that nobody uses: run it again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from balancer.clock import Clock
from balancer.directory.contract import Directory
from balancer.directory.model import INBOX, OUTBOX, Put, RangeBounds, Table, Tablet, Transaction
from balancer.directory.snapshot import Snapshot
from balancer.errors import Conflict, Refused, Unavailable
from balancer.features.messages.roots import (
    CLOSED,
    Handlers,
    KeyColumns,
    MessageRoots,
    grant_messages,
    make_message_roots,
    open_message_roots,
    tell_handlers,
    tell_message_tables,
)
from balancer.naming import Name, parse_name, partition_name
from balancer.nodes.catalog.bounds import KeyRange, Part
from balancer.nodes.catalog.roots import read_root
from balancer.nodes.schema.install import install_schema, upgrade_schema
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.connection import Connection, Cursor
from balancer.nodes.tablets.partition import create_partition, drop_empty
from balancer.settings import Settings

BATCH = 32  # tablets per transaction: each has two partitions, and the lock table is small
PAUSE_BETWEEN = 0.5
_LOCK = 0x6D657374  # classid of an advisory lock
_LEAVES = """
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = to_regclass(%s)
"""


@dataclass(frozen=True, slots=True)
class Switched:
    """What became of it."""

    table: Table
    tablets: int
    """How many were given partitions for messages; 0: it was ready before."""


def message_roots(table: Table) -> MessageRoots:
    """Where a table's messages are, or will be: next to its first root."""
    first = parse_name(table.roots[0])
    outbox, inbox = (Name(first.schema, word.format(table.id)) for word in (OUTBOX, INBOX))
    return MessageRoots(table.name, first, outbox, inbox)


def message_tables(snapshot: Snapshot) -> list[Table]:
    """Those that take part in messages."""
    return [table for table in snapshot.tables.values() if table.message_roots is not None]


def mail_leaf(table: Table, tablet: Tablet, which: int) -> Name:
    """A tablet's outbox (0) or inbox (1)."""
    assert table.message_roots is not None, "only tables that have messages are asked"
    number = table.message_roots[which]
    root = parse_name(table.roots[number])
    return Name(root.schema, tablet.partitions[number]) if tablet.partitions else partition_name(root, tablet.id)


def message_handlers(settings: Settings) -> Handlers:
    """What all files declare."""
    return {name: shape.messages for bundle in settings.bundles.values() for name, shape in bundle.tables.items()}


def check_switchable(snapshot: Snapshot, name: str) -> Table:
    """Raises `Refused` for a table that cannot have messages."""
    table = snapshot.table(name)
    if table.whole:
        raise Refused(f"table {name} has layout {table.layout}: messages need a table with a key")
    return table


def switch_on(
    name: str,
    directory: Directory,
    nodes: Mapping[str, Connection],
    handlers: Handlers,
    *,
    cluster: str,
    author: str,
    clock: Clock,
    patience: float = 60.0,
    tell: Callable[[str], None] = lambda _: None,
) -> Switched:
    """Makes the table ready on these nodes, all of its bundle. Idempotent."""
    snapshot = directory.snapshot()
    table = check_switchable(snapshot, name)
    roots = message_roots(table)
    for node, connection in nodes.items():
        install_schema(connection, cluster, node)
        with node_transaction(connection, snapshot.epoch, node) as cursor:
            if make_message_roots(cursor, roots):
                tell(f"outbox and inbox of table {name} are made on node {node}")
            grant_messages(cursor, roots)
    made = 0
    with alone(nodes, table):
        for node, connection in nodes.items():
            with node_transaction(connection, snapshot.epoch, node) as cursor:
                open_message_roots(cursor, roots)
        if table.message_roots is None:
            made = _Growth(name, directory, nodes, author, tell).run(clock, patience)
    snapshot = directory.snapshot()
    for node, connection in nodes.items():
        with node_transaction(connection, snapshot.epoch, node) as cursor:
            tell_node(cursor, snapshot, handlers, table.bundle)
            tell_partitions(cursor, snapshot, snapshot.table(name), node)
    return Switched(snapshot.table(name), made)


def tell_node(cursor: Cursor, snapshot: Snapshot, handlers: Handlers, bundle: str) -> None:
    """Brings a node in line: roots, grants, tables and handlers; inside the caller's `node_transaction`."""
    upgrade_schema(cursor)
    ready = message_tables(snapshot)
    keys: dict[str, KeyColumns] = {
        table.name: [(column.name, str(column.type)) for column in table.key_columns] for table in ready
    }
    here = [message_roots(table) for table in ready if table.bundle == bundle]
    for roots in here:
        make_message_roots(cursor, roots)
        if _there(cursor, roots.outbox):
            grant_messages(cursor, roots)
    tell_message_tables(cursor, [(roots, keys[roots.table]) for roots in here])
    tell_handlers(cursor, handlers, keys)


def _there(cursor: Cursor, name: Name) -> bool:
    row = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (str(name),)).fetchone()
    return bool(row and row[0])


@contextmanager
def alone(nodes: Mapping[str, Connection], table: Table) -> Iterator[None]:
    """One process at a time: it drops partitions that it takes for strays, and opens what another closes."""
    connection = nodes[min(nodes)]
    row = connection.execute("SELECT pg_try_advisory_lock(%s, %s::int)", (_LOCK, table.id)).fetchone()
    if row is None or not row[0]:
        raise Refused(f"another process changes the messages of table {table.name} just now")
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("SELECT pg_advisory_unlock(%s, %s::int)", (_LOCK, table.id))


@dataclass(frozen=True, slots=True)
class _Growth:
    """A table that is given two roots."""

    name: str
    directory: Directory
    nodes: Mapping[str, Connection]
    author: str
    tell: Callable[[str], None]

    def run(self, clock: Clock, patience: float) -> int:
        """How many tablets were given partitions; 0: somebody else was faster."""
        deadline = clock.monotonic() + patience
        while True:
            snapshot = self.directory.snapshot()
            table = snapshot.table(self.name)
            if table.message_roots is not None:
                return 0
            busy = [one.id for one in snapshot.migrations.values() if not one.finished and one.table == table.id]
            last: Exception | None = None
            try:
                if not busy:
                    return self._try(snapshot, table)
                self.tell(f"waiting for migration {busy[0]} to end")
            except (Conflict, Refused) as error:
                self.tell(f"once more: {error}")
                last = error
            if clock.monotonic() > deadline:
                why = last or f"table {self.name} was migrated all the time for {patience:.0f} s"
                raise Unavailable(f"{why}; say `balancer pause` first") from last
            clock.sleep(PAUSE_BETWEEN)

    def _try(self, snapshot: Snapshot, table: Table) -> int:
        roots = message_roots(table)
        tablets = list(snapshot.tablets(table.id))
        for node, connection in self.nodes.items():
            mine = [tablet for tablet in tablets if tablet.node == node]
            _drop_strays(connection, snapshot.epoch, node, roots, mine)
            for at in range(0, len(mine), BATCH):
                with node_transaction(connection, snapshot.epoch, node) as cursor:
                    _make_partitions(cursor, roots, mine[at : at + BATCH])
                self.tell(f"partitions for {min(at + BATCH, len(mine))} of {len(mine)} tablets on node {node}")
        grown = replace(table, roots=(*table.roots, str(roots.outbox), str(roots.inbox)))
        changes = (Put(grown), *(Put(_grown(tablet, roots)) for tablet in tablets))
        self.directory.commit(Transaction(changes, snapshot.version, f"messages of table {table.name}", self.author))
        return len(tablets)


def _grown(tablet: Tablet, roots: MessageRoots) -> Tablet:
    if not tablet.partitions:
        return tablet  # its partitions are named after its number
    added = (partition_name(root, tablet.id).name for root in (roots.outbox, roots.inbox))
    return replace(tablet, partitions=(*tablet.partitions, *added))


def _make_partitions(cursor: Cursor, roots: MessageRoots, tablets: Sequence[Tablet]) -> None:
    for name in (roots.outbox, roots.inbox):
        root = read_root(cursor, name)
        for tablet in tablets:
            leaf = partition_name(name, tablet.id)
            if not _there(cursor, leaf):
                create_partition(cursor, root, leaf, _part(tablet))


def _part(tablet: Tablet) -> Part:
    bounds = tablet.bounds
    return KeyRange(bounds.lower, bounds.upper) if isinstance(bounds, RangeBounds) else bounds


def _drop_strays(connection: Connection, epoch: int, node: str, roots: MessageRoots, mine: Sequence[Tablet]) -> None:
    """Drops what was left by an attempt whose commit was refused because a tablet had moved, or had become others."""
    for name in (roots.outbox, roots.inbox):
        wanted = {partition_name(name, tablet.id).name for tablet in mine}
        with node_transaction(connection, epoch, node) as cursor:
            found = [str(leaf) for (leaf,) in cursor.execute(_LEAVES, (str(name),)).fetchall()]
            drop_empty(cursor, name, [Name(name.schema, leaf) for leaf in found if leaf not in wanted])


def tell_partitions(cursor: Cursor, snapshot: Snapshot, table: Table, node: str) -> None:
    """Makes the node's rows name the new partitions too; those of a tablet that has left meanwhile are left alone."""
    for tablet in snapshot.tablets(table.id):
        if tablet.node == node:
            names = list(_partitions(table, tablet))
            cursor.execute(
                "UPDATE balancer.tablet SET schemas = %s, partitions = %s"
                " WHERE id = %s AND epoch = %s AND state = 'owned' AND partitions <> %s::text[]",
                (
                    [name.schema for name in names],
                    [name.name for name in names],
                    tablet.id,
                    tablet.epoch,
                    [name.name for name in names],
                ),
            )


def _partitions(table: Table, tablet: Tablet) -> Iterator[Name]:
    for number, text in enumerate(table.roots):
        root = parse_name(text)
        yield Name(root.schema, tablet.partitions[number]) if tablet.partitions else partition_name(root, tablet.id)


Tell = Callable[[str], None]


def switch_off(
    name: str,
    directory: Directory,
    nodes: Mapping[str, Connection],
    others: Mapping[str, Connection],
    handlers: Handlers,
    *,
    author: str,
    tell: Tell = lambda _: None,
) -> bool:
    """On these nodes, all of its bundle; `others` are those of other bundles. False: it was off already. Idempotent."""
    with alone(nodes, directory.snapshot().table(name)):
        snapshot = directory.snapshot()
        table = snapshot.table(name)
        ready = table.message_roots is not None
        if ready:
            check_unused(snapshot, table, {**nodes, **others})
            _leave(directory, snapshot, table, nodes, author)
            tell(f"table {name} has no messages any more; its outbox and inbox are dropped")
        snapshot = directory.snapshot()
        table, roots = snapshot.table(name), message_roots(snapshot.table(name))
        for node, connection in nodes.items():
            with node_transaction(connection, snapshot.epoch, node) as cursor:
                _drop(cursor, roots, node)
                tell_node(cursor, snapshot, handlers, table.bundle)
                tell_partitions(cursor, snapshot, table, node)
        return ready


def check_unused(snapshot: Snapshot, table: Table, nodes: Mapping[str, Connection]) -> None:
    """Raises `Refused` while a message of the table, or to it, exists anywhere, or an outcome may still be wanted."""
    busy = [one.id for one in snapshot.migrations.values() if not one.finished and one.table == table.id]
    if busy:
        raise Refused(f"migration {busy[0]} of table {table.name} is running: wait for it, or say `balancer pause`")
    for node, connection in nodes.items():
        with connection.transaction(), connection.cursor() as cursor:
            for other in message_tables(snapshot):
                if other.bundle != snapshot.nodes[node].bundle:
                    continue
                roots = message_roots(other)
                if other.id == table.id:
                    _check_empty(cursor, roots, node)
                elif sent := _count(cursor, roots.outbox, table.name):
                    raise Refused(f"{sent} messages of table {other.name} on node {node} are for table {table.name}")


def _check_empty(cursor: Cursor, roots: MessageRoots, node: str) -> None:
    if sent := _count(cursor, roots.outbox):
        raise Refused(
            f"{sent} messages of table {roots.table} on node {node} wait or have failed: `balancer messages list`"
        )
    if kept := _count(cursor, roots.inbox):
        raise Refused(
            f"node {node} remembers {kept} messages that table {roots.table} was sent, so that none is applied twice;"
            " they are forgotten two hours after their senders have"
        )


def _count(cursor: Cursor, root: Name, target: str | None = None) -> int:
    where = sql.SQL("") if target is None else sql.SQL("WHERE message_target = {}").format(sql.Literal(target))
    row = cursor.execute(sql.SQL("SELECT count(*) FROM {} {}").format(root.identifier, where)).fetchone()
    return int(row[0]) if row else 0


def _leave(
    directory: Directory, snapshot: Snapshot, table: Table, nodes: Mapping[str, Connection], author: str
) -> None:
    roots = message_roots(table)
    try:
        for node, connection in nodes.items():
            with node_transaction(connection, snapshot.epoch, node, durable=True) as cursor:
                _close(cursor, roots, node)
        changes = [Put(_without(table)), *(Put(_less(table, one)) for one in snapshot.tablets(table.id))]
        why = f"no messages of table {table.name}"
        directory.commit(Transaction(tuple(changes), snapshot.version, why, author))
    except Exception:
        if directory.snapshot().table(table.name).message_roots is not None:
            for node, connection in nodes.items():
                with node_transaction(connection, snapshot.epoch, node) as cursor:
                    open_message_roots(cursor, roots)
        raise


def _close(cursor: Cursor, roots: MessageRoots, node: str) -> None:
    open_message_roots(cursor, roots)  # what an interruption has left says nothing about partitions that came later
    add = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} CHECK (false)")
    for root in (roots.outbox, roots.inbox):
        try:
            cursor.execute(add.format(root.identifier, sql.Identifier(CLOSED)))
        except psycopg.errors.CheckViolation:
            raise Refused(f"a message has come to {root} on node {node} meanwhile: nothing was changed") from None


def _drop(cursor: Cursor, roots: MessageRoots, node: str) -> None:
    """They are closed, and so empty, unless somebody has opened them by hand."""
    for root in (roots.outbox, roots.inbox):
        if cursor.execute("SELECT to_regclass(%s)", (str(root),)).fetchone() == (None,):
            continue
        cursor.execute(sql.SQL("LOCK TABLE {}").format(root.identifier))
        if left := _count(cursor, root):
            raise Refused(f"{left} messages of table {roots.table} on node {node} wait in {root}: it is not dropped")
        cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(root.identifier))
    cursor.execute("DELETE FROM balancer.message_table WHERE name = %s", (roots.table,))


def _without(table: Table) -> Table:
    ours = table.message_roots or ()
    return replace(table, roots=tuple(root for number, root in enumerate(table.roots) if number not in ours))


def _less(table: Table, tablet: Tablet) -> Tablet:
    ours = table.message_roots or ()
    return replace(tablet, partitions=tuple(one for number, one in enumerate(tablet.partitions) if number not in ours))
