"""Messages that a transaction sends to other keys: stored with its changes, delivered right after its commit.

`connection.send(…)` stores a message (see `RoutedConnection`); when the transaction is committed, `deliver` brings each
one to its target's owner and settles it. Nothing here may fail the application: its transaction is committed, and the
leader delivers whatever is not delivered now. The argument why every message is applied once is in
`balancer/nodes/schema/messages.sql`. Steps without I/O of their own, as in `client/transaction/steps`.
"""

import json
from collections.abc import Generator, Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, cast
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from balancer.client.keys.routes import Routes
from balancer.client.transaction.connections import AsyncBlockConnection, BlockConnection
from balancer.client.transaction.pools import Loan
from balancer.client.transaction.steps import Read, Request, TransactionRequest, ask
from balancer.directory.locate import AnyKey, RowId, key_values
from balancer.directory.model import Table
from balancer.errors import BalancerError, UserError
from balancer.naming import parse_name
from balancer.policies.keyspace.keys import show_value
from balancer.untrusted import quoted

PATIENCE = 1.0
"""Seconds for a message to find its target's owner, and for its sender to hear of it: longer than a switch."""
TICKET_SECONDS = 300.0
"""How long a ticket is used; its server accepts it for twice as long."""
SHUN_SECONDS = 5.0
"""How long a node that could not be reached is left to the leader."""

Work = Generator[Request, Any, None]

SEND = "SELECT * FROM balancer.send_message(%s, %s, %s, %s, %s, %s)"
_DELIVER = sql.SQL(
    "SELECT outcome, clock FROM balancer.deliver_message({target}, {target_key}, {id}, {name}, {body}, {sender},"
    " {sender_key}, {role}, {ticket_of}, {ticket})"
)
_SETTLE = sql.SQL("SELECT balancer.settle_message({sender}, {sender_key}, {id}, 'applied', NULL)")
_CLOCK = sql.SQL("SELECT clock_timestamp()").format()


class Sent(NamedTuple):
    """A message that was stored."""

    id: UUID
    target: str
    key: AnyKey
    key_text: list[str]
    name: str
    body: str
    role: str
    before: frozenset[UUID]
    """Earlier messages to the same target that were not settled."""


class Ticket(NamedTuple):
    """A server's clock as it reported it, and when that was by our own."""

    clock: Any
    taken: float


class Tickets:
    """What a router knows about the nodes that it delivers to. Shared by its threads: entries are replaced whole."""

    def __init__(self) -> None:
        self.of: dict[str, Ticket] = {}
        self.shunned: dict[str, float] = {}


class Outgoing:
    """The messages of one transaction."""

    def __init__(self, routes: Routes, tickets: Tickets, table: str, key: AnyKey) -> None:
        self._routes = routes
        self._tickets = tickets
        self._table = table
        self._key = key
        self._given: Mapping[str, Ticket] = {}
        self.sent: list[Sent] = []

    def values(self, table: str, key: AnyKey, name: str, body: Mapping[str, Any]) -> tuple[Any, ...]:
        """The parameters of `SEND`. Raises `UserError` for what cannot be sent."""
        snapshot = self._routes.snapshot
        for one in {self._table, table}:
            self._routes.check_here(one, "a message")
        self._routes.locate(table, key)  # an unknown table, or a key that does not fit
        sender = key_text(snapshot.table(self._table), self._key)
        return (self._table, sender, table, key_text(snapshot.table(table), key), name, Jsonb(body, dumps=_dumps))

    def note(self, values: tuple[Any, ...], key: AnyKey, row: Any, *, deliver: bool) -> UUID:
        """Keeps what was stored, to be delivered after the commit."""
        found, role, before = row
        _, _, target, texts, name, body = values
        if deliver:
            self.sent.append(Sent(found, target, key, texts, name, _dumps(body.obj), role, frozenset(before or ())))
        identity: UUID = found
        return identity

    def prepare(self, loan: Loan) -> Work:
        """Before the commit, in its transaction: forgets what was undone, and gets a ticket from every target's node
        that it has none from. Later would be too late."""
        yield from self._forget_undone(loan)
        for node in sorted({self._routes.locate(one.target, one.key).node for one in self.sent}):
            known = self._tickets.of.get(node)
            if not self._shuns(node) and (known is None or self._now() - known.taken > TICKET_SECONDS):
                target = next(one for one in self.sent if self._routes.locate(one.target, one.key).node == node)
                yield from self._ask(target.target, target.key, node, _CLOCK)
        self._given = dict(self._tickets.of)  # later ones say nothing about this transaction's messages

    def _forget_undone(self, loan: Loan) -> Work:
        """A rollback to a savepoint takes messages back: those are delivered that the outbox has, not those that we
        remember."""
        status = loan.connection.pgconn.transaction_status
        table = self._routes.snapshot.table(self._table)
        if status != TransactionStatus.INTRANS or table.message_roots is None:
            self.sent = []  # nothing is committed; or the leader delivers what is there
            return
        assert not isinstance(self._key, RowId), "it has sent something"
        where = [
            sql.SQL("{} = {}").format(sql.Identifier(column.name), sql.Literal(value))
            for column, value in zip(table.key_columns, key_values(self._key), strict=True)
        ]
        outbox = parse_name(table.roots[table.message_roots[0]]).identifier
        query = sql.SQL("SELECT message_id FROM {} WHERE {} AND message_id = ANY ({}::uuid[])").format(
            outbox, sql.SQL(" AND ").join(where), sql.Literal([str(one.id) for one in self.sent])
        )
        rows = yield Read(loan, query)
        there = {str(found) for (found,) in rows}
        self.sent = [one for one in self.sent if str(one.id) in there]

    def deliver(self) -> Work:
        """After the commit. Raises no node's or directory's error: the leader delivers what is left."""
        applied: set[UUID] = set()
        with suppress(BalancerError):  # the table, or its key, is no longer in the directory
            for one in self.sent:
                # Earlier messages it must wait for count only if we have just delivered them ourselves.
                if one.before <= applied and (yield from self._delivered(one)):
                    applied.add(one.id)
                    yield from self._settled(one)

    def _delivered(self, one: Sent) -> Generator[Request, Any, bool]:
        node = self._routes.locate(one.target, one.key).node
        ticket = self._given.get(node)
        if ticket is None or self._shuns(node):
            return False
        call = _DELIVER.format(
            target=one.target,
            target_key=one.key_text,
            id=one.id,
            name=one.name,
            body=one.body,
            sender=self._table,
            sender_key=key_text(self._routes.snapshot.table(self._table), self._key),
            role=one.role,
            ticket_of=node,
            ticket=ticket.clock,
        )
        row = yield from self._ask(one.target, one.key, node, call)
        return row is not None and row[0] == "applied"

    def _settled(self, one: Sent) -> Work:
        sender = key_text(self._routes.snapshot.table(self._table), self._key)
        call = _SETTLE.format(sender=self._table, sender_key=sender, id=one.id)
        yield from self._ask(self._table, self._key, "", call)

    def _ask(self, table: str, key: AnyKey, node: str, call: sql.Composed) -> Generator[Request, Any, Any]:
        """The row that a one-message transaction returns, or None; a node's clock is its next ticket."""
        began = self._now()
        wish = TransactionRequest(began + PATIENCE, signpost=self._routes.signpost)
        try:
            location, rows = yield from ask(
                self._routes.finder(table, key), wish, self._routes.clock.monotonic, call, None, rows_as=tuple_row
            )
        except (psycopg.Error, BalancerError):
            if node and self._now() - began >= PATIENCE:
                self._tickets.shunned[node] = self._now() + SHUN_SECONDS
            return None
        if node and rows:
            self._tickets.of[location.node] = Ticket(rows[-1][-1], began)
        return rows[-1] if rows else None

    def _shuns(self, node: str) -> bool:
        return self._tickets.shunned.get(node, 0.0) > self._now()

    def _now(self) -> float:
        return self._routes.clock.monotonic()


def key_text(table: Table, key: AnyKey) -> list[str]:
    """A key as its columns' values are written."""
    if isinstance(key, RowId):
        raise UserError(f"{key} says where a row of table {table.name} is, but not its key: a message needs that")
    values = key_values(key)
    if any(value is None for value in values) or not values:
        raise UserError(f"key {quoted(key)} of table {table.name} cannot have messages: a value is missing")
    return [show_value(value) for value in values if value is not None]


def _dumps(body: Any) -> str:
    try:
        return json.dumps(body, default=_text, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"the body of a message is an object of plain values: {error}") from None


def _text(value: object) -> str:
    if isinstance(value, Decimal | UUID | date | datetime | time | timedelta):
        return str(value)
    raise TypeError(f"{type(value).__name__} is none")


class RoutedConnection(BlockConnection):
    """A connection of a router's pool: psycopg's own, and `send` inside `Router.transaction`."""

    outgoing: Outgoing | None = None

    def parted(self) -> "RoutedConnection":
        other = cast(RoutedConnection, super().parted())
        other.outgoing = None  # the block keeps its messages; the next one that gets this connection has none
        return other

    def send(
        self, table: str, key: AnyKey, message: str, body: Mapping[str, Any] | None = None, *, deliver: bool = True
    ) -> UUID:
        """Sends a message to another key, on any shard, with this transaction: it is applied there exactly once if, and
        after, this transaction is committed. Returns its id.

        `message` is declared in the table's bundle file. It is delivered when the block ends, without raising what goes
        wrong there; the leader delivers what was not. `deliver=False` leaves it to the leader from the start.
        """
        outgoing = sending(self.outgoing)
        values = outgoing.values(table, key, message, body or {})
        row = self.cursor(row_factory=tuple_row).execute(SEND, values).fetchone()
        return outgoing.note(values, key, row, deliver=deliver)


class AsyncRoutedConnection(AsyncBlockConnection):
    """The same for `AsyncRouter`."""

    outgoing: Outgoing | None = None

    async def send(
        self, table: str, key: AnyKey, message: str, body: Mapping[str, Any] | None = None, *, deliver: bool = True
    ) -> UUID:
        """See `RoutedConnection.send`."""
        outgoing = sending(self.outgoing)
        values = outgoing.values(table, key, message, body or {})
        row = await (await self.cursor(row_factory=tuple_row).execute(SEND, values)).fetchone()
        return outgoing.note(values, key, row, deliver=deliver)


def sending(outgoing: Outgoing | None) -> Outgoing:
    """What a connection sends with; raises `UserError` outside a transaction of one key."""
    if outgoing is None:
        raise UserError(
            "messages are sent inside `transaction`, which writes rows of one key; inside `atomic` use"
            " tx.send(…, sender=(table, key))"
        )
    return outgoing
