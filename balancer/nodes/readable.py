"""Checked before anything outside a migration reads rows of a table or makes partitions of it: whether that would run
its owner's code with our rights (see `owners_code`).

PostgreSQL folds the constants of index, predicate and statistics expressions whenever it plans a query, so a count or a
sample is enough to call an owner's function. The table is locked first: no index, check, statistics or rule is added to
it between the check and the end of the transaction, and it cannot become a view. Writers are not held back; VACUUM and
other DDL are. A name that an owner has given to a view or a foreign table meanwhile is refused as well.
"""

from collections.abc import Sequence

import psycopg
from psycopg import sql

from balancer.errors import Refused
from balancer.nodes.connection import Cursor, lock_timeout, run_together
from balancer.nodes.names import Name
from balancer.nodes.owners_code import check_owners_code

LOCK_TIMEOUT = 0.9
"""Seconds: below a server's deadlock_timeout, after which an autovacuum in the way would be ended for us."""

_KINDS = """
SELECT n.nspname, c.relname, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN unnest(%s::text[], %s::text[]) AS wanted (schema, name) ON wanted.schema = n.nspname AND wanted.name = c.relname
"""
_TABLE, _PARTITIONED = "r", "p"


def check_readable(cursor: Cursor, partitions: Sequence[Name], *, trusted: bool) -> None:
    """Raises `Refused` unless these partitions can be read without running their owners' code as us."""
    _check(cursor, partitions, _TABLE, trusted=trusted)


def check_extendable(cursor: Cursor, roots: Sequence[Name], *, trusted: bool) -> None:
    """The same for roots that will get new partitions: their indexes and checks come with them."""
    _check(cursor, roots, _PARTITIONED, trusted=trusted)


def _check(cursor: Cursor, tables: Sequence[Name], kind: str, *, trusted: bool) -> None:
    if trusted:
        return
    _hold_still(cursor, tables)
    found = cursor.execute(_KINDS, ([table.schema for table in tables], [table.name for table in tables])).fetchall()
    for schema, name, relkind in found:
        if relkind != kind:
            raise Refused(f"{Name(schema, name)} is not an ordinary table: it is not read")
    check_owners_code(cursor, tables)


def _hold_still(cursor: Cursor, tables: Sequence[Name]) -> None:
    """Until the end of the transaction. The only lock that a standby has against its primary's DDL is the weakest."""
    row = cursor.execute("SELECT pg_is_in_recovery()").fetchone()
    mode = "ACCESS SHARE" if row is not None and row[0] else "SHARE UPDATE EXCLUSIVE"
    for table in tables:
        lock = sql.SQL("LOCK TABLE ONLY {} IN " + mode + " MODE").format(table.identifier)
        try:
            run_together(cursor, [lock_timeout(LOCK_TIMEOUT), lock])
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            raise Refused(f"there is no partition {table}") from None
