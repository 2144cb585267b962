"""Advisory locks by which the transactions of clients and the steps of a mover keep out of each other's way.

`balancer.hold` takes one of a tablet's two locks, the writers' or the readers', shared and until its transaction ends.
Fences take the first exclusively, and so wait only for writers; a swap takes both, and a detach the second. Always
before any lock on a relation, and in the order of the tablets' ids: one order for all, no deadlock. Called by `fence`,
`reshard` and `partition`; callers have set a lock_timeout.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import LiteralString

from psycopg import sql

from balancer.nodes.connection import (
    Connection,
    Cursor,
    Statement,
    lock_timeout,
    run_together,
    statement_timeout,
)
from balancer.nodes.names import Name

WRITERS = 8385983981140574208
READERS = WRITERS + (1 << 47)
"""Added to a tablet's id. The first two bytes ("ta") keep clear of an application's own advisory locks. The statements
of `client_functions` contain the numbers too."""

STEP = """
    ALTER TABLE balancer.tablet ADD COLUMN until text;
    COMMENT ON COLUMN balancer.tablet.until IS 'The word of the fence that stands on its partitions; see refuse_write';
    -- A fence that stands while this is installed: any word sends clients to look at its trigger.
    UPDATE balancer.tablet SET until = '' WHERE state = 'fenced' OR state = 'owned' AND migration IS NOT NULL;
    CREATE INDEX ON balancer.tablet USING gin (partitions);
"""

FUNCTIONS = """
    -- The tablets that partitions belong to, in the order in which they are locked.
    CREATE OR REPLACE FUNCTION balancer.tablets_of(schemas text[], partitions text[]) RETURNS SETOF bigint
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
        SELECT t.id FROM balancer.tablet t
        WHERE t.partitions && $2 AND EXISTS (
            SELECT FROM unnest(t.schemas, t.partitions) AS mine (schema, name)
            JOIN unnest($1, $2) AS given (schema, name) USING (schema, name))
        ORDER BY t.id
    $$;
"""


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
