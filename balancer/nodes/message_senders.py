"""Who may send messages from a table, and for which of them the balancer's role cannot deliver: for the preflight.

A message is applied with the rights of the role that sent it, which is its session's role. Only reads.
"""

from balancer.nodes.connection import Cursor
from balancer.nodes.names import Name

# The schema may be closed to a role that is being checked: it is asked before the table in it is read.
_MAY_ASK = """
SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'balancer' AND c.relname = 'message_table' AND has_schema_privilege(n.oid, 'USAGE')
  AND has_table_privilege(c.oid, 'SELECT')
"""
# Before version 16 every member may act as the role; since then a membership may exclude that.
_SENDERS = """
SELECT r.rolname FROM pg_roles r, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND r.rolcanlogin AND NOT r.rolsuper
  AND has_schema_privilege(r.oid, n.oid, 'USAGE') AND has_table_privilege(r.oid, c.oid, 'INSERT, UPDATE, DELETE')
  AND NOT pg_has_role(r.oid, %s)
ORDER BY 1
"""
_SET_SINCE = 16


def takes_messages(cursor: Cursor, table: str) -> bool:
    """Whether this node has been told that the table takes part in messages."""
    if cursor.execute(_MAY_ASK).fetchone() is None:
        return False
    return cursor.execute("SELECT FROM balancer.message_table WHERE name = %s", (table,)).fetchone() is not None


def unreachable_senders(cursor: Cursor, root: Name, major: int) -> list[str]:
    """Roles that can log in and write to the root, but as which we may not act."""
    right = "SET" if major >= _SET_SINCE else "MEMBER"
    return [str(name) for (name,) in cursor.execute(_SENDERS, (*root, right)).fetchall()]
