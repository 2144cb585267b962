"""Carries out what the steps of a transaction ask for, with blocking calls: `Router` is one of these.

It has the pools, one for each node. `drivers` is the same for asyncio; only `steps` and `client/atomic`
decide what is done and when.

`drivers` for asyncio: `AsyncRouter` is one of these. The steps decide what is done and when.
"""

import asyncio
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from balancer.client.keys.routes import Routes
from balancer.client.messages import AsyncRoutedConnection, RoutedConnection
from balancer.client.transaction.pools import Loan, PoolCache, PoolSettings, prepare, prepare_async, primary_of
from balancer.client.transaction.steps import (
    AwaitChange,
    Borrow,
    CopyRows,
    Execute,
    ExecuteEach,
    GiveBack,
    Query,
    Read,
    Request,
    Undo,
)
from balancer.client.transaction.wire import (
    OwnWords,
    answers,
    async_rows_of,
    command,
    rows_of,
    send_statements,
    together,
)

NodePool = ConnectionPool[RoutedConnection]
Outcome = TypeVar("Outcome")


def driven(steps: Generator[Request, Any, Outcome], perform: Callable[[Request], object]) -> Outcome:
    """Blocking calls for requests; what they raise goes back into the steps."""
    try:
        request = next(steps)
        while True:
            try:
                answer = perform(request)
            except BaseException as error:  # noqa: BLE001 - the steps decide what becomes of it
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as stop:
        outcome: Outcome = stop.value
        return outcome


class BlockingDriver:
    """May be used from several threads."""

    def __init__(self, routes: Routes, settings: PoolSettings) -> None:
        self._routes = routes
        self._pools: PoolCache[NodePool] = PoolCache(
            routes,
            lambda node, dsn: ConnectionPool(
                primary_of(dsn), connection_class=RoutedConnection, configure=prepare, **settings.arguments(node)
            ),
        )
        self._known: tuple[object, dict[str, NodePool]] = (None, {})

    def _pool(self, node: str) -> NodePool:
        """The open pool of a node. Takes no lock as long as no node's record has changed."""
        self._routes.check_process()
        nodes = self._routes.snapshot.nodes
        known = self._known
        if known[0] is not nodes:  # an address may have changed
            known = self._known = (nodes, {})
        found = known[1].get(node)
        if found is None:
            found, retired = self._pools.find(node)
            if retired is not None:
                retired.close(timeout=0)
            if found.closed:
                found.open()
            known[1][node] = found
        return found

    def _used_nodes(self, others: Iterable[str]) -> list[str]:
        """Nodes that have a pool, or are among those others, and still exist."""
        return [node for node in {*self._pools.names(), *others} if node in self._routes.snapshot.nodes]

    def _close_pools(self) -> None:
        closing = self._pools.clear()
        self._known = (None, {})
        for pool in closing:
            pool.close()

    def _drive(self, steps: Generator[Request, Any, Outcome]) -> Outcome:
        return driven(steps, self._perform)

    def _perform(self, request: Request) -> object:
        match request:
            case Borrow(node, timeout):
                return borrow(self._pool(node), timeout)
            case Execute(loan, statements):
                connection = loan.connection
                with connection.lock:
                    connection.wait(command(connection, statements))
            case ExecuteEach(orders):
                return _execute_each(orders)
            case Query(loan, transactions, values, rows):
                with psycopg.ClientCursor(loan.connection, row_factory=rows) as cursor:
                    return rows_of(cursor.execute(together(cursor, transactions, values)))
            case Read(loan, statement):
                with psycopg.ClientCursor(loan.connection, row_factory=tuple_row) as cursor:
                    return cursor.execute(statement).fetchall()
            case CopyRows(loan, statement, rows):
                with loan.connection.cursor() as cursor, cursor.copy(statement) as copy:
                    write = copy.write_row
                    for row in rows:
                        write(row)
            case Undo(loan):
                loan.connection.execute(OwnWords("ROLLBACK"), prepare=False)
            case GiveBack(loan):
                give_back(loan)
            case AwaitChange(version, timeout):
                self._routes.wait(version, timeout)
        return None


def borrow(pool: Any, timeout: float) -> Loan:
    """A connection of a pool, until `give_back`: in between, and only then, something can be sent on it."""
    connection = pool.getconn(timeout)
    connection.lent, connection.returned, connection.over = True, False, False
    return Loan(pool, connection)


def give_back(loan: Loan) -> None:
    """Ends a loan."""
    loan.connection.lent, loan.connection.returned = False, True
    loan.pool.putconn(loan.connection)


def _execute_each(orders: tuple[tuple[Loan, bytes], ...]) -> list[psycopg.Error | None]:
    """Sends every message before waiting for the first answer."""
    found: dict[int, psycopg.Error] = {}
    for at, (loan, statements) in enumerate(orders):
        try:
            send_statements(loan.connection, statements)
        except psycopg.Error as error:
            found[at] = error
    for at, (loan, _) in enumerate(orders):
        if at in found:
            continue
        try:
            with loan.connection.lock:
                loan.connection.wait(answers(loan.connection))
        except psycopg.Error as error:
            found[at] = error
    return [found.get(at) for at in range(len(orders))]


AsyncNodePool = AsyncConnectionPool[AsyncRoutedConnection]


class AsyncDriver:
    """For one event loop. Has the pools, one for each node."""

    def __init__(self, routes: Routes, settings: PoolSettings) -> None:
        self._routes = routes
        self._pools: PoolCache[AsyncNodePool] = PoolCache(
            routes,
            lambda node, dsn: AsyncConnectionPool(
                primary_of(dsn),
                connection_class=AsyncRoutedConnection,
                configure=prepare_async,
                **settings.arguments(node),
            ),
        )

    async def _close_pools(self) -> None:
        for pool in self._pools.clear():
            await pool.close()

    async def _drive(self, steps: Generator[Request, Any, Outcome]) -> Outcome:
        """Awaits for requests; what they raise goes back into the steps."""
        try:
            request = next(steps)
            while True:
                cancelled = cancellations()
                try:
                    answer = await self._perform(request)
                except BaseException as error:  # noqa: BLE001 - the steps decide what becomes of it
                    # If a statement fails while psycopg cancels it, psycopg raises its error instead of the
                    # cancellation: the steps would retry, and the task would live on.
                    request = steps.throw(asyncio.CancelledError() if cancellations() > cancelled else error)
                else:
                    request = steps.send(answer)
        except StopIteration as stop:
            outcome: Outcome = stop.value
            return outcome

    async def _perform(self, request: Request) -> object:
        match request:
            case Borrow(node, timeout):
                return await self._borrow(node, timeout)
            case Execute(loan, statements):
                await _execute(loan, statements)
            case ExecuteEach(orders):
                answers = await asyncio.gather(*(_execute(*order) for order in orders), return_exceptions=True)
                return [_error(answer) for answer in answers]
            case Query(loan, transactions, values, rows):
                async with psycopg.AsyncClientCursor(loan.connection, row_factory=rows) as cursor:
                    return await async_rows_of(await cursor.execute(together(cursor, transactions, values)))
            case Read(loan, statement):
                async with psycopg.AsyncClientCursor(loan.connection, row_factory=tuple_row) as cursor:
                    return await (await cursor.execute(statement)).fetchall()
            case CopyRows(loan, statement, rows):
                async with loan.connection.cursor() as cursor, cursor.copy(statement) as copy:
                    for row in rows:
                        await copy.write_row(row)
            case Undo(loan):
                await loan.connection.execute(OwnWords("ROLLBACK"), prepare=False)
            case GiveBack(loan):
                loan.connection.lent, loan.connection.returned = False, True
                await asyncio.shield(loan.pool.putconn(loan.connection))  # half returned, it would belong to nobody
            case AwaitChange(version, timeout):
                await asyncio.to_thread(self._routes.wait, version, timeout)
        return None

    async def _borrow(self, node: str, timeout: float) -> Loan:
        self._routes.check_process()
        pool, retired = self._pools.find(node)
        if retired is not None:
            await retired.close(timeout=0)
        if pool.closed:
            await pool.open()
        connection = await pool.getconn(timeout)
        connection.lent, connection.returned, connection.over = True, False, False
        return Loan(pool, connection)


async def _execute(loan: Loan, statements: bytes) -> None:
    connection = loan.connection
    async with connection.lock:
        await connection.wait(command(connection, statements))


def _error(answer: BaseException | None) -> psycopg.Error | None:
    """For one of several messages; anything that is not a driver error propagates."""
    if answer is not None and not isinstance(answer, psycopg.Error):
        raise answer
    return answer


def cancellations() -> int:
    """How often this task has been told to end."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0
