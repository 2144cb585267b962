"""Views by which other nodes read and write a partition: each statement proves that its tablet is here.

`balancer_all` on another node leads to `balancer_here.<partition>`, never to the partition itself. The view's condition
is `balancer.here`, which takes the tablet's lock and reads its row as `hold` does; it depends on no column, so the
server asks it once per statement, and before it reads a row. A tablet that is not here is refused with the code for
"retry" instead of returning stale rows. The view has a column `ctid`, by which postgres_fdw updates rows.

When a partition is dropped, its view stays as a tombstone that refuses everything: clients that have not heard of the
move yet are told to retry, not that there is no such table. Called inside a `node_transaction`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.nodes.connection import Cursor, printed, run_single
from balancer.nodes.names import Name

SCHEMA = "balancer_here"

FUNCTIONS = """
    -- Whether a tablet is here with this partition; never false: it refuses. Without a column of the view in it, and
    -- stable, so that it is asked once per statement. It waits for a switch only shortly: the session at the other end
    -- keeps its snapshot meanwhile, and a swap waits for snapshots.
    CREATE OR REPLACE FUNCTION balancer.here(wanted bigint, leaf text) RETURNS boolean
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET lock_timeout = '20ms' AS $$
    DECLARE
        key bigint := wanted + CASE WHEN current_setting('transaction_isolation') LIKE 'read%'
                                    THEN 8385983981140574208 ELSE 8386124718628929536 END;
        mine record;
    BEGIN
        IF NOT pg_try_advisory_xact_lock_shared(key) THEN
            BEGIN
                PERFORM pg_advisory_xact_lock_shared(key);
            EXCEPTION WHEN lock_not_available THEN
                RAISE EXCEPTION 'tablet % is moving, try again', wanted
                    USING ERRCODE = '40001', DETAIL = 'TB001', HINT = 'Run the transaction again.';
            END;
        END IF;
        -- After the lock. An older snapshot may see an older row, whose xmax then tells.
        PERFORM FROM balancer.tablet t WHERE t.id = wanted AND t.state = 'owned' AND t.until IS NULL AND t.xmax = 0
            AND leaf = ANY (t.partitions) AND NOT pg_is_in_recovery();
        IF FOUND THEN
            RETURN true;
        END IF;
        SELECT t.state, t.epoch, t.moved_to, t.partitions INTO mine FROM balancer.tablet t WHERE t.id = wanted;
        IF mine.state IS NULL OR mine.state = 'moved' OR NOT leaf = ANY (mine.partitions) THEN
            RAISE EXCEPTION 'tablet % is not here any more', wanted
                USING ERRCODE = '40001', DETAIL = format('TB002 node=%s epoch=%s', mine.moved_to, mine.epoch),
                      HINT = 'Run the transaction again.';
        END IF;
        PERFORM balancer.hold_slowly(wanted, mine.epoch, false);
        RETURN true;
    END $$;

    CREATE OR REPLACE FUNCTION balancer.refuse_here() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        PERFORM balancer.here(TG_ARGV[0]::bigint, TG_ARGV[1]);
        RAISE EXCEPTION 'tablet % is not here any more', TG_ARGV[0] USING ERRCODE = '40001', DETAIL = 'TB002';
    END $$;
"""


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
