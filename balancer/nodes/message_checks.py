"""Questions of the consistency checker about the messages of one tablet, some pages at a time. Only reads.

Called inside a transaction that has proven to be the owner's (`held_reads`). Outboxes and inboxes are our own, so
reading them runs nobody else's code.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from psycopg import sql

from balancer.nodes.checksum import pages
from balancer.nodes.connection import Cursor
from balancer.nodes.message_roots import KeyColumns
from balancer.nodes.names import Name
from balancer.nodes.row_checks import page_after

PAGES = 256
"""Pages of an outbox or inbox that one look reads: 2 MB, each of whose messages is looked up at its other end."""


class SentRow(NamedTuple):
    """A message in an outbox."""

    id: UUID
    sender_key: list[str]
    target: str
    key: list[str]
    name: str
    state: str
    age: float
    """Seconds since it was sent."""
    known: bool
    """True if this node knows what the message does, or has not been told yet which messages there are."""
    reason: str | None


class KnownOutcome(NamedTuple):
    """A message in an inbox."""

    id: UUID
    outcome: str
    gone: bool
    dismissed: bool


class Unreversed(NamedTuple):
    """A message that was given up, in an inbox."""

    id: UUID
    key: list[str]
    sender: str
    sender_key: list[str]


class MailPage(NamedTuple):
    """What some pages have."""

    rows: list[Any]
    next_page: int
    """0: these were the last."""


# A node that knows the sender's table was told about its messages in the same transaction.
_SENT = """
SELECT t.message_id, ARRAY[{keys}], t.message_target, t.message_key, t.message_name, t.message_state,
       extract(epoch FROM clock_timestamp() - t.message_sent)::float8,
       EXISTS (SELECT FROM balancer.message_handler h
               WHERE (h.target, h.name, h.sender) = (t.message_target, t.message_name, {sender}))
       OR NOT EXISTS (SELECT FROM balancer.message_table m WHERE m.name = {sender}),
       t.message_reason
FROM ONLY {leaf} AS t WHERE {pages} ORDER BY t.message_sent
"""
_UNREVERSED = """
SELECT t.message_id, ARRAY[{keys}], t.message_sender, t.message_sender_key
FROM ONLY {leaf} AS t WHERE {pages} AND t.message_outcome = 'failed' AND NOT t.message_dismissed
ORDER BY t.message_at
"""


_OUTCOME = sql.SQL("t.message_outcome, t.message_gone IS NOT NULL, t.message_dismissed")
_STATE = sql.SQL("t.message_state")


def sent_rows(cursor: Cursor, leaf: Name, keys: Sequence[str], sender: str, first: int) -> MailPage:
    """The messages in these pages of a tablet's outbox, oldest first."""
    end = page_after(cursor, leaf, first, PAGES)
    statement = sql.SQL(_SENT).format(
        keys=_texts(keys), sender=sql.Literal(sender), leaf=leaf.identifier, pages=pages(first, end or None)
    )
    return MailPage([SentRow(*row) for row in cursor.execute(statement).fetchall()], end)


def unreversed(cursor: Cursor, leaf: Name, keys: Sequence[str], first: int) -> MailPage:
    """Those in these pages of a tablet's inbox that were given up, and that nobody has dismissed at their sender."""
    end = page_after(cursor, leaf, first, PAGES)
    statement = sql.SQL(_UNREVERSED).format(keys=_texts(keys), leaf=leaf.identifier, pages=pages(first, end or None))
    return MailPage([Unreversed(*row) for row in cursor.execute(statement).fetchall()], end)


def outcomes_of(
    cursor: Cursor, leaf: Name, keys: KeyColumns, wanted: Mapping[UUID, Sequence[str]]
) -> dict[UUID, KnownOutcome]:
    """What a tablet's inbox knows about these messages, each with the key that it was sent to."""
    rows = _found(cursor, leaf, keys, wanted, _OUTCOME)
    return {row[0]: KnownOutcome(*row) for row in rows}


def states_of(cursor: Cursor, leaf: Name, keys: KeyColumns, wanted: Mapping[UUID, Sequence[str]]) -> dict[UUID, str]:
    """What a tablet's outbox says about these messages, each with the key that it was sent from."""
    return {row[0]: str(row[1]) for row in _found(cursor, leaf, keys, wanted, _STATE)}


def _found(
    cursor: Cursor, leaf: Name, keys: KeyColumns, wanted: Mapping[UUID, Sequence[str]], columns: sql.SQL
) -> list[tuple[Any, ...]]:
    """Finds them by the primary key, whose last column alone has no index."""
    places = [sql.Identifier(f"k{number}") for number in range(len(keys))]
    same = [
        sql.SQL("t.{} = w.{}::" + kind).format(sql.Identifier(name), place)
        for (name, kind), place in zip(keys, places, strict=True)
    ]
    statement = sql.SQL(
        "SELECT t.message_id, {} FROM unnest(%s::uuid[]{}) AS w (id, {})"
        " JOIN ONLY {} AS t ON {} AND t.message_id = w.id"
    ).format(
        columns,
        sql.SQL(", %s::text[]" * len(keys)),
        sql.SQL(", ").join(places),
        leaf.identifier,
        sql.SQL(" AND ").join(same),
    )
    values = [[key[number] for key in wanted.values()] for number in range(len(keys))]
    return cursor.execute(statement, (list(wanted), *values)).fetchall()


def _texts(keys: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("t.{}::text").format(sql.Identifier(name)) for name in keys)
