"""Others' deferred triggers, which before PostgreSQL 18 run with the rights of the role that commits: ours.

Asked before the commit of a transaction in which a role's code ran with that role's rights (a handler of messages, a
schema change): what such code leaves to the end must not meet us. Forcing constraints to be checked earlier does not
help, because a trigger that runs then can defer others again. Called by the message service and by schema changes.
"""

from balancer.errors import Refused
from balancer.nodes.connection import Cursor

_DEFERRED = """
SELECT coalesce(
    (SELECT min(format('trigger %I of %s', t.tgname, t.tgrelid::regclass)) FROM pg_trigger t
     JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_roles r ON r.oid = p.proowner
     WHERE t.tgdeferrable AND NOT r.rolsuper AND r.rolname <> current_user),
    (SELECT min(format('constraint %I of %s', c.conname, c.conrelid::regclass)) FROM pg_constraint c
     JOIN pg_class k ON k.oid = c.conrelid JOIN pg_roles r ON r.oid = k.relowner
     WHERE c.contype = 'x' AND c.condeferrable AND NOT r.rolsuper AND r.rolname <> current_user))
"""


def check_deferred(cursor: Cursor, *, trusted: bool) -> None:
    """Before the commit of a transaction in which others' code ran: none of it may run with our rights."""
    if trusted or cursor.connection.info.server_version >= 180000:
        return
    row = cursor.execute(_DEFERRED).fetchone()
    if row is not None and row[0] is not None:
        raise Refused(
            f"the deferrable {row[0]} would run with the balancer's rights at the commit: make it not deferrable, or"
            " say trust_table_owners = true under [migration]"
        )
