"""Advisory locks by which the transactions of clients and the steps of a mover keep out of each other's way.

`balancer.hold` takes one of a tablet's two locks, shared and until its transaction ends: that of writers, or that of
readers. Fences take the first exclusively, and so wait for writers alone; a swap takes both, and a detachment the
second. Always before any lock on a relation, and in the order of the tablets' ids: one order for all, no deadlock.
Called by `fence`, `reshard` and `partition`; whoever calls these has set a lock_timeout.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from balancer.nodes.connection import Connection, Cursor
from balancer.nodes.names import Name

WRITERS = 8385983981140574208
READERS = WRITERS + (1 << 47)
"""Added to a tablet's id. The first two bytes ("ta") keep clear of an application's own advisory locks. The numbers are
in the statements of `client_functions` too."""

STEP = """
    ALTER TABLE balancer.tablet ADD COLUMN until text;
    COMMENT ON COLUMN balancer.tablet.until IS 'The word of the fence that stands on its partitions; see refuse_write';
    -- A fence that stands while this is installed: any word sends clients to look at its trigger.
    UPDATE balancer.tablet SET until = '' WHERE state = 'fenced' OR state = 'owned' AND migration IS NOT NULL;
    CREATE INDEX ON balancer.tablet USING gin (partitions);

    -- The tablets that partitions belong to, in the order in which they are locked.
    CREATE FUNCTION balancer.tablets_of(schemas text[], partitions text[]) RETURNS SETOF bigint
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
        SELECT t.id FROM balancer.tablet t
        WHERE t.partitions && $2 AND EXISTS (
            SELECT FROM unnest(t.schemas, t.partitions) AS mine (schema, name)
            JOIN unnest($1, $2) AS given (schema, name) USING (schema, name))
        ORDER BY t.id
    $$;
"""


def keep_writers_out(cursor: Cursor, partitions: Sequence[Name]) -> list[int]:
    """Until the transaction ends; waits for writers that hold a tablet of these partitions. Returns the tablets."""
    return _lock(cursor, WRITERS, partitions)


def keep_all_out(cursor: Cursor, partitions: Sequence[Name]) -> None:
    """Likewise, and for readers."""
    _lock(cursor, WRITERS, partitions)
    _lock(cursor, READERS, partitions)


@contextmanager
def readers_kept_out(connection: Connection, partition: Name) -> Iterator[None]:
    """For commands outside of transactions; waits for readers that hold the partition's tablet."""
    given = (READERS, [partition.schema], [partition.name])
    connection.execute("SELECT pg_advisory_lock(id + %s) FROM balancer.tablets_of(%s, %s) AS id", given)
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("SELECT pg_advisory_unlock(id + %s) FROM balancer.tablets_of(%s, %s) AS id", given)


def _lock(cursor: Cursor, lock: int, partitions: Sequence[Name]) -> list[int]:
    cursor.execute(
        "SELECT id, pg_advisory_xact_lock(id + %s) FROM balancer.tablets_of(%s, %s) AS id",
        (lock, [name.schema for name in partitions], [name.name for name in partitions]),
    )
    return [row[0] for row in cursor]
