"""Remembers the keys of changed rows while a migration runs: a trigger writes them into a log table of its own.

A replicated move compares exactly these keys before it switches; a split or merge replays them. Made and dropped by
migrations inside their `node_transaction`. An entry without a key means that the copy is worthless: the partition was
truncated, or a column of its key got another type.

The function has our rights, and writers of the partition call it. So nobody else may put it on a table of their own,
and it does not pass on a value of a type that did not exist when it was made: a type's owner may have a cast that would
run as us.
"""

from collections.abc import Sequence

from psycopg import sql

from balancer.naming import SCHEMA, Name
from balancer.nodes.session.connection import Cursor, printed, run_single
from balancer.nodes.tablets.fence import has_trigger, lock_partitions
from balancer.nodes.tablets.object_names import CAPTURE_TRIGGER, CAPTURE_TRUNCATE_TRIGGER, capture_name, log_name

SEQ = "balancer seq"  # with a space: no key column of a sane table has this name

SILENT = "BEGIN RETURN NULL; END"
"""The function of a log that records nothing for now: every change is made in the new partitions too (`mirror`)."""

_FUNCTION = """
    CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS {body}
"""
_BODY = """
    DECLARE
        "the same" boolean := false;
    BEGIN
        IF TG_OP = 'TRUNCATE' THEN
            INSERT INTO {log} DEFAULT VALUES;
            RETURN NULL;
        END IF;
        -- In a session that has seen a column with another type, looking at it is an error.
        BEGIN
            "the same" := (TG_OP = 'INSERT' OR ARRAY[{old_types}]::oid[] = {types})
                AND (TG_OP = 'DELETE' OR ARRAY[{new_types}]::oid[] = {types});
        EXCEPTION WHEN datatype_mismatch OR undefined_column THEN
            NULL;
        END;
        IF NOT "the same" THEN
            INSERT INTO {log} DEFAULT VALUES;
            RETURN NULL;
        END IF;
        IF TG_OP <> 'INSERT' THEN
            INSERT INTO {log} ({keys}) VALUES ({old});
        END IF;
        -- Also where the key looks the same: how it looks depends on the session's settings.
        IF TG_OP <> 'DELETE' THEN
            INSERT INTO {log} ({keys}) VALUES ({new});
        END IF;
        RETURN NULL;
    END
"""


def start_capture(
    cursor: Cursor, migration: str, index: int, partition: Name, *, key: Sequence[str], lock_timeout: float
) -> None:
    """From this transaction's commit on, every change of the partition is in the log."""
    log, function = log_name(migration, index), capture_name(migration, index)
    lock_partitions(cursor, [partition], lock_timeout)  # the types that are read now are those at the commit
    types, plain = _types(cursor, partition, key)
    # Without a length or precision: a column that gets a longer one must not fail because of the log.
    make = sql.SQL("CREATE TABLE {} AS SELECT {} FROM ONLY {} WITH NO DATA")
    run_single(cursor, make.format(log, plain, partition.identifier))
    cursor.execute(
        sql.SQL("ALTER TABLE {} ADD COLUMN {} bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY").format(
            log, sql.Identifier(SEQ)
        )
    )
    _log_changes(cursor, migration, index, key, types)
    cursor.execute(sql.SQL("REVOKE ALL ON FUNCTION {}() FROM PUBLIC").format(function))
    for name, events, each in (
        (CAPTURE_TRIGGER, "AFTER INSERT OR UPDATE OR DELETE", "ROW"),
        (CAPTURE_TRUNCATE_TRIGGER, "AFTER TRUNCATE", "STATEMENT"),
    ):
        trigger = sql.Identifier(name)
        cursor.execute(
            sql.SQL("CREATE TRIGGER {} " + events + " ON {} FOR EACH " + each + " EXECUTE FUNCTION {}()").format(
                trigger, partition.identifier, function
            )
        )
        cursor.execute(sql.SQL("ALTER TABLE {} ENABLE ALWAYS TRIGGER {}").format(partition.identifier, trigger))


def _log_changes(cursor: Cursor, migration: str, index: int, key: Sequence[str], types: sql.Composable) -> None:
    body = sql.SQL(_BODY).format(
        log=log_name(migration, index),
        keys=_list(key),
        old=_list(key, "OLD"),
        new=_list(key, "NEW"),
        old_types=_typeof(key, "OLD"),
        new_types=_typeof(key, "NEW"),
        types=types,
    )
    function = capture_name(migration, index)
    cursor.execute(sql.SQL(_FUNCTION).format(function=function, body=sql.Literal(body.as_string(cursor))))


def silent_statement(migration: str, index: int) -> sql.Composed:
    """The log records nothing any more, though its triggers stay as they are: so it costs next to nothing to go back,
    and whoever compares definitions sees none change."""
    return sql.SQL(_FUNCTION).format(function=capture_name(migration, index), body=sql.Literal(SILENT))


def is_silent(cursor: Cursor, migration: str, index: int) -> bool:
    """Whether the log records nothing for now."""
    name = capture_name(migration, index).as_string(cursor)
    found = cursor.execute("SELECT prosrc = %s FROM pg_proc WHERE oid = to_regproc(%s)", (SILENT, name)).fetchone()
    return bool(found and found[0])


def resume(cursor: Cursor, migration: str, index: int, key: Sequence[str]) -> None:
    """Undoes `silent_statement`, under a lock that keeps writers out. The types are those that the log began with."""
    log = Name(SCHEMA, f"changes_{migration}_{index}")
    types, _ = _types(cursor, log, key)
    _log_changes(cursor, migration, index, key, types)


def started(cursor: Cursor, migration: str, index: int) -> bool:
    """Whether this capture has been made."""
    name = log_name(migration, index).as_string(cursor)
    row = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone()
    return bool(row and row[0])


def disable_capture(cursor: Cursor, partition: Name, lock_timeout: float) -> None:
    """Stops costing writers anything, without waiting for readers. Idempotent."""
    if has_trigger(cursor, partition, CAPTURE_TRIGGER):
        lock_partitions(cursor, [partition], lock_timeout)
        for name in (CAPTURE_TRIGGER, CAPTURE_TRUNCATE_TRIGGER):
            cursor.execute(
                sql.SQL("ALTER TABLE {} DISABLE TRIGGER {}").format(partition.identifier, sql.Identifier(name))
            )


def drop_capture(cursor: Cursor, migration: str, index: int, partition: Name) -> None:
    """Removes triggers, function and log; waits for readers of the partition. Idempotent."""
    for name in (CAPTURE_TRIGGER, CAPTURE_TRUNCATE_TRIGGER):
        if has_trigger(cursor, partition, name):
            cursor.execute(sql.SQL("DROP TRIGGER {} ON {}").format(sql.Identifier(name), partition.identifier))
    # The triggers of a partition that somebody has renamed go with it: nobody else may use it.
    cursor.execute(sql.SQL("DROP FUNCTION IF EXISTS {}() CASCADE").format(capture_name(migration, index)))
    cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(log_name(migration, index)))


def pending(cursor: Cursor, migration: str, index: int, limit: int | None = None) -> int:
    """How many entries the log has; counts no further than the limit."""
    statement = sql.SQL("SELECT count(*) FROM (SELECT FROM {} LIMIT {}) AS entries").format(
        log_name(migration, index), sql.Literal(limit)
    )
    row = cursor.execute(statement).fetchone()
    return int(row[0]) if row else 0


def forget(cursor: Cursor, migration: str, index: int, entries: Sequence[int]) -> None:
    """Removes these entries: their keys have been compared or replayed."""
    cursor.execute(
        sql.SQL("DELETE FROM {} WHERE {} = ANY(%s)").format(log_name(migration, index), sql.Identifier(SEQ)),
        (list(entries),),
    )


_TYPES = """
    SELECT a.attname, a.atttypid, format_type(a.atttypid, -1) FROM pg_attribute a
    WHERE a.attrelid = to_regclass(%s) AND a.attname = ANY(%s) AND NOT a.attisdropped
"""


def _types(cursor: Cursor, partition: Name, key: Sequence[str]) -> tuple[sql.Composable, sql.Composable]:
    """The types of the key's columns as an array, and the columns as values of these types."""
    found = {name: (oid, text) for name, oid, text in cursor.execute(_TYPES, (str(partition), list(key))).fetchall()}
    oids = sql.SQL("{}::oid[]").format(sql.Literal([int(found[column][0]) for column in key]))
    cast = sql.SQL("{0}::{1} AS {0}")
    plain = sql.SQL(", ").join(cast.format(sql.Identifier(one), printed(str(found[one][1]))) for one in key)
    return oids, plain


def _typeof(key: Sequence[str], record: str) -> sql.Composable:
    return sql.SQL(", ").join(sql.SQL("pg_typeof({}.{})").format(sql.SQL(record), sql.Identifier(one)) for one in key)


def _list(columns: Sequence[str], record: str = "") -> sql.Composable:
    parts = [sql.Identifier(column) for column in columns]
    dot = sql.SQL(record + "." if record else "")
    return sql.SQL(", ").join(dot + part for part in parts)
