"""`blocking_hands` for asyncio: `AsyncRouter` is one of these. The steps decide what is done and when."""

import asyncio
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool

from balancer.client.outgoing import AsyncRoutedConnection
from balancer.client.pools import Loan, PoolBook, PoolSettings, prepare_async, primary_of
from balancer.client.routing import Routes
from balancer.client.transaction_steps import (
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
from balancer.client.wire import OwnWords, async_rows_of, command, together

AsyncNodePool = AsyncConnectionPool[AsyncRoutedConnection]
Outcome = TypeVar("Outcome")


class AsyncHands:
    """For one event loop. Has the pools, one for each node."""

    def __init__(self, routes: Routes, settings: PoolSettings) -> None:
        self._routes = routes
        self._pools: PoolBook[AsyncNodePool] = PoolBook(
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
