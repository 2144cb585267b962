"""What others' code leaves behind in one of our sessions that would run later with the rights of the role that commits.

Asked before the commit of a transaction in which a role's code ran with that role's rights (a handler of messages, a
schema change): what such code leaves must not affect us. A cursor WITH HOLD is read at the commit; a search path
changes the meaning of names in our next statements; so do other settings; a statement may be prepared under a name that
we use. Deferred triggers run at the commit too, before PostgreSQL 18 with our rights. Forcing constraints to be checked
earlier does not help, because a trigger that runs then can defer others again.

Settings and cursors are reset in the transaction (`leave_others_code`), before anything else is sent in it. No rollback
undoes what is prepared: the session is reset (`forget_session`) or closed afterwards. Called by the message service and
by schema changes.
"""

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.session.connection import Connection, Cursor

_TAKEN_BACK = "CLOSE ALL; RESET ALL; SET LOCAL synchronous_commit TO on"
"""Commands that name nothing, so that no search path can change their meaning; and the commit is durable, as it was."""

_DEFERRED = """
SELECT coalesce(
    (SELECT min(format('trigger %I of %s', t.tgname, t.tgrelid::regclass)) FROM pg_trigger t
     JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_roles r ON r.oid = p.proowner
     WHERE t.tgdeferrable AND NOT r.rolsuper AND r.rolname <> current_user),
    (SELECT min(format('constraint %I of %s', c.conname, c.conrelid::regclass)) FROM pg_constraint c
     JOIN pg_class k ON k.oid = c.conrelid JOIN pg_roles r ON r.oid = k.relowner
     WHERE c.contype = 'x' AND c.condeferrable AND NOT r.rolsuper AND r.rolname <> current_user))
"""


def leave_others_code(cursor: Cursor, *, trusted: bool) -> None:
    """Right after others' code, in its transaction, which is a durable one: none of it may run with our rights.

    What the caller has set for the transaction is gone afterwards.
    """
    cursor.execute(_TAKEN_BACK, prepare=False)
    if trusted or cursor.connection.info.server_version >= 180000:
        return
    row = cursor.execute(_DEFERRED, prepare=False).fetchone()
    if row is not None and row[0] is not None:
        raise Refused(
            f"the deferrable {row[0]} would run with the balancer's rights at the commit: make it not deferrable, or"
            " say trust_table_owners = true under [migration]"
        )


def forget_session(connection: Connection) -> None:
    """Removes whatever others' code has set or made in this session."""
    connection.execute("DISCARD ALL", prepare=False)


_OWNER = "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = to_regclass(%s)"


def owner_of(cursor: Connection | Cursor, table: Name) -> str:
    """Who owns a table; raises `Refused` if there is none of that name."""
    row = cursor.execute(_OWNER, (str(table),)).fetchone()
    if row is None:
        raise Refused(f"there is no table {table} here")
    return str(row[0])
