"""The block of `Router.transaction`: the short way for when nothing is in the way, the steps for everything else.

Most transactions find their node by the newest map, an idle connection and a tablet that nobody moves. For those the
generators of `transaction_steps`, which know every way out, cost more than the proof itself. So the first try is made
here directly; whatever goes wrong in it leaves nothing behind, and the steps begin from the start. The end is the same:
COMMIT directly, and everything that is not a plain commit is left to `leave`.
"""

from contextlib import AbstractContextManager
from types import TracebackType
from typing import NamedTuple

import psycopg
from psycopg.pq import TransactionStatus

from balancer.client.blocking_hands import BlockingHands
from balancer.client.checked_rows import KeyGuard, guarded
from balancer.client.failures import classify_entry
from balancer.client.locate import AnyKey
from balancer.client.open_blocks import OpenBlock, OpenBlocks
from balancer.client.outgoing import Outgoing, RoutedConnection, Tickets
from balancer.client.pools import Loan
from balancer.client.routing import Routes
from balancer.client.sampler import Sampler
from balancer.client.transaction_steps import LONGEST_BORROW, GiveBack, Held, Undo, Wish, check_outcome, enter, leave
from balancer.client.wire import command

_OPEN = TransactionStatus.INTRANS


class BlockParts(NamedTuple):
    """What all blocks of a router share."""

    routes: Routes
    sampler: Sampler | None
    blocks: OpenBlocks
    tickets: Tickets


class TransactionBlock(AbstractContextManager[RoutedConnection]):
    """One block; opened once."""

    __slots__ = ("_checked", "_guard", "_hands", "_held", "_key", "_noted", "_parts", "_table", "_weight", "_wish")

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
        self._hands = hands
        self._parts = parts
        self._table = table
        self._key = key
        self._wish = wish
        self._weight = weight
        self._checked = checked
        self._guard: AbstractContextManager[None] | None = None
        self._held: Held | None = None
        self._noted: OpenBlock | None = None

    def __enter__(self) -> RoutedConnection:
        routes, sampler, blocks, tickets = self._parts
        if sampler is not None:
            sampler.note(self._table, self._key, self._weight, not self._wish.read_only)
        monotonic = routes.clock.monotonic
        held = self._quickly()
        if held is None:
            held = self._hands._drive(enter(routes.finder(self._table, self._key), self._wish, monotonic))
        self._held = held
        self._noted = blocks.opened(self._table, held.location, monotonic())
        connection: RoutedConnection = held.loan.connection
        connection.location = held.location
        if not self._wish.read_only:
            connection.outgoing = Outgoing(routes, tickets, self._table, self._key)
        if self._checked:
            self._guarded(held)
        return connection

    def _guarded(self, held: Held) -> None:
        """Statements are looked at, until the block ends."""
        guard = guarded(KeyGuard(self._parts.routes, self._table, self._key, held))
        try:
            guard.__enter__()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        self._guard = guard

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, noted = self._held, self._noted
        assert held is not None
        assert noted is not None
        self._parts.blocks.forget(noted)
        if self._guard is not None:
            self._guard.__exit__(None, None, None)
        connection: RoutedConnection = held.loan.connection
        outgoing, connection.outgoing = connection.outgoing, None
        if kind is not None:
            self._hands._drive(leave(held, failed=True))
            return
        if outgoing is None or not outgoing.sent:
            self._commit(held)
            return
        try:
            self._hands._drive(outgoing.prepare())
        except BaseException:
            self._hands._drive(leave(held, failed=True))
            raise
        self._hands._drive(leave(held, failed=False))
        self._hands._drive(outgoing.deliver())

    def _commit(self, held: Held) -> None:
        connection = held.loan.connection
        if connection.pgconn.transaction_status != _OPEN:
            self._hands._drive(leave(held, failed=False))
            return
        try:
            with connection.lock:
                connection.wait(command(connection, b"COMMIT"))
        except psycopg.Error as failure:
            check_outcome(held, failure)
            raise
        finally:
            self._hands._perform(GiveBack(held.loan))

    def _quickly(self) -> Held | None:
        """None: something was in the way, and nothing was done."""
        location = self._parts.routes.locate(self._table, self._key)
        loan: Loan | None = None
        try:
            pool = self._hands._pool(location.node)
            left = self._wish.deadline - self._parts.routes.clock.monotonic()
            connection = pool.getconn(max(0.0, min(left, LONGEST_BORROW)))
            connection.lent = True
            loan = Loan(pool, connection)
            with connection.lock:
                connection.wait(command(connection, self._wish.opening(location)))
        except psycopg.Error as error:
            if loan is not None:
                self._put_away(loan)
            if self._wish.wait is not None:
                self._wish.wait.refused(location, classify_entry(error), self._parts.routes.clock.monotonic())
            return None
        except BaseException:
            if loan is not None:
                self._hands._perform(GiveBack(loan))
            raise
        return Held(location, loan)

    def _put_away(self, loan: Loan) -> None:
        try:
            if not loan.connection.closed:
                self._hands._perform(Undo(loan))
        except psycopg.Error:
            pass  # a broken connection is discarded when it is given back
        finally:
            self._hands._perform(GiveBack(loan))
