"""SQLAlchemy engines for the nodes of a cluster, on which nothing unproven runs. `sqlalchemy` builds on it.

One engine per node, made when the node is first needed, with SQLAlchemy's own pool. A blocking session's transaction
begins with its first statement, in one message with BEGIN and `balancer.hold`; if that is refused, and always with
asyncio, the router's steps begin it (`client/transaction/steps.enter`), including waits and moves. The dialect refuses
to begin a transaction, or to run a statement, on a connection that is in none of those: so no custom creator, engine or
COMMIT can lead to a statement without the proof of ownership."""

import asyncio
import contextlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import psycopg
import sqlalchemy
from psycopg.pq import TransactionStatus
from psycopg_pool import PoolTimeout
from sqlalchemy import event
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg, PGDialectAsync_psycopg
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import await_only

from balancer.client.keys.routes import Routes
from balancer.client.observing import Attachments
from balancer.client.transaction.block import PendingTransaction
from balancer.client.transaction.connections import BlockConnection
from balancer.client.transaction.drivers import cancellations, driven
from balancer.client.transaction.failures import Failure, classify
from balancer.client.transaction.pools import LOOK_FOR_US, Loan, PoolCache, primary_of
from balancer.client.transaction.steps import (
    LONGEST_BORROW,
    AwaitChange,
    Borrow,
    Execute,
    GiveBack,
    Held,
    Request,
    TransactionRequest,
    Undo,
    check_open,
    enter,
)
from balancer.client.transaction.wire import command, ended_inside
from balancer.directory.locate import AnyKey, Location
from balancer.errors import OutcomeUnknown, UserError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

Outcome = TypeVar("Outcome")
Find = Callable[[], tuple[int, Location]]
_ADDRESS = "postgresql+balancer://"
_NOT_PROVEN = (
    "this connection is in no transaction that the router has begun: take a session from"
    " balancer.client.sqlalchemy.session, and leave COMMIT and ROLLBACK to it"
)
registry.register("postgresql.balancer", __name__, "ProvenDialect")


def _driver(connection: Any) -> Any:
    """psycopg's connection, even if SQLAlchemy's pool has released it."""
    found = connection.driver_connection
    return connection.dbapi_connection if found is None else found


def _status(connection: Any) -> TransactionStatus:
    driver = _driver(connection)
    if getattr(driver, "opening", None) is not None:
        return TransactionStatus.INTRANS  # it will be, before anything is done
    return TransactionStatus(driver.pgconn.transaction_status)


class _Proof:
    """What both dialects refuse. A mixin, because SQLAlchemy has a dialect of its own for asyncio."""

    supports_statement_cache = True
    node = ""

    def initialize(self, connection: Any) -> None:
        """SQLAlchemy's own first queries to a server; it rolls back after them."""
        connection.connection.cursor().execute("BEGIN")
        super().initialize(connection)  # type: ignore[misc]

    def do_begin(self, dbapi_connection: Any) -> None:
        if _status(dbapi_connection) is not TransactionStatus.INTRANS:
            raise UserError(_NOT_PROVEN)
        _driver(dbapi_connection).over = False

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
        if context is None:
            return
        connection = context.root_connection.connection
        if getattr(_driver(connection), "over", False) or _status(connection) is TransactionStatus.IDLE:
            raise UserError(_NOT_PROVEN)

    def do_commit(self, dbapi_connection: Any) -> None:
        check_open(_status(dbapi_connection), over=getattr(_driver(dbapi_connection), "over", False))
        try:
            super().do_commit(dbapi_connection)  # type: ignore[misc]
        except psycopg.Error as error:
            if classify(error) is Failure.LOST:
                place = getattr(_driver(dbapi_connection), "location", None)
                dbapi_connection.invalidate()
                node = self.node if place is None else place.node
                raise OutcomeUnknown(f"the connection to node {node} broke during COMMIT") from error
            raise

    def do_begin_twophase(self, connection: Any, xid: Any) -> None:
        raise UserError("a session with twophase cannot be proven: router.atomic() is a transaction over several keys")

    def set_isolation_level(self, dbapi_connection: Any, level: Any) -> None:
        raise UserError(f"isolation level {level}: give `isolation` to session(…), which begins the transaction")


class ProvenDialect(_Proof, PGDialect_psycopg):
    """For blocking engines."""

    supports_statement_cache = True

    def connect(self, *arguments: Any, **options: Any) -> Any:
        return BlockConnection.connect(*arguments, **options)

    def do_commit(self, dbapi_connection: Any) -> None:
        driver = _driver(dbapi_connection)
        if driver.opening is not None:  # a transaction without a statement is proven too
            with driver.lock:
                driver.opening.begin()
        super().do_commit(dbapi_connection)

    def do_rollback(self, dbapi_connection: Any) -> None:
        driver = _driver(dbapi_connection)
        if driver.opening is not None:
            driver.show(driver.opening, None)
        elif driver.broken or not driver.closed:  # otherwise its transaction never began
            super().do_rollback(dbapi_connection)  # type: ignore[no-untyped-call]

    @classmethod
    def get_async_dialect_cls(cls, url: Any) -> Any:
        return AsyncProvenDialect


class AsyncProvenDialect(_Proof, PGDialectAsync_psycopg):
    """For asyncio engines."""

    supports_statement_cache = True

    def do_execute(self, cursor: Any, statement: Any, parameters: Any, context: Any = None) -> None:
        super().do_execute(cursor, statement, parameters, context)
        if context is None:
            return
        connection = context.root_connection.connection.driver_connection
        if ended_inside(cursor._cursor, cursor._cursor._results):
            connection.over = True
            raise UserError(_NOT_PROVEN)
        if cursor.rowcount == 0:
            hints = getattr(connection, "hints", None)
            if hints is not None:
                hints().found_nothing(statement, parameters, connection)


class Told(Protocol):
    """Is told where a session's transaction is: as soon as it has a connection, and when that changes."""

    def __call__(self, location: Location, driver: Any) -> None: ...


class SessionTransaction(PendingTransaction):
    """For a blocking session: its connection belongs to SQLAlchemy's pool of one node."""

    __slots__ = ("_connection", "_engines", "_find", "_told")

    def __init__(self, engines: "NodeEngines", find: Find, wish: TransactionRequest, told: Told) -> None:
        super().__init__(engines.routes, wish)
        self._engines = engines
        self._find = find
        self._told = told
        self._connection: sqlalchemy.Connection | None = None

    def lend(self, location: Location, connection: sqlalchemy.Connection) -> sqlalchemy.Connection:
        """From now on the transaction begins with what comes first."""
        self._entered = self._routes.clock.monotonic()
        self._connection = connection
        driver: Any = connection.connection.driver_connection
        self._held = Held(location, Loan(connection.engine, driver))
        self._told(location, driver)
        driver.hide(self)
        return connection

    def _begun(self, location: Location) -> None:
        assert self._held is not None
        self._told(location, self._held.loan.connection)

    def _again(self, held: Held, refused: psycopg.Error) -> None:
        """Both connections leave their pools, which open others: moves are rare, and a pool may have only one."""
        driver: BlockConnection = held.loan.connection
        assert self._connection is not None
        self._connection.detach()  # it will be closed with its transaction
        driver.show(self, None)
        driver.parted().close()
        driver._closed = True
        self._held = None
        self._tried(held.location, refused)
        found = self._engines.drive(enter(self._find, self._wish, self._routes.clock.monotonic))
        other: BlockConnection = found.loan.connection.connection.driver_connection
        found.loan.connection.detach()
        driver.take_over(other)
        del other.pgconn  # belongs to nobody now
        driver.location = found.location
        self._held = Held(found.location, Loan(held.loan.pool, driver))
        self._begun(found.location)


class NodeEngines:
    """The engines of a blocking router, and what the steps ask of them."""

    def __init__(self, attachments: Attachments, options: dict[str, Any]) -> None:
        self._attachments = attachments
        self._options = options
        self._book: PoolCache[sqlalchemy.Engine] = PoolCache(attachments.routes, self._made)

    @property
    def routes(self) -> Routes:
        return self._attachments.routes

    def begin(self, table: str, key: AnyKey, wish: TransactionRequest, told: Told) -> sqlalchemy.Connection:
        """A connection in a proven transaction, or in one that begins, with its proof, with what comes first."""
        find = self.routes.finder(table, key)
        location = self.routes.locate(table, key)
        try:
            loan = self._borrow(self.engine(location.node))
        except psycopg.Error:
            return self._begun(find, wish, told)  # the steps know what to do about it
        return SessionTransaction(self, find, wish, told).lend(location, loan.connection)

    def _begun(self, find: Find, wish: TransactionRequest, told: Told) -> sqlalchemy.Connection:
        held = self.drive(enter(find, wish, self.routes.clock.monotonic))
        connection: sqlalchemy.Connection = held.loan.connection
        told(held.location, connection.connection.driver_connection)
        return connection

    def engine(self, node: str) -> sqlalchemy.Engine:
        """The engine of a node at its current address."""
        engine, retired = self._book.find(node)
        if retired is not None:
            self._dispose(retired)
        return engine

    def drive(self, steps: Generator[Request, Any, Outcome]) -> Outcome:
        return driven(steps, self._perform)

    def written(self) -> list[str]:
        return self._book.names()

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
    """The same for asyncio; called in SQLAlchemy's greenlets, so that whatever waits here does not block the loop."""

    def __init__(self, attachments: Attachments, options: dict[str, Any]) -> None:
        super().__init__(attachments, options)
        self._whole: dict[sqlalchemy.Engine, AsyncEngine] = {}
        self._retired: list[AsyncEngine] = []

    def begin(self, table: str, key: AnyKey, wish: TransactionRequest, told: Told) -> sqlalchemy.Connection:
        return self._begun(self.routes.finder(table, key), wish, told)

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
    """One that is broken, or in the middle of something, is useless."""
    if not connection.invalidated and _status(connection.connection) is not TransactionStatus.IDLE:
        connection.invalidate()
    connection.close()
