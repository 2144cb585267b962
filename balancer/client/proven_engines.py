"""SQLAlchemy engines for the nodes of a cluster, on which nothing runs that is not proven. `sqlalchemy` is made of it.

One engine per node, made when the node is first needed, with SQLAlchemy's own pool. A transaction is begun by the
router's steps (`transaction_steps.enter`): BEGIN and `balancer.hold` in one message, waits and moves included; then
SQLAlchemy gets the connection. Its dialect refuses to begin a transaction, or to run a statement, on a connection that
is not in one of those: so there is no way, with a creator, an engine or a COMMIT of one's own, to a statement without
the proof of ownership.
"""

import asyncio
import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import psycopg
import sqlalchemy
from psycopg.pq import TransactionStatus
from psycopg_pool import PoolTimeout
from sqlalchemy import event
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg, PGDialectAsync_psycopg
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import await_only

from balancer.client.async_router import cancellations
from balancer.client.attachments import Attachments
from balancer.client.blocking_hands import driven
from balancer.client.failures import Failure, classify
from balancer.client.pools import LOOK_FOR_US, Loan, PoolBook, primary_of
from balancer.client.transaction_steps import (
    LONGEST_BORROW,
    AwaitChange,
    Borrow,
    Execute,
    GiveBack,
    Request,
    Undo,
    check_open,
)
from balancer.client.wire import command
from balancer.errors import OutcomeUnknown, UserError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

Outcome = TypeVar("Outcome")
_ADDRESS = "postgresql+balancer://"
_NOT_PROVEN = (
    "this connection is in no transaction that the router has begun: take a session from"
    " balancer.client.sqlalchemy.session, and leave COMMIT and ROLLBACK to it"
)
registry.register("postgresql.balancer", __name__, "ProvenDialect")


def _status(connection: Any) -> TransactionStatus:
    return TransactionStatus(connection.driver_connection.pgconn.transaction_status)


class _Proof:
    """What both dialects refuse. A mixin, because SQLAlchemy has a dialect of its own for asyncio."""

    supports_statement_cache = True
    node = ""

    def initialize(self, connection: Any) -> None:
        """SQLAlchemy's own first questions to a server; it rolls back after them."""
        connection.connection.cursor().execute("BEGIN")
        super().initialize(connection)  # type: ignore[misc]

    def do_begin(self, dbapi_connection: Any) -> None:
        if _status(dbapi_connection) is not TransactionStatus.INTRANS:
            raise UserError(_NOT_PROVEN)

    def do_execute(self, cursor: Any, statement: Any, parameters: Any, context: Any = None) -> None:
        self._check(context)
        super().do_execute(cursor, statement, parameters, context)  # type: ignore[misc]

    def do_executemany(self, cursor: Any, statement: Any, parameters: Any, context: Any = None) -> None:
        self._check(context)
        super().do_executemany(cursor, statement, parameters, context)  # type: ignore[misc]

    def do_execute_no_params(self, cursor: Any, statement: Any, context: Any = None) -> None:
        self._check(context)
        super().do_execute_no_params(cursor, statement, context)  # type: ignore[misc]

    def _check(self, context: Any) -> None:
        # After a COMMIT in the text of a statement every further statement would commit by itself, unproven.
        if context is not None and _status(context.root_connection.connection) is TransactionStatus.IDLE:
            raise UserError(_NOT_PROVEN)

    def do_commit(self, dbapi_connection: Any) -> None:
        check_open(_status(dbapi_connection))
        try:
            super().do_commit(dbapi_connection)  # type: ignore[misc]
        except psycopg.Error as error:
            if classify(error) is Failure.LOST:
                dbapi_connection.invalidate()
                raise OutcomeUnknown(f"the connection to node {self.node} broke during COMMIT") from error
            raise

    def do_begin_twophase(self, connection: Any, xid: Any) -> None:
        raise UserError("a session with twophase cannot be proven: router.atomic() is a transaction over several keys")

    def set_isolation_level(self, dbapi_connection: Any, level: Any) -> None:
        raise UserError(f"isolation level {level}: give `isolation` to session(…), which begins the transaction")


class ProvenDialect(_Proof, PGDialect_psycopg):
    """For blocking engines."""

    supports_statement_cache = True

    @classmethod
    def get_async_dialect_cls(cls, url: Any) -> Any:
        return AsyncProvenDialect


class AsyncProvenDialect(_Proof, PGDialectAsync_psycopg):
    """For asyncio engines."""

    supports_statement_cache = True


class NodeEngines:
    """The engines of a blocking router, and what the steps ask of them."""

    def __init__(self, attachments: Attachments, options: dict[str, Any]) -> None:
        self._attachments = attachments
        self._options = options
        self._book: PoolBook[sqlalchemy.Engine] = PoolBook(attachments.routes, self._made)

    def engine(self, node: str) -> sqlalchemy.Engine:
        """The engine of a node at its present address."""
        engine, retired = self._book.find(node)
        if retired is not None:
            self._dispose(retired)
        return engine

    def drive(self, steps: Generator[Request, Any, Outcome]) -> Outcome:
        return driven(steps, self._perform)

    def close(self) -> Any:
        for engine in self._book.clear():
            self._dispose(engine)

    def _made(self, node: str, dsn: str) -> sqlalchemy.Engine:
        settings = self._attachments.settings
        engine = self._created(
            pool_size=settings.size,
            max_overflow=0,
            pool_timeout=LONGEST_BORROW,
            pool_logging_name=node,
            connect_args={"application_name": "balancer client", **settings.connection, "autocommit": True},
            **self._options,
        )
        cast(_Proof, engine.dialect).node = node

        @event.listens_for(engine, "do_connect")
        def _address(dialect: Any, record: Any, arguments: list[Any], parameters: dict[str, Any]) -> None:
            arguments[:] = [primary_of(dsn)]

        @event.listens_for(engine, "connect")
        def _prepare(connection: Any, record: Any) -> None:
            with contextlib.suppress(psycopg.errors.InvalidParameterValue):
                connection.cursor().execute(LOOK_FOR_US)

        return engine

    def _created(self, **arguments: Any) -> sqlalchemy.Engine:
        return sqlalchemy.create_engine(_ADDRESS, **arguments)

    def _dispose(self, engine: sqlalchemy.Engine) -> None:
        engine.dispose()

    def _perform(self, request: Request) -> object:
        match request:
            case Borrow(node, _):
                return self._borrow(self.engine(node))
            case Execute(loan, statements):
                self._execute(loan.connection.connection.driver_connection, statements)
            case Undo(loan):
                loan.connection.connection.rollback()
            case GiveBack(loan):
                _give_back(loan.connection)
            case AwaitChange(version, timeout):
                self._attachments.routes.wait(version, timeout)
            case _:
                raise AssertionError(request)
        return None

    def _borrow(self, engine: sqlalchemy.Engine) -> Loan:
        try:
            return Loan(engine, engine.connect())
        except sqlalchemy.exc.TimeoutError as error:
            raise PoolTimeout(str(error)) from error
        except sqlalchemy.exc.DBAPIError as error:
            # the steps go by the driver's errors
            raise (error.orig if isinstance(error.orig, psycopg.Error) else error) from error

    def _execute(self, connection: Any, statements: bytes) -> None:
        with connection.lock:
            connection.wait(command(connection, statements))


class AsyncNodeEngines(NodeEngines):
    """The same for asyncio; called in SQLAlchemy's greenlets, so that whatever waits here lets the loop go on."""

    def __init__(self, attachments: Attachments, options: dict[str, Any]) -> None:
        super().__init__(attachments, options)
        self._whole: dict[sqlalchemy.Engine, AsyncEngine] = {}
        self._retired: list[AsyncEngine] = []

    async def close(self) -> None:
        for engine in [self._whole.pop(one) for one in self._book.clear()] + self._retired:
            await engine.dispose()

    def _created(self, **arguments: Any) -> sqlalchemy.Engine:
        made = create_async_engine(_ADDRESS, **arguments)
        self._whole[made.sync_engine] = made
        return made.sync_engine

    def _dispose(self, engine: sqlalchemy.Engine) -> None:
        self._retired.append(self._whole.pop(engine))  # its idle connections are closed with the router

    def drive(self, steps: Generator[Request, Any, Outcome]) -> Outcome:
        return driven(steps, self._watched)

    def _watched(self, request: Request) -> object:
        before = cancellations()
        try:
            return self._perform(request)
        except Exception as error:
            # psycopg raises its own error where a statement fails while it is cancelled: see AsyncRouter
            if cancellations() > before:
                raise asyncio.CancelledError from error
            raise

    def _perform(self, request: Request) -> object:
        if isinstance(request, AwaitChange):
            return await_only(asyncio.to_thread(self._attachments.routes.wait, request.version, request.timeout))
        return super()._perform(request)

    def _execute(self, connection: Any, statements: bytes) -> None:
        await_only(_sent(connection, statements))


async def _sent(connection: Any, statements: bytes) -> None:
    async with connection.lock:
        await connection.wait(command(connection, statements))


def _give_back(connection: sqlalchemy.Connection) -> None:
    """One that is broken, or in the middle of something, is of no use to anybody."""
    if not connection.invalidated and _status(connection.connection) is not TransactionStatus.IDLE:
        connection.invalidate()
    connection.close()
