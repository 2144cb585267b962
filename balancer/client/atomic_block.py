"""What `atomic` of both routers hands out: the connections of a transaction over several keys, and `send`.

A message sent from one of the keys is stored by the part of the transaction on that key's node, so that it exists if,
and after, the whole is committed. It is delivered when that part has reported that it is committed. Not sooner: nobody
sees what a part has only prepared, so its message would be taken for settled and forgotten at its target
(`balancer.nodes.message_functions`, 6), and delivered a second time when the leader finally ends the part.
"""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any
from uuid import UUID

from psycopg.rows import tuple_row

from balancer.client.atomic_steps import AtomicSteps
from balancer.client.locate import NO_KEY, AnyKey
from balancer.client.outgoing import (
    SEND,
    AsyncRoutedConnection,
    Outgoing,
    RoutedConnection,
    Tickets,
    Work,
    key_text,
)
from balancer.client.pools import Loan
from balancer.client.routing import Routes
from balancer.client.transaction_steps import Request

Sender = tuple[str, AnyKey]
"""The table and the key that a message is sent from."""


class AtomicMail:
    """The messages of one transaction, by the keys that they are sent from."""

    def __init__(self, routes: Routes, tickets: Tickets) -> None:
        self._routes = routes
        self._tickets = tickets
        self._of: dict[tuple[str, ...], tuple[str, Outgoing]] = {}

    def outgoing(self, sender: Sender, node: str) -> Outgoing:
        """Of one key, whose part of the transaction is on this node."""
        table, key = sender
        place = (table, *key_text(self._routes.snapshot.table(table), key))
        if place not in self._of:
            self._of[place] = node, Outgoing(self._routes, self._tickets, table, key)
        return self._of[place][1]

    def prepare(self, loan_of: Callable[[str], Loan]) -> Work:
        """Before anything is committed."""
        for node, outgoing in self._of.values():
            if outgoing.sent:
                yield from outgoing.prepare(loan_of(node))

    def deliver(self, unfinished: Sequence[str]) -> Work:
        """After the decision; those of parts that have not reported their commit are left to the leader."""
        for node, outgoing in self._of.values():
            if node not in unfinished:
                yield from outgoing.deliver()


class Atomic:
    """A transaction over several keys, wherever they are: see `Router.atomic`."""

    def __init__(
        self, steps: AtomicSteps, mail: AtomicMail, drive: Callable[[Generator[Request, Any, Loan]], Loan]
    ) -> None:
        self._steps = steps
        self._mail = mail
        self._drive = drive

    def on(self, table: str, key: AnyKey = NO_KEY) -> RoutedConnection:
        """The connection for rows of this key. Keys of one node share one; do not keep a cursor open beyond the end."""
        loan = self._drive(self._steps.join(table, key))
        connection: RoutedConnection = loan.connection
        return connection

    def send(
        self,
        table: str,
        key: AnyKey,
        message: str,
        body: Mapping[str, Any] | None = None,
        *,
        sender: Sender,
        deliver: bool = True,
    ) -> UUID:
        """Sends a message to another key, as `transaction`'s `send` does: `sender` is the table and the key that it is
        from, to which it is reversed if it is given up. It is applied if, and after, the whole is committed."""
        connection = self.on(*sender)
        outgoing = self._mail.outgoing(sender, self._steps.node_of(connection))
        values = outgoing.values(table, key, message, body or {})
        row = connection.cursor(row_factory=tuple_row).execute(SEND, values).fetchone()
        return outgoing.note(values, key, row, deliver=deliver)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Who takes part so far; the first decides."""
        return self._steps.nodes


class AsyncAtomic:
    """A transaction over several keys, wherever they are: see `Router.atomic`. For one task at a time."""

    def __init__(
        self,
        steps: AtomicSteps,
        mail: AtomicMail,
        drive: Callable[[Generator[Request, Any, Loan]], Awaitable[Loan]],
    ) -> None:
        self._steps = steps
        self._mail = mail
        self._drive = drive

    async def on(self, table: str, key: AnyKey = NO_KEY) -> AsyncRoutedConnection:
        """The connection for rows of this key."""
        loan = await self._drive(self._steps.join(table, key))
        connection: AsyncRoutedConnection = loan.connection
        return connection

    async def send(
        self,
        table: str,
        key: AnyKey,
        message: str,
        body: Mapping[str, Any] | None = None,
        *,
        sender: Sender,
        deliver: bool = True,
    ) -> UUID:
        """See `Atomic.send`."""
        connection = await self.on(*sender)
        outgoing = self._mail.outgoing(sender, self._steps.node_of(connection))
        values = outgoing.values(table, key, message, body or {})
        row = await (await connection.cursor(row_factory=tuple_row).execute(SEND, values)).fetchone()
        return outgoing.note(values, key, row, deliver=deliver)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Who takes part so far; the first decides."""
        return self._steps.nodes
