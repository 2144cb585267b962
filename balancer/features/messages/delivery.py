"""A leader's statements about messages: what waits in an outbox, how it is delivered, given up, settled and forgotten.

The argument is in `nodes/schema/messages.sql`. Roots and partitions of messages are our own, so reading and writing
them runs nobody else's code. A handler, with whatever triggers and functions it sets off, runs inside a function that
the sender's role has defined for this one call: with that role's rights, and without a way to take ours back. That
function has a new name each time, and the session forgets everything afterwards, so that nothing such code leaves
behind affects us. Before PostgreSQL 18 deferred triggers run with the rights of the role that commits, ours: where
somebody else's could be waiting, nothing is delivered."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from psycopg import sql
from psycopg.types.json import Jsonb

from balancer.naming import Name
from balancer.nodes.catalog.other_roles import forget_session as forget_session
from balancer.nodes.catalog.other_roles import leave_others_code as leave_others_code
from balancer.nodes.schema.texts import KEPT
from balancer.nodes.session.connection import Connection, Cursor, Statement, last_rows, run_together

AT_ONCE = 200
"""Messages of one outbox that are processed together."""
GIVE_UP = 1_000_000_000
"""This many tries stand for an operator's decision: it is given up without another one."""
_SETTLED_AFTER = "10 seconds"  # younger ones are probably in flight
_FORGET_AT_ONCE = 5000


class MailLeaf(NamedTuple):
    """What a tablet's outbox has, by the name of its partition."""

    partition: str
    pending: int
    failed: int
    due: int
    oldest: float
    """Seconds since the oldest pending message was sent."""


class Letter(NamedTuple):
    """A message that waits; those from one sender's key to one target are delivered in order."""

    id: UUID
    sender_key: list[str]
    target: str
    key: list[str]
    name: str
    body: object
    role: str
    tries: int
    attempts: int | None
    """How often it may be tried; None: the sender's node does not know this message."""

    @property
    def queue(self) -> tuple[object, ...]:
        """Within which it may not be overtaken."""
        return tuple(self.sender_key), self.target, tuple(self.key)


class Receipt(NamedTuple):
    """An outcome whose sender may have forgotten the message."""

    id: UUID
    sender: str
    sender_key: list[str]


_WAITING = """
SELECT c.relname, count(*) FILTER (WHERE message_state = 'pending'), count(*) FILTER (WHERE message_state = 'failed'),
       count(*) FILTER (WHERE message_state = 'pending' AND message_due <= clock_timestamp()),
       coalesce(extract(epoch FROM clock_timestamp()
                        - min(message_sent) FILTER (WHERE message_state = 'pending')), 0)::float8
FROM {} o JOIN pg_class c ON c.oid = o.tableoid GROUP BY 1
"""


def waiting(connection: Connection | Cursor, outbox: Name) -> list[MailLeaf]:
    """What the outboxes of a table have here, including tablets that have left: their owner must be asked."""
    rows = connection.execute(sql.SQL(_WAITING).format(outbox.identifier)).fetchall()
    return [MailLeaf(*row) for row in rows]


# Including those that follow a due message: otherwise a long queue would take a look for each.
_LETTERS = """
WITH o AS (
    SELECT *, first_value(message_due) OVER (
        PARTITION BY {names}, message_target, message_key ORDER BY message_number) AS head_due
    FROM {leaf} WHERE message_state = 'pending'
)
SELECT o.message_id, ARRAY[{keys}], o.message_target, o.message_key, o.message_name, o.message_body, o.message_role,
       o.message_tries, h.attempts
FROM o
LEFT JOIN balancer.message_handler h ON (h.target, h.name, h.sender) = (o.message_target, o.message_name, {sender})
WHERE o.head_due <= clock_timestamp() ORDER BY o.head_due, o.message_number LIMIT {limit}
"""


def proven_letters(
    connection: Connection, tablet: tuple[int, int], leaf: Name, keys: Sequence[str], sender: str
) -> list[Letter]:
    """The messages of a tablet that are due, and those behind them, read by a snapshot in which this node owns it."""
    statement = sql.SQL(_LETTERS).format(
        names=sql.SQL(", ").join(map(sql.Identifier, keys)),
        keys=sql.SQL(", ").join(sql.SQL("o.{}::text").format(sql.Identifier(name)) for name in keys),
        leaf=leaf.identifier,
        sender=sql.Literal(sender),
        limit=sql.Literal(AT_ONCE),
    )
    return [Letter(*row) for row in _proven(connection, tablet, statement)]


def proven_left(connection: Connection, tablet: tuple[int, int], leaf: Name, messages: Sequence[UUID]) -> set[UUID]:
    """Which of these messages are still in a tablet's outbox, in whatever state, by such a snapshot."""
    statement = sql.SQL("SELECT message_id FROM {} WHERE message_id = ANY({})").format(
        leaf.identifier, sql.Literal(list(messages))
    )
    return {row[0] for row in _proven(connection, tablet, statement)}


def _proven(connection: Connection, tablet: tuple[int, int], statement: Statement) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        try:
            begin = sql.SQL("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            run_together(cursor, [begin, hold_statement(tablet, writing=False), statement])
            return last_rows(cursor)
        finally:
            connection.rollback()


def flush_log(cursor: Cursor) -> None:
    """After it, whatever was committed here before this transaction is on disk, and on the synchronous standbys."""
    cursor.execute("SELECT pg_logical_emit_message(true, 'balancer', '')")


def hold_statement(tablet: tuple[int, int], *, writing: bool = True) -> Statement:
    """Proves that this node owns the tablet with that epoch."""
    return sql.SQL("CALL balancer.hold({}, {}, {})").format(*map(sql.Literal, (*tablet, writing)))


def clock_of(connection: Connection) -> datetime:
    """The ticket of this server."""
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None, "it answers"
    found: datetime = row[0]
    return found


_AS = """
CREATE FUNCTION pg_temp.{name}({arguments}) RETURNS TABLE ({results}) LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET row_security = on AS {body}
"""


def _as_role(
    cursor: Cursor, role: str, call: str, results: str, arguments: Sequence[tuple[str, object]]
) -> tuple[object, ...]:
    """The row returned by one of our functions, called with the rights of a role, and of nobody else."""
    name = sql.Identifier(f"balancer_{uuid4().hex}")
    types, values = zip(*arguments, strict=True)
    places = ", ".join(f"${number}" for number in range(1, len(types) + 1))
    create = sql.SQL(_AS).format(
        name=name,
        arguments=sql.SQL(", ".join(types)),
        results=sql.SQL(results),
        body=sql.Literal(f"SELECT * FROM {call}({places})"),  # noqa: S608 - names of our own
    )
    literals = sql.SQL(", ").join(
        sql.SQL("{}::" + kind).format(sql.Literal(value)) for kind, value in zip(types, values, strict=True)
    )
    select = sql.SQL("SELECT * FROM pg_temp.{}({})").format(name, literals)
    become = sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role))
    run_together(cursor, [become, create, sql.SQL("RESET ROLE"), select])
    (row,) = last_rows(cursor)
    return row


def deliver_letter(
    cursor: Cursor, letter: Letter, sender: str, ticket_of: str, ticket: datetime
) -> tuple[str, str | None]:
    """Outcome and reason, at the target's owner; inside the caller's `node_transaction`, after `hold`."""
    arguments = [
        ("text", letter.target),
        ("text[]", letter.key),
        ("uuid", letter.id),
        ("text", letter.name),
        ("jsonb", Jsonb(letter.body)),
        ("text", sender),
        ("text[]", letter.sender_key),
        ("text", letter.role),
        ("text", ticket_of),
        ("timestamptz", ticket),
    ]
    results = "outcome text, reason text, clock timestamptz"
    outcome, reason, _ = _as_role(cursor, letter.role, "balancer.deliver_message", results, arguments)
    return str(outcome), None if reason is None else str(reason)


def fail_letter(
    cursor: Cursor, leaf: Name, keys: Sequence[tuple[str, str]], letter: Letter, *, sender: str, reason: str
) -> tuple[str, str | None]:
    """Gives a message up at its target, unless it has an outcome; returns the one that stands. As `deliver_letter`."""
    names = sql.SQL(", ").join(sql.Identifier(name) for name, _ in keys)
    values = sql.SQL(", ").join(
        sql.SQL("{}::" + kind).format(sql.Literal(text)) for (_, kind), text in zip(keys, letter.key, strict=True)
    )
    cursor.execute(
        sql.SQL(
            "INSERT INTO {} ({}, message_id, message_outcome, message_reason, message_name, message_sender,"
            " message_sender_key) VALUES ({}, %s, 'failed', %s, %s, %s, %s) ON CONFLICT DO NOTHING"
        ).format(leaf.identifier, names, values),
        (letter.id, reason, letter.name, sender, letter.sender_key),
    )
    stands = sql.SQL("SELECT message_outcome, message_reason FROM {} WHERE message_id = %s").format(leaf.identifier)
    row = cursor.execute(stands, (letter.id,)).fetchone()
    assert row is not None, "it was there, or is now"
    return str(row[0]), row[1]


def settle_applied(cursor: Cursor, leaf: Name, messages: Sequence[UUID]) -> None:
    """At the sender's owner, once the inboxes have the outcomes. Like `deliver_letter`."""
    statement = sql.SQL("DELETE FROM {} WHERE message_id = ANY(%s) AND message_state = 'pending'")
    cursor.execute(statement.format(leaf.identifier), (list(messages),))


def settle_failed(cursor: Cursor, letter: Letter, sender: str, reason: str) -> bool:
    """The same for one that was given up: its reversal, with the sender's rights. False: it was done before."""
    arguments = [
        ("text", sender),
        ("text[]", letter.sender_key),
        ("uuid", letter.id),
        ("text", "failed"),
        ("text", reason),
    ]
    (done,) = _as_role(cursor, letter.role, "balancer.settle_message", "done boolean", arguments)
    return bool(done)


def put_off(cursor: Cursor, leaf: Name, message: UUID, seconds: float, reason: str, *, counts: bool) -> None:
    """Retries a message later; it `counts` if its target has refused it."""
    statement = sql.SQL(
        "UPDATE {} SET message_tries = message_tries + %s, message_due = clock_timestamp() + %s * interval '1 second',"
        " message_reason = %s WHERE message_id = %s AND message_state = 'pending'"
    )
    cursor.execute(statement.format(leaf.identifier), (int(counts), seconds, reason[:1000], message))


_RECEIPTS = """
SELECT c.relname, i.message_id, i.message_sender, i.message_sender_key
FROM {} i JOIN pg_class c ON c.oid = i.tableoid
WHERE message_gone IS NULL AND (message_outcome = 'applied' OR message_dismissed)
  AND message_at < clock_timestamp() - %s::interval ORDER BY message_at LIMIT %s
"""
_OLD = """
SELECT DISTINCT c.relname FROM (
    (SELECT tableoid FROM {0} WHERE message_gone < clock_timestamp() - %(kept)s::interval LIMIT %(limit)s)
    UNION ALL (SELECT tableoid FROM {0} WHERE message_gone IS NOT NULL
               AND message_gone_by <> (SELECT node FROM balancer.node) LIMIT %(limit)s)
) AS i JOIN pg_class c ON c.oid = i.tableoid
"""


def receipts(connection: Connection | Cursor, inbox: Name, after: str = _SETTLED_AFTER) -> list[tuple[str, Receipt]]:
    """Outcomes whose senders may have forgotten them, each with the partition it is in."""
    rows = connection.execute(sql.SQL(_RECEIPTS).format(inbox.identifier), (after, _FORGET_AT_ONCE)).fetchall()
    return [(str(partition), Receipt(*rest)) for partition, *rest in rows]


def old_partitions(connection: Connection | Cursor, inbox: Name, kept: str = KEPT) -> list[str]:
    """Partitions of an inbox with something for this server to forget or to mark."""
    limits = {"kept": kept, "limit": _FORGET_AT_ONCE}
    return [str(name) for (name,) in connection.execute(sql.SQL(_OLD).format(inbox.identifier), limits)]


def mark_gone(cursor: Cursor, leaf: Name, messages: Sequence[UUID]) -> None:
    """Their outbox rows were seen to be gone; inside the caller's `node_transaction`, after `hold`."""
    statement = sql.SQL(
        "UPDATE {} SET message_gone = clock_timestamp(), message_gone_by = (SELECT node FROM balancer.node)"
        " WHERE message_id = ANY(%s) AND message_gone IS NULL"
    )
    cursor.execute(statement.format(leaf.identifier), (list(messages),))


def forget_old(cursor: Cursor, leaf: Name, kept: str = KEPT) -> int:
    """Deletes outcomes that nobody can ask for any more; marks again what another server has marked. As `mark_gone`."""
    cursor.execute(
        sql.SQL(
            "UPDATE {} SET message_gone = clock_timestamp(), message_gone_by = (SELECT node FROM balancer.node)"
            " WHERE message_gone IS NOT NULL AND message_gone_by <> (SELECT node FROM balancer.node)"
        ).format(leaf.identifier)
    )
    statement = sql.SQL(
        "DELETE FROM {0} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {0}"
        " WHERE message_gone < clock_timestamp() - %s::interval LIMIT %s))"
    )
    return cursor.execute(statement.format(leaf.identifier), (kept, _FORGET_AT_ONCE)).rowcount


class MailRow(NamedTuple):
    """A message in an outbox, for people. Its body belongs to the application and is not shown."""

    partition: str
    id: UUID
    sender_key: list[str]
    target: str
    key: list[str]
    name: str
    role: str
    state: str
    sent: datetime
    age: float
    tries: int
    due: datetime
    reason: str | None


_LISTED = """
SELECT c.relname, message_id, ARRAY[{keys}], message_target, message_key, message_name, message_role, message_state,
       message_sent, extract(epoch FROM clock_timestamp() - message_sent)::float8, message_tries, message_due,
       message_reason
FROM {outbox} o JOIN pg_class c ON c.oid = o.tableoid
WHERE message_state = ANY(%s) AND (%s::uuid IS NULL OR message_id = %s) ORDER BY message_sent LIMIT %s
"""


def listed(
    connection: Connection, outbox: Name, keys: Sequence[str], states: Sequence[str], *, limit: int, only: UUID | None
) -> list[MailRow]:
    """Messages of a table here, oldest first; see `waiting` about tablets that have left."""
    statement = sql.SQL(_LISTED).format(
        keys=sql.SQL(", ").join(sql.SQL("o.{}::text").format(sql.Identifier(name)) for name in keys),
        outbox=outbox.identifier,
    )
    return [MailRow(*row) for row in connection.execute(statement, (list(states), only, only, limit)).fetchall()]


def try_now(cursor: Cursor, leaf: Name, message: UUID, *, give_up: bool) -> bool:
    """Makes a pending message due, to be tried or to be given up. False: it is not pending. As `mark_gone`."""
    statement = sql.SQL(
        "UPDATE {} SET message_due = clock_timestamp(), message_tries = CASE WHEN %s THEN %s ELSE message_tries END"
        " WHERE message_id = %s AND message_state = 'pending'"
    )
    return cursor.execute(statement.format(leaf.identifier), (give_up, GIVE_UP, message)).rowcount > 0


def note_dismissed(cursor: Cursor, leaf: Name, message: UUID) -> None:
    """Tells the inbox that a failed message was reversed at its sender and will be dismissed there. As `mark_gone`."""
    statement = sql.SQL("UPDATE {} SET message_dismissed = true WHERE message_id = %s AND message_outcome = 'failed'")
    cursor.execute(statement.format(leaf.identifier), (message,))


def dismiss(cursor: Cursor, leaf: Name, message: UUID) -> bool:
    """Takes a failed message out of the outbox, after `note_dismissed`. False: it has not failed. As `mark_gone`."""
    statement = sql.SQL("DELETE FROM {} WHERE message_id = %s AND message_state = 'failed'")
    return cursor.execute(statement.format(leaf.identifier), (message,)).rowcount > 0
