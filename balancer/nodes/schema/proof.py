"""Advisory locks by which the transactions of clients and the steps of a mover keep out of each other's way.

`balancer.hold` takes one of a tablet's two locks, the writers' or the readers', shared and until its transaction ends.
Fences take the first exclusively, and so wait only for writers; a swap takes both, and a detach the second. Always
before any lock on a relation, and in the order of the tablets' ids: one order for all, no deadlock. Called by `fence`,
`reshard` and `partition`; callers have set a lock_timeout.

`require_proof`: roots that refuse every write of a transaction that has not called `balancer.hold`.

On a node that does not own the key, plain UPDATE and DELETE silently match 0 rows; a table may be closed to clients
that do not ask first. `hold` leaves a mark that ends with its transaction, and with a savepoint that is rolled back; a
statement trigger on each root looks for it. It guards against mistakes, not against people: anybody may set the mark.

Statements that name a leaf do not meet the trigger: the mover, replication and `balancer_all` work as before. What
other triggers and cascading foreign keys write belongs to the statement that fired them, and is not judged again.
Called inside a `node_transaction`.

Views by which other nodes read and write a partition: each statement proves that its tablet is here.

`balancer_all` on another node leads to `balancer_here.<partition>`, never to the partition itself. The view's condition
is `balancer.here`, which takes the tablet's lock and reads its row as `hold` does; it depends on no column, so the
server asks it once per statement, and before it reads a row. A tablet that is not here is refused with the code for
"retry" instead of returning stale rows. The view has a column `ctid`, by which postgres_fdw updates rows.

When a partition is dropped, its view stays as a tombstone that refuses everything: clients that have not heard of the
move yet are told to retry, not that there is no such table. Called inside a `node_transaction`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

from balancer.naming import Name
from balancer.nodes.schema.texts import READERS, WRITERS
from balancer.nodes.session.connection import (
    Connection,
    Cursor,
    Statement,
    lock_timeout,
    printed,
    run_single,
    run_together,
    statement_timeout,
)


def writers_statement(partitions: Sequence[Name], tablets: Sequence[int] = ()) -> Statement:
    """Keeps writers out until the transaction ends; waits for those that hold a tablet of these partitions.

    `tablets`: their ids, if the caller knows them; otherwise the node looks them up, while writers wait.
    """
    return _lock(WRITERS, partitions, tablets)


def keep_statement(tablets: Sequence[int]) -> Statement:
    """For a session that has `writers_statement`'s lock: keeps it beyond the end of the transaction, until
    `let_go_statement` or the end of the session. Otherwise each commit of a switch wakes all that wait for it, only to
    be refused and wait again, taking the processor from the one they wait for."""
    return sql.SQL("SELECT pg_advisory_lock(id + {}) FROM {} AS id").format(
        sql.Literal(WRITERS), tablets_of((), tablets)
    )


def let_go_statement(tablets: Sequence[int]) -> Statement:
    """The end of `keep_statement`."""
    return sql.SQL("SELECT pg_advisory_unlock(id + {}) FROM {} AS id").format(
        sql.Literal(WRITERS), tablets_of((), tablets)
    )


def keep_all_out(cursor: Cursor, partitions: Sequence[Name]) -> None:
    """Likewise, and readers."""
    run_together(cursor, [_lock(WRITERS, partitions), _lock(READERS, partitions)])


def tablets_of(partitions: Sequence[Name], tablets: Sequence[int] = ()) -> Statement:
    """The tablets that partitions belong to, as a call that returns their ids; `tablets` as above."""
    if tablets:
        return sql.SQL("unnest({}::bigint[])").format(sql.Literal(sorted(tablets)))
    schemas, names = [name.schema for name in partitions], [name.name for name in partitions]
    return sql.SQL("balancer.tablets_of({}::text[], {}::text[])").format(sql.Literal(schemas), sql.Literal(names))


def lock_writers_out(cursor: Cursor, partitions: Sequence[Name], left: Callable[[], float]) -> None:
    """Keeps writers of these partitions out until the transaction ends, and nobody else."""
    run_together(cursor, [*_limits(left()), _lock(WRITERS, partitions)])
    _lock_within(cursor, partitions, "SHARE ROW EXCLUSIVE", left)


def lock_everybody_out(
    cursor: Cursor, roots: Sequence[Name], partitions: Sequence[Name], others: Sequence[Name], left: Callable[[], float]
) -> None:
    """Keeps everybody out of roots and partitions, and of `others`, until the transaction ends. Roots before
    partitions: the other order deadlocks with writers through the root.

    Before that it waits for clients that hold the tablets of these partitions and have perhaps locked nothing else so
    far.
    """
    run_together(cursor, _limits(left()))
    keep_all_out(cursor, partitions)
    _lock_within(cursor, [*roots, *partitions, *others], "ACCESS EXCLUSIVE", left)


def _lock_within(cursor: Cursor, tables: Sequence[Name], mode: LiteralString, left: Callable[[], float]) -> None:
    """All of them within the time that is `left`: others wait behind each. The statement's own time limit counts what
    it has waited for in all."""
    names = sql.SQL(", ").join(sql.SQL("ONLY {}").format(table.identifier) for table in tables)
    run_together(cursor, [*_limits(left()), sql.SQL("LOCK TABLE {} IN " + mode + " MODE").format(names)])


def _limits(seconds: float) -> list[Statement]:
    most = max(0.001, seconds)
    return [lock_timeout(most), statement_timeout(most)]


@contextmanager
def readers_kept_out(connection: Connection, partition: Name) -> Iterator[None]:
    """For commands outside transactions; waits for readers that hold the partition's tablet."""
    given = (READERS, [partition.schema], [partition.name])
    connection.execute("SELECT pg_advisory_lock(id + %s) FROM balancer.tablets_of(%s, %s) AS id", given)
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("SELECT pg_advisory_unlock(id + %s) FROM balancer.tablets_of(%s, %s) AS id", given)


def _lock(lock: int, partitions: Sequence[Name], tablets: Sequence[int] = ()) -> Statement:
    return sql.SQL("SELECT pg_advisory_xact_lock(id + {}) FROM {} AS id").format(
        sql.Literal(lock), tablets_of(partitions, tablets)
    )


TRIGGER = "!balancer_proof"
TRUNCATE_TRIGGER = "!balancer_proof_truncate"


_PRESENT = """
    SELECT count(*) FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND tgname = ANY(%s) AND tgenabled = 'O'
        AND tgfoid = to_regproc('balancer.require_proof')
"""


def unlike(connection: Connection | Cursor, roots: Sequence[Name], *, wanted: bool) -> list[Name]:
    """Which of these roots, among those that are here, are not as wanted."""
    found = []
    for root in roots:
        row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (str(root),)).fetchone()
        count = connection.execute(_PRESENT, (str(root), [TRIGGER, TRUNCATE_TRIGGER])).fetchone()
        if row and row[0] and count and count[0] != (2 if wanted else 0):
            found.append(root)
    return found


def set_proof(cursor: Cursor, roots: Sequence[Name], *, wanted: bool) -> int:
    """Makes these roots refuse unproven writes, or accept them again; returns how many were changed. Idempotent."""
    changed = unlike(cursor, roots, wanted=wanted)
    for root in changed:
        for name, events in ((TRIGGER, "INSERT OR UPDATE OR DELETE"), (TRUNCATE_TRIGGER, "TRUNCATE")):
            trigger = sql.Identifier(name)
            cursor.execute(sql.SQL("DROP TRIGGER IF EXISTS {} ON {}").format(trigger, root.identifier))
            if wanted:
                create = sql.SQL(
                    "CREATE TRIGGER {} BEFORE " + events + " ON {} EXECUTE FUNCTION balancer.require_proof()"
                )
                cursor.execute(create.format(trigger, root.identifier))
    return len(changed)


SCHEMA = "balancer_here"


@dataclass(frozen=True, slots=True)
class Proven:
    """A partition of a tablet that is here."""

    tablet: int
    partition: Name


def view_of(partition: Name) -> Name:
    """Its view; names from schemas other than public are kept distinct."""
    return Name(SCHEMA, partition.name if partition.schema == "public" else f"{partition.schema}.{partition.name}")


def make_views(cursor: Cursor, wanted: Iterable[Proven], role: str) -> None:
    """Makes missing views, and turns tombstones back into views. Idempotent.

    The role may use the views and nothing else: a view reads its partition with our rights, but whatever a trigger or a
    check of the partition calls runs with the role's.
    """
    schema, login = sql.Identifier(SCHEMA), sql.Identifier(role)
    cursor.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
    cursor.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, login))
    standing = {name for name, living in _views(cursor, role).items() if living}
    for one in wanted:
        view = view_of(one.partition)
        if view.name not in standing:
            cursor.execute(sql.SQL("DROP VIEW IF EXISTS {}").format(view.identifier))
            cursor.execute(
                sql.SQL("CREATE VIEW {} AS SELECT l.ctid, {} FROM ONLY {} AS l WHERE {}").format(
                    view.identifier,
                    _names(cursor, one.partition),
                    one.partition.identifier,
                    _condition(one.tablet, one.partition),
                )
            )
            rights = sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {}")
            cursor.execute(rights.format(view.identifier, login))


def bury(cursor: Cursor, partition: Name) -> None:
    """Before a partition is dropped: its view, if it has one, refuses from now on and no longer needs the partition."""
    view = view_of(partition)
    row = cursor.execute(
        "SELECT c.oid::bigint, t.id FROM pg_class c LEFT JOIN balancer.tablet t"
        " ON %s = ANY (t.partitions) AND %s = ANY (t.schemas) WHERE c.oid = to_regclass(%s) ORDER BY t.id LIMIT 1",
        (partition.name, partition.schema, str(view)),
    ).fetchone()
    if row is None:
        return
    tablet = row[1] or 0
    nothing = sql.SQL(", ").join(
        sql.SQL("NULL::{} AS {}").format(printed(kind), sql.Identifier(name)) for name, kind in _columns(cursor, view)
    )
    run_single(
        cursor,
        sql.SQL("CREATE OR REPLACE VIEW {} AS SELECT {} WHERE {}").format(
            view.identifier, nothing, _condition(tablet, partition)
        ),
    )
    cursor.execute(
        sql.SQL(
            "CREATE OR REPLACE TRIGGER buried INSTEAD OF INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW"
            " EXECUTE FUNCTION balancer.refuse_here({}, {})"
        ).format(view.identifier, sql.Literal(str(tablet)), sql.Literal(partition.name))
    )


def prune(cursor: Cursor, kept: Sequence[Name]) -> int:
    """Drops the views that nothing leads to any more; returns how many."""
    names = {view_of(partition).name for partition in kept}
    gone = [name for name in _views(cursor) if name not in names]
    for name in gone:
        cursor.execute(sql.SQL("DROP VIEW {}").format(sql.Identifier(SCHEMA, name)))
    return len(gone)


def remove_views(cursor: Cursor) -> None:
    """Removes everything again."""
    cursor.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(SCHEMA)))


def _condition(tablet: int, partition: Name) -> sql.Composed:
    return sql.SQL("balancer.here({}::bigint, {}::text)").format(sql.Literal(tablet), sql.Literal(partition.name))


def _views(cursor: Cursor, role: str | None = None) -> dict[str, bool]:
    """Every view, and whether it leads to a partition, and the role may use it."""
    cursor.execute(
        "SELECT c.relname, NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid) AND c.reloptions IS NULL"
        " AND coalesce(has_table_privilege(r.oid, c.oid, 'INSERT'), %(role)s IS NULL)"
        " FROM pg_class c LEFT JOIN pg_roles r ON r.rolname = %(role)s"
        " WHERE c.relnamespace = to_regnamespace(%(schema)s) AND c.relkind = 'v'",
        {"role": role, "schema": SCHEMA},
    )
    return dict(cursor.fetchall())


def _names(cursor: Cursor, table: Name) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("l.{}").format(sql.Identifier(name)) for name, _ in _columns(cursor, table))


def _columns(cursor: Cursor, table: Name) -> list[tuple[str, str]]:
    """Names and types, in order."""
    return cursor.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (str(table),),
    ).fetchall()
