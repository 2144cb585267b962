"""Partitions whose keys have expired: closed by a trigger that refuses writes in one sentence; counted; inspected.

The trigger looks nothing up, so no old snapshot is blind to it; it stops every path to the partition, as a fence does.
The empty partition that replaced the dropped ones has it for good, and a move carries it along. Called by migrations
inside their `node_transaction`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.nodes.bounds import Part, check_expression, parse_bound
from balancer.nodes.connection import Connection, Cursor, Statement, lock_timeout, run_together
from balancer.nodes.fence import has_trigger, lock_partitions
from balancer.nodes.names import Name
from balancer.nodes.partition import Place
from balancer.policies.keys import KeyType

EXPIRED_TRIGGER = "balancer_expired"
EXPIRED_TRUNCATE_TRIGGER = "balancer_expired_truncate"
_NAMES = (EXPIRED_TRIGGER, EXPIRED_TRUNCATE_TRIGGER)


@dataclass(frozen=True, slots=True)
class LastCount:
    """What a partition contains."""

    rows: int
    outside: int
    """Rows whose key the bounds do not allow."""


def close_expired(cursor: Cursor, partitions: Sequence[Name], sentence: str, timeout: float) -> str:
    """Waits for writers in flight; from the commit on every write is refused. Returns the transaction."""
    lock_partitions(cursor, partitions, timeout)
    for partition in partitions:
        run_together(cursor, _triggers(partition, sentence, truncate=True))
    row = cursor.execute("SELECT pg_current_xact_id()::xid::text").fetchone()
    assert row is not None
    return str(row[0])


def refuse_rows(cursor: Cursor, partition: Name, sentence: str) -> None:
    """For a partition that is empty and stays so. TRUNCATE of its root loses nothing, and is allowed."""
    run_together(cursor, _triggers(partition, sentence, truncate=False))


def closed_by(cursor: Cursor, partitions: Sequence[Name]) -> str | None:
    """The transaction that closed all of these; None: one is open, or somebody has switched its trigger since."""
    rows = cursor.execute(
        "SELECT bool_or(t.tgname = %s), bool_and(t.tgenabled = 'A'), min(t.xmin::text), max(t.xmin::text)"
        " FROM unnest(%s::text[]) AS name LEFT JOIN pg_trigger t"
        " ON t.tgrelid = to_regclass(name) AND t.tgname = ANY (%s) GROUP BY name",
        (EXPIRED_TRIGGER, [str(partition) for partition in partitions], list(_NAMES)),
    ).fetchall()
    transactions = {by for closed, always, first, last in rows if closed and always for by in (first, last)}
    whole = len(transactions) == 1 and all(closed and always for closed, always, _, _ in rows)
    return str(transactions.pop()) if whole else None


def stays_empty(cursor: Cursor, partitions: Sequence[Name]) -> bool:
    """Whether these replace dropped partitions (`refuse_rows`): those that are only closed until they are dropped
    refuse TRUNCATE as well."""
    row = cursor.execute(
        "SELECT bool_and(EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = to_regclass(name) AND t.tgname = %s)"
        " AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = to_regclass(name) AND t.tgname = %s))"
        " FROM unnest(%s::text[]) AS name",
        (EXPIRED_TRIGGER, EXPIRED_TRUNCATE_TRIGGER, [str(partition) for partition in partitions]),
    ).fetchone()
    return bool(row and row[0])


def triggers_until_gone(cursor: Cursor) -> list[tuple[Name, str]]:
    """The triggers on attached partitions that are closed until they are dropped, by partition and name."""
    rows = cursor.execute(
        "SELECT n.nspname, c.relname, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relispartition AND t.tgname = ANY (%s) AND EXISTS"
        " (SELECT FROM pg_trigger b WHERE b.tgrelid = c.oid AND b.tgname = %s) ORDER BY 1, 2, 3",
        (list(_NAMES), EXPIRED_TRUNCATE_TRIGGER),
    ).fetchall()
    return [(Name(schema, table), str(trigger)) for schema, table, trigger in rows]


def open_expired(cursor: Cursor, partitions: Sequence[Name], timeout: float) -> None:
    """Lets writers through again; waits for no reader. Idempotent."""
    for partition in partitions:
        for trigger in _NAMES:
            if has_trigger(cursor, partition, trigger):
                lock_partitions(cursor, [partition], timeout)
                disable = sql.SQL("ALTER TABLE {} DISABLE TRIGGER {}")
                cursor.execute(disable.format(partition.identifier, sql.Identifier(trigger)))


def drop_expired_triggers(cursor: Cursor, partition: Name, timeout: float) -> None:
    """After `open_expired`: removes the triggers, which waits for readers. Idempotent."""
    run_together(cursor, [lock_timeout(timeout)])
    for trigger in _NAMES:
        if has_trigger(cursor, partition, trigger):
            cursor.execute(sql.SQL("DROP TRIGGER {} ON {}").format(sql.Identifier(trigger), partition.identifier))


def count_expired(connection: Connection, place: Place) -> LastCount:
    """Reads all of a closed partition."""
    expression = check_expression(place.columns, place.part, 0)
    query = sql.SQL("SELECT count(*), count(*) FILTER (WHERE ({}) IS NOT TRUE) FROM ONLY {}")
    row = connection.execute(query.format(expression, place.partition.identifier)).fetchone()
    assert row is not None
    return LastCount(int(row[0]), int(row[1]))


def bound_of(cursor: Cursor, partition: Name, types: Sequence[KeyType]) -> Part | None:
    """What the catalog says that an attached partition holds; None: it is not attached."""
    row = cursor.execute(
        "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = to_regclass(%s) AND relispartition",
        (str(partition),),
    ).fetchone()
    return None if row is None or row[0] is None else parse_bound(types, str(row[0]))


def clock_of(cursor: Cursor) -> float:
    """The node's own time, in seconds since 1970."""
    row = cursor.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    assert row is not None
    return float(row[0])


def suspect(cursor: Cursor, tablets: Sequence[int]) -> None:
    """Records that somebody may have written to these since they were closed: they will be set aside, not dropped."""
    cursor.execute(
        "UPDATE balancer.tablet SET breached_since = coalesce(breached_since, closed_by,"
        " pg_current_xact_id()::xid::text) WHERE id = ANY (%s)",
        (list(tablets),),
    )


def _triggers(partition: Name, sentence: str, *, truncate: bool) -> list[Statement]:
    parts = [(EXPIRED_TRIGGER, "BEFORE INSERT OR UPDATE OR DELETE", "FOR EACH ROW")]
    if truncate:
        parts.append((EXPIRED_TRUNCATE_TRIGGER, "BEFORE TRUNCATE", "FOR EACH STATEMENT"))
    made: list[Statement] = [
        sql.SQL(
            "CREATE OR REPLACE TRIGGER {} "
            + events
            + " ON {} "
            + each
            + " EXECUTE FUNCTION balancer.refuse_expired({})"
        ).format(sql.Identifier(name), partition.identifier, sql.Literal(sentence))
        for name, events, each in parts
    ]
    enabled = [sql.SQL("ENABLE ALWAYS TRIGGER {}").format(sql.Identifier(name)) for name, _, _ in parts]
    return [*made, sql.SQL("ALTER TABLE {} ").format(partition.identifier) + sql.SQL(", ").join(enabled)]
