"""The application's own statements for the consistency checker: one at a time, read-only, with a role's rights.

A statement runs inside a function that the role has defined for this transaction, as in `ddl_statements`: what it calls
then has that role's rights, and cannot take ours back as it could after SET ROLE. The transaction is made read-only
after that, which cannot be undone within it, and is always rolled back; the driver then has the server forget what was
prepared.
"""

import psycopg
from psycopg import sql

from balancer.errors import Refused
from balancer.nodes.connection import Cursor, run_together, statement_timeout
from balancer.nodes.ddl_statements import owner_of
from balancer.nodes.names import Name

_ROWS = r"""
    CREATE FUNCTION pg_temp.balancer_check(statement text) RETURNS TABLE (n bigint, examples text[])
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $run$
    BEGIN
        RETURN QUERY EXECUTE 'WITH found AS MATERIALIZED (' || statement || E'\n) SELECT (SELECT count(*) FROM found),'
            ' ARRAY(SELECT left(found::text, 100) FROM found LIMIT 3)';
    END $run$
"""
_NUMBER = r"""
    CREATE FUNCTION pg_temp.balancer_sum(statement text) RETURNS numeric
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $run$
    DECLARE
        result numeric;
    BEGIN
        EXECUTE 'WITH found AS MATERIALIZED (' || statement || E'\n) SELECT * FROM found' INTO STRICT result;
        RETURN coalesce(result, 0);
    END $run$
"""


def become_reader(cursor: Cursor, role: str, table: Name, seconds: float, *, trusted: bool) -> None:
    """Prepares the transaction for statements with the rights of a role; empty: of the table's owner.

    Raises `Refused` for a role that may do more than the application should: a superuser, or our own.
    """
    role = role or owner_of(cursor, table)
    row = cursor.execute(
        "SELECT rolsuper, rolname = session_user FROM pg_catalog.pg_roles WHERE rolname = %s", (role,)
    ).fetchone()
    if row is None:
        raise Refused(f"there is no role {role}, with whose rights the application's checks are to run")
    if (row[0] or row[1]) and not trusted:
        what = "a superuser" if row[0] else "the balancer's own role"
        raise Refused(
            f"the application's checks would run with the rights of {role}, which is {what}: name another as role under"
            " [checks], or say trust_table_owners = true under [migration]"
        )
    try:
        cursor.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
    except psycopg.errors.InsufficientPrivilege as error:
        raise Refused(f"the balancer may not act as {role}: GRANT {role} TO the balancer's role") from error
    cursor.execute(_ROWS)
    cursor.execute(_NUMBER)
    cursor.execute("RESET ROLE")
    cursor.execute("SET TRANSACTION READ ONLY")
    cursor.execute("SELECT set_config('row_security', 'off', true)")  # an error, instead of rows that stay unseen
    run_together(cursor, [statement_timeout(seconds)])


def found_rows(cursor: Cursor, statement: str) -> tuple[int, tuple[str, ...]]:
    """How many rows a statement returns, and some of them as text."""
    query = "SELECT n, examples FROM pg_temp.balancer_check(%s)"
    row = cursor.execute(query, (statement,), prepare=False).fetchone()
    assert row is not None, "the function returns one row"
    return int(row[0]), tuple(row[1])


def number_of(cursor: Cursor, statement: str) -> str:
    """The one number that a statement returns, as text; nothing is 0."""
    # Nothing that an earlier statement has set or prepared affects this one.
    row = cursor.execute("SELECT pg_temp.balancer_sum(%s)::pg_catalog.text", (statement,), prepare=False).fetchone()
    assert row is not None, "the function returns one row"
    return str(row[0])
