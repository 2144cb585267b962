"""Connections as a router lends them: code inside a block cannot end its transaction, nor come before its proof.

`commit()` and `rollback()` inside a block are refused at once. An ORM that is given the block's connection (through
SQLAlchemy's `creator`, say) would otherwise commit rows that the block may still want to roll back, and then continue
without any proof of ownership. Nested blocks (`connection.transaction()`) are savepoints, as always. `pools` makes
these connections.

A blocking connection may be lent before its transaction has begun: BEGIN and the proof then travel with the block's
first statement (`wire`). Until then it has no `pgconn`. Anything that wants to talk to the server must ask
for that, so nothing can be sent any other way: asking begins the transaction. A statement of a `FirstCursor` is the one
exception, because it brings the beginning along.

No cursor sends a text that ends the transaction (`wire`), whatever its class. And once it has begun, nothing is
sent without a transaction: there may never have been one, because a cancel hit BEGIN. What followed would commit by
itself, unproven. Nor is anything sent in a transaction that, by the server's word, has begun in its place
(`wire.note_ends`), or, by code that has kept the connection, after the block.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import ref

import psycopg
from psycopg import BaseConnection, generators
from psycopg._cursor_base import BaseCursor
from psycopg.abc import PQGen, PQGenConn
from psycopg.pq import Format, TransactionStatus
from psycopg.sql import Composable

from balancer.client.keys.hints import BlockHints
from balancer.client.transaction.wire import OVER, FirstCursor, OwnWords, ends_transaction, goes_back, note_ends
from balancer.directory.locate import Location
from balancer.errors import UserError

_HIDDEN = ("pgconn", "location")
_TRANSPORT = ("pgconn", "_prepared", "_pool", "_created_at", "_expire_at", "_closed", "_notifies_backlog", "proofs")
"""What a connection is to its server and its pool; the rest is what the application has set on the object."""


class Opening(ABC):
    """One block's transaction that has not begun. Everything here is called with the connection's lock held."""

    __slots__ = ("pgconn", "sending")

    sending: bool
    """Whether the lock's holder is beginning it, and may have `pgconn`."""
    pgconn: Any

    def cursor(self, connection: Any, row_factory: Any, binary: bool) -> FirstCursor:
        """A cursor that is made without looking at the connection."""
        self.sending = True
        try:
            cursor = FirstCursor(connection, row_factory=row_factory or connection.row_factory)
        finally:
            self.sending = False
        if binary:
            cursor.format = Format.BINARY
        return cursor

    @abstractmethod
    def begin(self) -> None:
        """Begins it, with the proof, and reveals what was hidden."""

    @abstractmethod
    def begin_with(self, cursor: Any, query: Any, params: Any, options: dict[str, Any]) -> None:
        """The same, together with the cursor's statement."""


class BlockConnection(psycopg.Connection[Any]):
    """Of a blocking router."""

    lent = False
    """Whether a block has it; the pool itself may roll back what is returned to it half-way."""
    location: Location | None
    """Of a block of `transaction`: what was proven."""
    opening: Opening | None = None
    """Of a block whose transaction has not begun yet."""
    hints: Callable[[], BlockHints] | None = None
    """Of a block of `transaction`: what reports oddities of its statements."""
    begun = False
    """Of a block of `transaction`: whether its transaction has begun, or never will."""
    over = False
    """Of a block of `transaction`: whether a statement's text has ended it, and perhaps begun another."""
    undone = False
    """Whether there was a rollback to a savepoint: later proofs are gone with their locks."""
    pipelined = False
    """Whether statements are sent before earlier ones are answered."""
    returned = False
    """Whether it is back in its pool, after a block."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursor_factory = FirstCursor
        # Code that asks for a hidden attribute may have the lock, or not.
        self.lock = threading.RLock()  # type: ignore[assignment]
        self.location = None
        self.proofs: set[bytes] = set()
        """Names of proofs that are prepared on the server."""

    def hide(self, opening: Opening) -> None:
        """From now on the transaction begins with whatever comes first."""
        known = self.__dict__
        opening.pgconn = known.pop("pgconn")
        del known["location"]
        self.opening = opening
        self.begun = self.over = False

    def show(self, opening: Opening, location: Location | None) -> None:
        """It has begun, or never will."""
        self.pgconn = opening.pgconn
        self.location = location
        self.opening = None
        self.begun = True

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """psycopg's own, through which everything is sent."""
        _refuse_unproven(self, arguments)
        return super().wait(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name in _HIDDEN:
            with self.lock:
                opening = self.opening
                if opening is not None:
                    if opening.sending and name == "pgconn":
                        return opening.pgconn
                    opening.begin()
                if name in self.__dict__:
                    return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    def __del__(self) -> None:  # type: ignore[override]
        self.opening = None
        super().__del__()

    def cursor(self, name: str = "", *, row_factory: Any = None, binary: bool = False, **options: Any) -> Any:
        """psycopg's own, which looks at the connection's state; that would begin the transaction."""
        if self.opening is not None and not name and self.cursor_factory is FirstCursor:
            with self.lock:
                if self.opening is not None:
                    return self.opening.cursor(self, row_factory, binary)
        return super().cursor(name, row_factory=row_factory, binary=binary, **options)

    def parted(self) -> "BlockConnection":
        """This server connection as another object, to be returned; this one then has none."""
        other = type(self)(self.pgconn)
        lock = other.lock
        other.__dict__.update(self.__dict__)
        other.lock, other.hints, other.begun, other.over = lock, None, False, False
        other._notice_handlers, other._notify_handlers = self._notice_handlers[:], self._notify_handlers[:]
        other._listen()
        return other

    def take_over(self, other: "BlockConnection") -> None:
        """Continues as the other one, which belongs to nobody afterwards."""
        known = other.__dict__  # not every version of psycopg has all of them
        self.__dict__.update({name: known[name] for name in _TRANSPORT if name in known})
        self._listen()

    def _listen(self) -> None:
        """psycopg's own handlers know the object by a weak reference."""
        me: Any = ref(self)
        self.pgconn.notice_handler = partial(BaseConnection._notice_handler, me)
        self.pgconn.notify_handler = partial(BaseConnection._notify_handler, me)

    def _exec_command(self, command: Any, result_format: Format = Format.TEXT) -> PQGen[Any]:
        self.undone = self.undone or _is_undoing(command)
        return super()._exec_command(command, result_format)

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        if name is None:  # psycopg forgets everything it has prepared, after a ROLLBACK, say
            self.proofs.clear()
        return super()._deallocate(name)

    def cancel(self) -> None:
        """psycopg's own asks for `pgconn`, and the thread whose statement is to end has the lock of that."""
        opening = self.opening
        if opening is None:
            super().cancel()
        elif opening.sending:
            opening.pgconn.get_cancel().cancel()

    def _should_cancel(self) -> bool:
        opening = self.opening
        return super()._should_cancel() if opening is None else opening.sending

    def _cancel_gen(self) -> PQGenConn[None]:
        opening = self.opening
        cancelling = (self if opening is None else opening).pgconn.cancel_conn()
        cancelling.start()
        yield from generators.cancel(cancelling)

    def commit(self) -> None:
        _refuse(self.lent, "commit")
        super().commit()

    def rollback(self) -> None:
        _refuse(self.lent, "rollback")
        returned, self.returned = self.returned, False  # the pool's own
        try:
            super().rollback()
        finally:
            self.returned = returned


class HintedAsyncCursor(psycopg.AsyncCursor[Any]):
    """psycopg's, with hints; a transaction of an asyncio router has begun before it."""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        connection: Any = self.connection
        try:
            await super().execute(query, params, **options)
        except psycopg.errors.CheckViolation as error:
            if connection.hints is not None:
                connection.hints().no_partition(error)
            raise
        if connection.over:
            raise UserError(OVER)
        if self.rowcount == 0 and connection.hints is not None:
            connection.hints().found_nothing(query, params, connection)
        return self

    def _set_results(self, results: Any) -> None:
        super()._set_results(results)
        connection: Any = self.connection
        if connection.begun:
            note_ends(connection, self, results)


class AsyncBlockConnection(psycopg.AsyncConnection[Any]):
    """Of an asyncio router."""

    lent = False
    begun = False
    over = False
    undone = False
    pipelined = False
    returned = False
    location: Location | None = None
    hints: Callable[[], BlockHints] | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursor_factory = HintedAsyncCursor

    async def wait(self, *arguments: Any, **options: Any) -> Any:
        """psycopg's own, through which everything is sent."""
        _refuse_unproven(self, arguments)
        return await super().wait(*arguments, **options)

    def _exec_command(self, command: Any, result_format: Format = Format.TEXT) -> PQGen[Any]:
        self.undone = self.undone or _is_undoing(command)
        return super()._exec_command(command, result_format)

    async def commit(self) -> None:
        _refuse(self.lent, "commit")
        await super().commit()

    async def rollback(self) -> None:
        _refuse(self.lent, "rollback")
        returned, self.returned = self.returned, False  # the pool's own
        try:
            await super().rollback()
        finally:
            self.returned = returned


def _is_undoing(command: Any) -> bool:
    """For psycopg's own commands, which no cursor sends: the end of a `connection.transaction()`, as bytes."""
    return isinstance(command, bytes) and command.startswith(b"ROLLBACK TO")


def _refuse_unproven(connection: BlockConnection | AsyncBlockConnection, arguments: Sequence[Any]) -> None:
    if connection.lent:
        if connection.begun and (connection.over or connection.pgconn.transaction_status == TransactionStatus.IDLE):
            raise UserError(OVER)
        statement = _statement(arguments)
        if statement is None or isinstance(statement, OwnWords):
            return
        text = _text(statement, connection)
        if ends_transaction(text):
            # Nor does it continue after that: what follows was not meant to be in one transaction with what came
            # before.
            connection.over = not connection.pipelined
            raise UserError(OVER)
        connection.undone = connection.undone or goes_back(text)
    elif connection.returned:
        raise UserError("the connection is back in its pool: its block has ended; open another block")


def _statement(arguments: Sequence[Any]) -> Any:
    """What a cursor is about to send, of whichever class it is, by the names that psycopg's generators have for it."""
    frame = getattr(arguments[0], "gi_frame", None) if arguments else None
    known = {} if frame is None else frame.f_locals
    return known.get("query", known.get("statement")) if isinstance(known.get("self"), BaseCursor) else None


def _text(query: Any, connection: BlockConnection | AsyncBlockConnection) -> str:
    text = query.as_string(connection) if isinstance(query, Composable) else query
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def _refuse(lent: bool, word: str) -> None:
    if lent:
        raise UserError(
            f"{word}() inside a block of the router: the block's end commits, an exception rolls back. With SQLAlchemy"
            " use balancer.client.sqlalchemy.session, with Django balancer.client.django.shard"
        )
