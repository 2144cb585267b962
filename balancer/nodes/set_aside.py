"""What becomes of a former owner's rows: dropped, or set aside if somebody may have written to them after the switch.

A former owner can have taken writes after the switch in two ways; what was written there was acknowledged and is
nowhere else. The table's owner may switch the fence off (`ALTER TABLE … DISABLE TRIGGER`, as import scripts do): the
transaction that closes a partition leaves its number in `balancer.tablet.closed_by`, and a trigger that another
transaction wrote has been switched since. And the server may be replaced by a standby that lagged behind the seal
(`was_open`). Such rows are moved into a schema of their own, with a comment that says whose they were, and `doctor`
names it until a person has looked at them and dropped it. Called by migrations when they retire, and by the guard,
inside their `node_transaction`.
"""

from collections.abc import Sequence

import psycopg
from psycopg import sql

from balancer.errors import Refused
from balancer.nodes.connection import Connection, Cursor
from balancer.nodes.fence import MOVED, SEALED
from balancer.nodes.names import Name
from balancer.nodes.objects import CLOSED, FENCE_TRIGGER, FENCE_TRUNCATE_TRIGGER, KEPT_SCHEMA
from balancer.nodes.owners_code import check_owners_code
from balancer.nodes.partition import detach_pending, drop_partition, exists
from balancer.nodes.proven_views import bury

_UNKNOWN = "unknown"
"""In place of the transaction since which somebody may have written."""
_SWITCHED = """
    SELECT count(t) <> 2 OR NOT bool_and(t.tgenabled = 'A' AND t.xmin::text = ANY (%(closed_by)s))
    FROM pg_trigger t WHERE t.tgrelid = to_regclass(%(partition)s) AND t.tgname = ANY (%(triggers)s)
"""


def switched_off(cursor: Cursor, tablets: Sequence[int], partitions: Sequence[Name]) -> bool:
    """Whether somebody has switched off a fence of these since it was written; records it for `drop_or_set_aside`."""
    rows = cursor.execute(
        "SELECT closed_by FROM balancer.tablet WHERE id = ANY (%s) AND closed_by IS NOT NULL FOR UPDATE",
        (list(tablets),),
    ).fetchall()
    closed_by = [by for (by,) in rows]
    if not closed_by:  # by a version that did not record it
        return False
    found = any(_switched(cursor, partition, closed_by) for partition in partitions)
    if found:
        cursor.execute(
            "UPDATE balancer.tablet SET breached_since = coalesce(breached_since, closed_by) WHERE id = ANY (%s)",
            (list(tablets),),
        )
    return found


def was_open(cursor: Cursor, tablets: Sequence[int]) -> bool:
    """Whether a former owner is found without what the switch had sealed, or with what the guard closed it with when it
    was found so: it went back in time, and may have taken writes since."""
    row = cursor.execute(
        "SELECT bool_or(until IS NULL OR until <> ALL (%s) OR migration IS NOT DISTINCT FROM %s) FROM"
        " (SELECT until, migration FROM balancer.tablet WHERE id = ANY (%s) FOR UPDATE) AS t",
        ([SEALED, MOVED], CLOSED, list(tablets)),
    ).fetchone()
    return row is None or row[0] is not False  # no row: it forgot the tablet itself


def note_open(cursor: Cursor, tablets: Sequence[int]) -> None:
    """Remembers it for `drop_or_set_aside`; once the rows of `balancer.tablet` are there."""
    cursor.execute(
        "UPDATE balancer.tablet SET breached_since = coalesce(breached_since, %s) WHERE id = ANY (%s)",
        (_UNKNOWN, list(tablets)),
    )


def was_switched_off(cursor: Cursor, tablets: Sequence[int], partitions: Sequence[Name]) -> bool:
    """Whether that has ever happened: their rows may have been acknowledged."""
    return switched_off(cursor, tablets, partitions) or _breached(cursor, tablets)


def _breached(cursor: Cursor, tablets: Sequence[int]) -> bool:
    row = cursor.execute(
        "SELECT bool_or(breached_since IS NOT NULL) FROM balancer.tablet WHERE id = ANY (%s)", (list(tablets),)
    ).fetchone()
    return bool(row and row[0])


def _switched(cursor: Cursor, partition: Name, closed_by: Sequence[str]) -> bool:
    if not exists(cursor, partition):
        return False
    given = {
        "partition": str(partition),
        "closed_by": list(closed_by),
        "triggers": [FENCE_TRIGGER, FENCE_TRUNCATE_TRIGGER],
    }
    row = cursor.execute(_SWITCHED, given).fetchone()
    return bool(row and row[0])


def drop_or_set_aside(
    cursor: Cursor, tablets: Sequence[int], partitions: Sequence[Name], migration: str, lock_timeout: float
) -> str:
    """Drops detached partitions that are closed, in this order; returns what was set aside instead, in words, or ''."""
    cursor.execute("SELECT set_config('lock_timeout', %s, true)", (f"{max(1, round(lock_timeout * 1000))}ms",))
    for partition in partitions:
        if exists(cursor, partition):  # from here on nobody can switch anything
            cursor.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE").format(partition.identifier))
    if not was_switched_off(cursor, tablets, partitions):
        for partition in partitions:
            drop_partition(cursor, partition)
        return ""
    there = [partition for partition in partitions if exists(cursor, partition)]
    return _set_aside(cursor, tablets, there, migration) if there else ""


def copy_aside(cursor: Cursor, tablets: Sequence[int], tables: Sequence[Name], migration: str) -> str:
    """The same for tables that stay where they are, under their lock: a copy of their rows, if they may have been
    written to; in words, or ''."""
    if not (was_open(cursor, tablets) or was_switched_off(cursor, tablets, tables)):
        return ""
    schema, text = _kept_schema(cursor, tablets, tables, migration)
    for table in tables:
        copy = sql.SQL("CREATE TABLE {} AS TABLE ONLY {}").format(sql.Identifier(schema, table.name), table.identifier)
        cursor.execute(copy)
    return f"{schema}: {text}"


def _set_aside(cursor: Cursor, tablets: Sequence[int], partitions: Sequence[Name], migration: str) -> str:
    schema, text = _kept_schema(cursor, tablets, partitions, migration)
    for partition in partitions:
        if detach_pending(cursor, partition) is not None:
            raise Refused(f"{partition} is still attached and is not set aside")
        bury(cursor, partition)
        cursor.execute(sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(partition.identifier, sql.Identifier(schema)))
    return f"{schema}: {text}"


def _kept_schema(cursor: Cursor, tablets: Sequence[int], partitions: Sequence[Name], migration: str) -> tuple[str, str]:
    """The schema that a migration's rows are set aside in, and its comment."""
    schema = f"{KEPT_SCHEMA}{migration}"
    cursor.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    mine = cursor.execute(
        "SELECT nspowner = current_user::regrole FROM pg_namespace WHERE nspname = %s", (schema,)
    ).fetchone()
    if mine != (True,):
        raise Refused(f"schema {schema} is not the balancer's: drop it, rows will be set aside there")
    written = _written_since(cursor, partitions, tablets)
    named = " and ".join(map(str, tablets))
    text = (
        f"rows of tablet {named} as they were when migration {migration} had ended: after the switch they could be"
        " written here, because somebody had switched the fence off or the server had gone back in time, and"
        f" {written} were written here since; rows may have been deleted, too"
    )
    cursor.execute(sql.SQL("COMMENT ON SCHEMA {} IS {}").format(sql.Identifier(schema), sql.Literal(text)))
    return schema, text


def _written_since(cursor: Cursor, partitions: Sequence[Name], tablets: Sequence[int]) -> str:
    """How many rows were inserted or updated after the partitions were first closed, in words."""
    try:
        if _since_unknown(cursor, tablets):
            return "an unknown number of rows"
        check_owners_code(cursor, partitions)
        with cursor.connection.transaction():
            return f"{_count_since(cursor, partitions, tablets)} rows"
    except (Refused, psycopg.Error):
        return "an unknown number of rows"  # counting them would run their owner's code as us, or fails


def _since_unknown(cursor: Cursor, tablets: Sequence[int]) -> bool:
    row = cursor.execute(
        "SELECT bool_or(breached_since = %s) FROM balancer.tablet WHERE id = ANY (%s)", (_UNKNOWN, list(tablets))
    ).fetchone()
    return bool(row and row[0])


def _count_since(cursor: Cursor, partitions: Sequence[Name], tablets: Sequence[int]) -> int:
    counted = sql.SQL(" + ").join(
        sql.SQL("(SELECT count(*) FROM ONLY {} AS r WHERE age(r.xmin) < closed)").format(partition.identifier)
        for partition in partitions
    )
    query = sql.SQL("SELECT {} FROM (SELECT max(age(breached_since::xid)) AS closed FROM balancer.tablet")
    row = cursor.execute(query.format(counted) + sql.SQL(" WHERE id = ANY (%s)) AS t"), (list(tablets),)).fetchone()
    return int(row[0]) if row else 0


def kept_rows(connection: Connection) -> list[tuple[str, str]]:
    """Schemas with rows that were set aside, and what is known about them. Ours only: a person is told to drop them."""
    rows = connection.execute(
        "SELECT nspname, coalesce(obj_description(oid, 'pg_namespace'), '') FROM pg_namespace"
        " WHERE nspname ~ %s AND nspowner = current_user::regrole ORDER BY nspname",
        (f"^{KEPT_SCHEMA}[a-z0-9_]+$",),
    ).fetchall()
    return [(str(name), str(text)) for name, text in rows]
