"""What an UPDATE of the key through `balancer_all` gets if the new key is another tablet's: a one-sentence refusal.

PostgreSQL does not move rows out of foreign partitions, and postgres_fdw commits node by node, so such a row cannot be
moved all or nothing through there. The partition's own constraint refuses it in any case; this only says so in helpful
words. It is a row trigger on the root, which PostgreSQL passes on to every partition, including later ones; it fires
only for statements that set a column of the key, in sessions of the login that other nodes use. Plain SQL on the node
moves rows between tablets of that node as it always did. Called inside a `node_transaction`.
"""

from collections.abc import Iterable

from psycopg import sql

from balancer.nodes.connection import Cursor
from balancer.nodes.partition import Place

TRIGGER = "!balancer_rekey"

_PRESENT = """
SELECT n.nspname, c.relname, pg_get_triggerdef(t.oid)
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.tgname = %s AND t.tgparentid = 0
"""


def explain_rekeys(cursor: Cursor, places: Iterable[Place], login: str) -> int:
    """Puts it on the roots of these partitions; returns how many lacked it, or had another login's. Idempotent."""
    wanted = {place.root: place.columns for place in places}
    present = {(schema, name): text for schema, name, text in cursor.execute(_PRESENT, (TRIGGER,)).fetchall()}
    named = sql.Literal(login).as_string(cursor)
    missing = [root for root in wanted if named not in str(present.get((root.schema, root.name), ""))]
    for root in missing:
        columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in wanted[root])
        changed = sql.SQL(" OR ").join(
            sql.SQL("OLD.{0} IS DISTINCT FROM NEW.{0}").format(sql.Identifier(column.name)) for column in wanted[root]
        )
        trigger = sql.Identifier(TRIGGER)
        cursor.execute(sql.SQL("DROP TRIGGER IF EXISTS {} ON {}").format(trigger, root.identifier))
        cursor.execute(
            sql.SQL(
                "CREATE TRIGGER {} BEFORE UPDATE OF {} ON {} FOR EACH ROW WHEN (session_user = {} AND ({}))"
                " EXECUTE FUNCTION balancer.refuse_rekey()"
            ).format(trigger, columns, root.identifier, sql.Literal(login), changed)
        )
    return len(missing)


def remove_explanations(cursor: Cursor) -> None:
    """Removes it again, wherever it is."""
    for schema, name, _ in cursor.execute(_PRESENT, (TRIGGER,)).fetchall():
        cursor.execute(sql.SQL("DROP TRIGGER {} ON {}").format(sql.Identifier(TRIGGER), sql.Identifier(schema, name)))
