"""The block of `Router.transaction`: the fast path for when nothing is in the way, the steps for everything else.

Most transactions find their node by the newest map, an idle connection and a tablet that nobody moves. For those the
generators of `transaction_steps`, which know every way out, cost more than the proof itself. So a block borrows a
connection and sends nothing: BEGIN and the proof go with its first statement (`first_statement`), or before whatever
else the connection is asked for. If they are refused, nothing was done, not even the statement: the connection goes
back, the steps begin from the start, wait and follow the tablet, and the application's connection object continues as
the one that they have found, perhaps on another node. Then the statement is sent again. The same happens if the
connection broke before the answer came: its transaction is gone with it. The end is COMMIT directly; everything that is
not a plain commit is left to `leave`.
"""

from contextlib import AbstractContextManager
from types import TracebackType
from typing import NamedTuple

import psycopg
from psycopg.pq import TransactionStatus

from balancer.client.blocking_hands import BlockingHands, borrow, give_back
from balancer.client.checked_rows import KeyGuard, guarded
from balancer.client.key_hints import BlockHints
from balancer.client.locate import AnyKey, Location
from balancer.client.open_blocks import OpenBlock, OpenBlocks
from balancer.client.outgoing import Outgoing, RoutedConnection, Tickets
from balancer.client.pending_transaction import PendingTransaction
from balancer.client.pools import Loan
from balancer.client.routing import Routes
from balancer.client.sampler import Sampler
from balancer.client.transaction_steps import LONGEST_BORROW, Held, Undo, Wish, check_outcome, enter, leave
from balancer.client.wire import command

_OPEN = TransactionStatus.INTRANS


class BlockParts(NamedTuple):
    """What all blocks of a router share."""

    routes: Routes
    sampler: Sampler | None
    blocks: OpenBlocks
    tickets: Tickets


class TransactionBlock(AbstractContextManager[RoutedConnection], PendingTransaction):
    """One block; opened once."""

    __slots__ = (
        "_checked",
        "_connection",
        "_guard",
        "_hands",
        "_key",
        "_noted",
        "_parts",
        "_table",
        "_weight",
    )

    def __init__(
        self,
        hands: BlockingHands,
        parts: BlockParts,
        table: str,
        key: AnyKey,
        *,
        wish: Wish,
        weight: float,
        checked: bool,
    ) -> None:
        super().__init__(parts.routes, wish)
        self._hands = hands
        self._parts = parts
        self._table = table
        self._key = key
        self._weight = weight
        self._checked = checked
        self._guard: AbstractContextManager[None] | None = None
        self._noted: OpenBlock | None = None
        self._connection: RoutedConnection | None = None

    def __enter__(self) -> RoutedConnection:
        routes, sampler, blocks, tickets = self._parts
        if sampler is not None:
            sampler.note(self._table, self._key, self._weight, not self._wish.read_only)
        held = self._held = self._quickly() or self._by_steps()
        connection: RoutedConnection = held.loan.connection
        self._connection = connection
        self._noted = blocks.opened(self._table, held.location)
        if connection.opening is None:
            connection.location, connection.begun, connection.over = held.location, True, False
            self._begun(held.location)
        connection.hints = self._hints
        connection.outgoing = None if self._wish.read_only else Outgoing(routes, tickets, self._table, self._key)
        if self._checked:
            self._guarded()
        return connection

    def _guarded(self) -> None:
        """Statements are checked until the block ends."""
        try:
            self._begin_if_not_begun()
            assert self._held is not None
            guard = guarded(KeyGuard(self._parts.routes, self._table, self._key, self._held))
            guard.__enter__()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        self._guard = guard

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection, noted = self._connection, self._noted
        assert connection is not None
        assert noted is not None
        outgoing, connection.outgoing = connection.outgoing, None
        connection.hints = None
        if self._guard is not None:
            self._guard.__exit__(None, None, None)
        try:
            if kind is not None:
                connection.begun = False
                self._roll_back(connection)
            elif outgoing is None or not outgoing.sent:
                self._commit()
            else:
                self._commit_and_send(outgoing)
        finally:
            self._parts.blocks.forget(noted)

    def _roll_back(self, connection: RoutedConnection) -> None:
        if self._held is None:
            return  # it never began
        if connection.opening is not None:
            connection.show(self, None)
            connection.begun = False
            give_back(self._held.loan)
            return
        self._hands._drive(leave(self._held, failed=True))

    def _commit(self) -> None:
        held = self._begin_if_not_begun()
        connection = held.loan.connection
        connection.begun = False
        if connection.over or connection.pgconn.transaction_status != _OPEN:
            self._hands._drive(leave(held, failed=False))
            return
        try:
            with connection.lock:
                connection.wait(command(connection, b"COMMIT"))
        except psycopg.Error as failure:
            check_outcome(held, failure)
            raise
        finally:
            give_back(held.loan)

    def _commit_and_send(self, outgoing: Outgoing) -> None:
        held = self._begin_if_not_begun()
        try:
            self._hands._drive(outgoing.prepare(held.loan))
        except BaseException:
            held.loan.connection.begun = False
            self._hands._drive(leave(held, failed=True))
            raise
        held.loan.connection.begun = False
        self._hands._drive(leave(held, failed=False))
        self._hands._drive(outgoing.deliver())

    def _hints(self) -> BlockHints:
        held = self._pending()
        return BlockHints(self._parts.routes, self._table, self._key, held.location, self._parts.blocks.hinted)

    def _begin_if_not_begun(self) -> Held:
        """A block without a statement is proven too: its end means that this node had the key."""
        connection = self._connection
        assert connection is not None
        if connection.opening is not None:
            with connection.lock:
                self.begin()
        assert self._held is not None
        return self._held

    def _begun(self, location: Location) -> None:
        assert self._noted is not None
        self._noted.began = self._parts.routes.clock.monotonic()
        self._noted.location = location

    def _again(self, held: Held, refused: psycopg.Error) -> None:
        """From the start, by the steps; the application's connection continues as the one that they find."""
        connection = held.loan.connection
        connection.show(self, None)
        spare = connection.parted()
        connection.hide(self)
        self._held = None
        self._put_away(Loan(held.loan.pool, spare))
        self._tried(held.location, refused)
        found = self._by_steps()
        connection.take_over(found.loan.connection)
        self.pgconn = connection.__dict__["pgconn"]
        connection.show(self, found.location)
        self._held = Held(found.location, Loan(found.loan.pool, connection))
        self._begun(found.location)

    def _by_steps(self) -> Held:
        routes = self._parts.routes
        return self._hands._drive(enter(routes.finder(self._table, self._key), self._wish, routes.clock.monotonic))

    def _quickly(self) -> Held | None:
        """A connection to where the map says the key is; None: none is available at once, and nothing was done."""
        location = self._parts.routes.locate(self._table, self._key)
        try:
            pool = self._hands._pool(location.node)
            self._entered = self._parts.routes.clock.monotonic()
            left = self._wish.deadline - self._entered
            loan = borrow(pool, max(0.0, min(left, LONGEST_BORROW)))
        except psycopg.Error as error:
            self._note(location, error)
            return None
        loan.connection.hide(self)
        return Held(location, loan)

    def _put_away(self, loan: Loan) -> None:
        try:
            if not loan.connection.closed:
                self._hands._perform(Undo(loan))
        except psycopg.Error:
            pass  # a broken connection is discarded when it is returned
        finally:
            give_back(loan)
