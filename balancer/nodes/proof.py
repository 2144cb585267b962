"""`require_proof`: roots that refuse every write of a transaction that has not called `balancer.hold`.

On a node that does not own the key, plain UPDATE and DELETE silently match 0 rows; a table may be closed to clients
that do not ask first. `hold` leaves a mark that ends with its transaction, and with a savepoint that is rolled back; a
statement trigger on each root looks for it. It guards against mistakes, not against people: anybody may set the mark.

Statements that name a leaf do not meet the trigger: the mover, replication and `balancer_all` work as before. What
other triggers and cascading foreign keys write belongs to the statement that fired them, and is not judged again.
Called inside a `node_transaction`.
"""

from collections.abc import Sequence

from psycopg import sql

from balancer.nodes.connection import Connection, Cursor
from balancer.nodes.names import Name

TRIGGER = "!balancer_proof"
TRUNCATE_TRIGGER = "!balancer_proof_truncate"

FUNCTIONS = """
    CREATE OR REPLACE FUNCTION balancer.require_proof() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF coalesce(pg_catalog.current_setting('balancer.held', true), '') <> 'yes'
            AND pg_catalog.pg_trigger_depth() < 2
        THEN
            RAISE EXCEPTION '%.% takes writes only from transactions that have called balancer.hold',
                pg_catalog.quote_ident(TG_TABLE_SCHEMA), pg_catalog.quote_ident(TG_TABLE_NAME)
                USING ERRCODE = 'TB005',
                      HINT = 'First in the transaction: CALL balancer.hold(tablet, epoch, true); the library does.';
        END IF;
        RETURN NULL;
    END $$;
"""

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
