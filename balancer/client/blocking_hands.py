"""Carries out what the steps of a transaction ask for, with blocking calls: `Router` is one of these.

It has the pools, one for each node. `async_hands` is the same for asyncio; only `transaction_steps` and `atomic_steps`
decide what is done and when.
"""

from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool

from balancer.client.outgoing import RoutedConnection
from balancer.client.pools import Loan, PoolBook, PoolSettings, prepare, primary_of
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
from balancer.client.wire import OwnWords, answers, command, rows_of, send, together

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


class BlockingHands:
    """May be used from several threads."""

    def __init__(self, routes: Routes, settings: PoolSettings) -> None:
        self._routes = routes
        self._pools: PoolBook[NodePool] = PoolBook(
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
            send(loan.connection, statements)
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
