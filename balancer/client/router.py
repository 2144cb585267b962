"""The router for ordinary (blocking) applications; may be shared by all threads of one.

with Router.connect("zk://zk1:2181/shop") as router, router.transaction("orders", user_id) as connection:
    connection.execute("INSERT INTO orders …")
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
from psycopg_pool import ConnectionPool

from balancer.client.id_blocks import Ids, LocatedIds
from balancer.client.locate import NO_KEY, AnyKey
from balancer.client.pools import Loan, PoolBook, PoolSettings, prepare
from balancer.client.retry import Attempts
from balancer.client.routing import Routes
from balancer.client.sampler import Sampler
from balancer.client.transaction_steps import (
    AwaitChange,
    Borrow,
    Execute,
    GiveBack,
    Isolation,
    Request,
    Undo,
    Wish,
    enter,
    leave,
)
from balancer.client.wire import command
from balancer.directory.snapshot import Snapshot

if TYPE_CHECKING:
    from balancer.client.bulk import Rows

Connection = psycopg.Connection[Any]
NodePool = ConnectionPool[Connection]
Result = TypeVar("Result")
Outcome = TypeVar("Outcome")

PATIENCE = 10.0
"""Seconds a transaction may take to begin: much longer than a switch, shorter than a user waits."""


class Router:
    """Finds the node of a key and runs transactions there."""

    def __init__(self, routes: Routes, pools: PoolSettings | None = None, *, samples: bool = True) -> None:
        settings = pools or PoolSettings()
        self._routes = routes
        self.locate = routes.locate
        """`locate(table, key)`: the node, tablet and epoch of a key, from memory. `UserError` for an unknown table or
        an unfit key. Not a method of its own: it is called for every statement of an application."""
        self._pools: PoolBook[NodePool] = PoolBook(
            routes, lambda node, dsn: ConnectionPool(dsn, configure=prepare, **settings.arguments(node))
        )
        self._sampler = Sampler(routes) if samples else None
        self._ids: dict[str, Ids] = {}
        self._located_ids: dict[str, LocatedIds] = {}

    @classmethod
    def connect(
        cls, url: str, pools: PoolSettings | None = None, *, samples: bool = True, **directory: Any
    ) -> "Router":
        """Opens the directory at this address and loads it; nodes are connected to when they are first needed.

        `samples=False` switches off the reports of keys in use. Further arguments are the directory's own.
        """
        return cls(Routes.open(url, **directory), pools, samples=samples)

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot of the directory known here."""
        return self._routes.snapshot

    def group(self, table: str, keys: Any) -> "dict[str, Rows]":
        """For each node that owns any of these keys, which of them: their places, as an array. Needs numpy.

        `keys` is an array or a sequence of values; for a key of several columns a tuple of such columns, or a list of
        tuples.
        """
        return self._routes.group(table, keys)

    @contextmanager
    def transaction(
        self,
        table: str,
        key: AnyKey = NO_KEY,
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
        patience: float = PATIENCE,
        weight: float = 1.0,
    ) -> Iterator[Connection]:
        """A connection in a transaction on the node that owns the key; committed at the end of the block.

        A whole table has no key: leave it out.

        Waits while the tablet is being switched and follows it where it goes, for up to `patience` seconds, then
        raises `Unavailable`; nothing was done. Once the block has begun, the tablet stays until it ends: keep it short,
        a switch waits for it. With `read_only` it has one snapshot for all its statements and holds up nothing.
        Only rows of this key's tablet are proven to be here. `OutcomeUnknown` if the connection breaks during COMMIT.
        `weight` is what the key counts for in the samples.
        """
        if self._sampler is not None:
            self._sampler.note(table, key, weight, not read_only)
        clock = self._routes.clock
        wish = Wish(clock.monotonic() + patience, isolation, read_only)
        held = self._drive(enter(self._routes.finder(table, key), wish, clock.monotonic))
        try:
            yield held.loan.connection
        except BaseException:
            self._drive(leave(held, failed=True))
            raise
        self._drive(leave(held, failed=False))

    def run(
        self,
        table: str,
        key: AnyKey,
        function: Callable[[Connection], Result],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
        patience: float = PATIENCE,
    ) -> Result:
        """Runs `function(connection)` in a transaction, and again from its start where that is asked for.

        Serialization failures, deadlocks, lost connections (before COMMIT) and fences are retried within `patience`
        seconds; the function must therefore have no effects outside of its transaction.
        """
        clock = self._routes.clock
        deadline = clock.monotonic() + patience
        attempts = Attempts(deadline, clock.monotonic)
        while True:
            left = deadline - clock.monotonic()
            try:
                with self.transaction(
                    table, key, read_only=read_only, isolation=isolation, patience=left
                ) as connection:
                    return function(connection)
            except psycopg.Error as error:
                pause = attempts.pause_after(error)
            clock.sleep(pause)

    def ids(self, table: str) -> Ids:
        """Globally unique, roughly increasing 64-bit ids for rows of a table."""
        return self._ids.get(table) or self._ids.setdefault(table, Ids(self._routes, table))

    def located_ids(self, table: str) -> LocatedIds:
        """The same, with a key's vbucket in the high bits: `RowId(id)` may then be given in place of the key."""
        return self._located_ids.get(table) or self._located_ids.setdefault(table, LocatedIds(self._routes, table))

    def close(self) -> None:
        """Closes pools and directory. Idempotent."""
        if self._sampler is not None:
            self._sampler.close()
        for pool in self._pools.clear():
            pool.close()
        self._routes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _drive(self, steps: Generator[Request, Any, Outcome]) -> Outcome:
        """Blocking calls for requests; what they raise goes back into the steps."""
        try:
            request = next(steps)
            while True:
                try:
                    answer = self._perform(request)
                except BaseException as error:  # noqa: BLE001 - the steps decide what becomes of it
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as stop:
            outcome: Outcome = stop.value
            return outcome

    def _perform(self, request: Request) -> object:
        match request:
            case Borrow(node, timeout):
                pool, retired = self._pools.find(node)
                if retired is not None:
                    retired.close(timeout=0)
                if pool.closed:
                    pool.open()
                return Loan(pool, pool.getconn(timeout))
            case Execute(loan, statements):
                connection = loan.connection
                with connection.lock:
                    connection.wait(command(connection, statements))
            case Undo(loan):
                loan.connection.execute("ROLLBACK", prepare=False)
            case GiveBack(loan):
                loan.pool.putconn(loan.connection)
            case AwaitChange(version, timeout):
                self._routes.wait(version, timeout)
        return None
