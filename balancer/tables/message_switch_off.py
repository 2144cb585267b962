"""Removes the outbox and the inbox from a table: undoes `message_switch`.

Order: on every node both roots are *closed*, by a constraint that no row satisfies, which PostgreSQL accepts only if
there are no rows; then the directory's commit, which is refused if a migration has begun, or a tablet has moved, since
the map was read; then the roots are dropped. So nothing can be in them at the commit, nor arrive later, when no move
would carry it. Committing first could leave a message behind at a former owner; dropping first, an interruption would
leave tablets without partitions that the directory gives them. An interruption before the commit leaves closed roots:
messages wait or are refused at `send`, and either command, run again, ends that. One after the commit leaves empty
roots that nobody uses: run it again.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import psycopg
from psycopg import sql

from balancer.directory.contract import Directory
from balancer.directory.model import Put, Table, Tablet, Transaction
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused
from balancer.nodes.connection import Connection, Cursor
from balancer.nodes.epoch_check import node_transaction
from balancer.nodes.message_roots import CLOSED, Handlers, MessageRoots, open_message_roots
from balancer.nodes.names import Name
from balancer.tables.message_switch import alone, message_roots, message_tables, tell_node, tell_partitions

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
