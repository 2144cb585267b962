"""The router for asyncio applications: the same steps as `Router`'s, carried out with awaits.

    async with await AsyncRouter.connect("zk://zk1:2181/shop") as router:
        async with router.transaction("orders", user_id) as connection:
            await connection.execute("INSERT INTO orders …")

A thread follows the directory; whatever waits for it here waits in another thread, never in the event loop.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool

from balancer.client.atomic import LOCK_SECONDS, AsyncAtomic, AtomicMail, AtomicSteps, EndedDecisions, waited_too_long
from balancer.client.bulk_load import BulkLoad
from balancer.client.every_shard import AsyncEveryShard, load_async, scan_async
from balancer.client.keys.hints import BlockHints
from balancer.client.keys.ids import AsyncIds, AsyncLocatedIds, Ids, LocatedIds
from balancer.client.keys.routes import KeyExplanation, Routes
from balancer.client.messages import AsyncRoutedConnection, Outgoing, Tickets
from balancer.client.observing import Attachments, Sampler
from balancer.client.open_blocks import WARN_AFTER, OpenBlocks
from balancer.client.rekeying import rekey_rows_async, rekeying
from balancer.client.router import AT_ONCE, BATCH, PATIENCE, TabletAnswer
from balancer.client.shard_steps import KeyStretch, Shard, ShardSteps, Values
from balancer.client.transaction.block import KeyGuard, guarded_async
from balancer.client.transaction.drivers import AsyncDriver
from balancer.client.transaction.failures import Attempts, Counters
from balancer.client.transaction.pools import PoolSettings
from balancer.client.transaction.steps import Isolation, TransactionRequest, enter, leave
from balancer.directory.locate import NO_KEY, AnyKey
from balancer.directory.snapshot import Snapshot

if TYPE_CHECKING:
    from balancer.client.keys.bulk import Rows

Connection = AsyncRoutedConnection
NodePool = AsyncConnectionPool[Connection]
Result = TypeVar("Result")
Outcome = TypeVar("Outcome")


class AsyncRouter(AsyncDriver):
    """Finds the node of a key and runs transactions there; for one event loop. See `Router` for what is promised."""

    def __init__(
        self,
        routes: Routes,
        pools: PoolSettings | None = None,
        *,
        samples: bool = True,
        warn_after: float = WARN_AFTER,
        tracer: Any = None,
    ) -> None:
        settings = pools or PoolSettings()
        super().__init__(routes, settings)
        self.locate = routes.locate
        """`locate(table, key)`: as `Router.locate`."""
        self._sampler = Sampler(routes) if samples else None
        self.counters = Counters(tracer)
        """What it has encountered (waits, retries, moves): `values()` for a metrics system."""
        self._blocks = OpenBlocks(warn_after)
        routes.watch(self._blocks.look)
        self.attachments = Attachments(routes, settings, self._sampler, self._blocks, self.counters)
        """As `Router.attachments`."""
        self._ended = EndedDecisions()
        self._tickets = Tickets()
        self._ids: dict[str, AsyncIds] = {}
        self._located_ids: dict[str, AsyncLocatedIds] = {}

    @classmethod
    async def connect(
        cls,
        url: str,
        pools: PoolSettings | None = None,
        *,
        samples: bool = True,
        warn_after: float = WARN_AFTER,
        tracer: Any = None,
        **directory: Any,
    ) -> "AsyncRouter":
        """Opens the directory at this address and loads it."""
        routes = await asyncio.to_thread(Routes.open, url, **directory)
        return cls(routes, pools, samples=samples, warn_after=warn_after, tracer=tracer)

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot of the directory known here."""
        return self._routes.snapshot

    def explain(self, table: str, key: AnyKey = NO_KEY) -> KeyExplanation:
        """Where a key is, why there, and whether it is being moved: `print(router.explain("orders", 7))`."""
        return self._routes.explain(table, key)

    def group(self, table: str, keys: Any) -> "dict[str, Rows]":
        """For each node that owns any of these keys, which of them. Needs numpy."""
        return self._routes.group(table, keys)

    @asynccontextmanager
    async def transaction(
        self,
        table: str,
        key: AnyKey = NO_KEY,
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
        patience: float = PATIENCE,
        weight: float = 1.0,
        checked: bool = False,
    ) -> AsyncIterator[Connection]:
        """A connection in a transaction on the node that owns the key; see `Router.transaction`."""
        if self._sampler is not None:
            self._sampler.note(table, key, weight, not read_only)
        clock = self._routes.clock
        wish = TransactionRequest(
            clock.monotonic() + patience,
            isolation,
            read_only,
            proof=self._routes.proof,
            wait=self.counters.wait(table),
            signpost=self._routes.signpost,
        )
        held = await self._drive(enter(self._routes.finder(table, key), wish, clock.monotonic))
        block = self._blocks.opened(table, held.location)
        block.began = clock.monotonic()
        connection: Connection = held.loan.connection
        connection.location, connection.begun, connection.over = held.location, True, False
        connection.hints = partial(BlockHints, self._routes, table, key, held.location, self._blocks.hinted)
        outgoing = connection.outgoing = None if read_only else Outgoing(self._routes, self._tickets, table, key)
        try:
            async with guarded_async(KeyGuard(self._routes, table, key, held)) if checked else nullcontext():
                yield connection
            if outgoing is not None and outgoing.sent:
                await self._drive(outgoing.prepare(held.loan))
        except BaseException:
            self._blocks.forget(block)
            connection.outgoing, connection.hints, connection.begun = None, None, False
            await self._drive(leave(held, failed=True))
            raise
        self._blocks.forget(block)
        connection.outgoing, connection.hints, connection.begun = None, None, False
        await self._drive(leave(held, failed=False))
        if outgoing is not None and outgoing.sent:
            await self._drive(outgoing.deliver())

    async def run(
        self,
        table: str,
        key: AnyKey,
        function: Callable[[Connection], Awaitable[Result]],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
        patience: float = PATIENCE,
    ) -> Result:
        """Awaits `function(connection)` in a transaction, and retries if needed; see `Router.run`."""
        clock = self._routes.clock
        deadline = clock.monotonic() + patience
        attempts = Attempts(deadline, clock.monotonic, self.counters)
        while True:
            left = attempts.left()
            try:
                async with self.transaction(
                    table, key, read_only=read_only, isolation=isolation, patience=left
                ) as connection:
                    return await function(connection)
            except psycopg.Error as error:
                pause = attempts.pause_after(error)
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def atomic(
        self,
        *,
        isolation: Isolation = Isolation.READ_COMMITTED,
        patience: float = PATIENCE,
        lock_timeout: float = LOCK_SECONDS,
    ) -> AsyncIterator[AsyncAtomic]:
        """A transaction over several keys: all or nothing; see `Router.atomic`."""
        steps = AtomicSteps(self._routes, self._ended, isolation=isolation, patience=patience, lock=lock_timeout)
        mail = AtomicMail(self._routes, self._tickets)
        try:
            yield AsyncAtomic(steps, mail, self._drive)
            await self._drive(mail.prepare(steps.loan_on))
        except psycopg.errors.LockNotAvailable as error:
            await self._drive(steps.abort())
            raise waited_too_long(lock_timeout) from error
        except BaseException:
            await self._drive(steps.abort())
            raise
        await self._drive(steps.commit())
        await self._drive(mail.deliver(steps.unfinished))

    async def run_atomic(
        self,
        function: Callable[[AsyncAtomic], Awaitable[Result]],
        *,
        isolation: Isolation = Isolation.READ_COMMITTED,
        patience: float = PATIENCE,
        lock_timeout: float = LOCK_SECONDS,
    ) -> Result:
        """Awaits `function(tx)` in an atomic transaction, and retries if needed; see `Router.run_atomic`."""
        clock = self._routes.clock
        deadline = clock.monotonic() + patience
        attempts = Attempts(deadline, clock.monotonic, self.counters)
        while True:
            left = attempts.left()
            try:
                async with self.atomic(isolation=isolation, patience=left, lock_timeout=lock_timeout) as tx:
                    return await function(tx)
            except psycopg.Error as error:
                pause = attempts.pause_after(error)
            await asyncio.sleep(pause)

    async def rekey(self, table: str, old: AnyKey, new: AnyKey, *, patience: float = PATIENCE) -> int:
        """Gives the rows of a key another one, atomically; see `Router.rekey`."""
        work = rekeying(self._routes.snapshot.table(table), old, new)
        return await self.run_atomic(partial(rekey_rows_async, work), patience=patience)

    def each(
        self,
        table: str,
        function: Callable[[Shard, Connection], Awaitable[Result]],
        *,
        read_only: bool = True,
        at_once: int = AT_ONCE,
        patience: float = PATIENCE,
    ) -> AsyncGenerator[Result, None]:
        """Awaits `function(shard, connection)` for every tablet once, in tasks; see `Router.each`."""
        every = self._every(table, at_once, patience)

        async def work(stretch: KeyStretch) -> Result:
            async with every.transaction(stretch, read_only=read_only) as (shard, connection):
                return await function(shard, connection)

        return every.run(work)

    async def map(
        self,
        table: str,
        statement: str,
        values: Values = None,
        *,
        at_once: int = AT_ONCE,
        patience: float = PATIENCE,
    ) -> AsyncGenerator[TabletAnswer, None]:
        """Asks every tablet once; see `Router.map`."""
        async with aclosing(self._every(table, at_once, patience).ask_all(statement, values)) as answers:
            async for answer in answers:
                yield TabletAnswer(*answer)

    def scan(
        self,
        table: str,
        statement: str,
        values: Values = None,
        *,
        at_once: int = AT_ONCE,
        patience: float = PATIENCE,
    ) -> AsyncGenerator[tuple[Any, ...], None]:
        """The rows of every tablet, streamed, in no order; see `Router.scan`."""
        return scan_async(self._every(table, at_once, patience), statement, values)

    async def copy_into(
        self,
        table: str,
        rows: Iterable[Sequence[Any]] | AsyncIterable[Sequence[Any]],
        columns: Sequence[str],
        *,
        root: str | None = None,
        batch: int = BATCH,
        patience: float = PATIENCE,
    ) -> int:
        """COPY of many rows, each to the node that owns its key; see `Router.copy_into`."""
        work = BulkLoad(self._routes, table, root=root, columns=columns, patience=patience)
        return await load_async(work, self._drive, rows, batch)

    def _every(self, table: str, at_once: int, patience: float) -> AsyncEveryShard:
        return AsyncEveryShard(ShardSteps(self._routes, table, at_once=at_once, patience=patience), self._drive)

    def ids(self, table: str) -> AsyncIds:
        """Globally unique, roughly increasing 64-bit ids for rows of a table."""
        return self._ids.get(table) or self._ids.setdefault(table, AsyncIds(Ids(self._routes, table)))

    def located_ids(self, table: str) -> AsyncLocatedIds:
        """The same, with a key's vbucket in the high bits."""
        known = self._located_ids.get(table)
        return known or self._located_ids.setdefault(table, AsyncLocatedIds(LocatedIds(self._routes, table)))

    async def close(self) -> None:
        """Closes pools and directory. Idempotent. In a process that was forked since they belong to the other one."""
        if self._routes.inherited:
            return
        await self._close_pools()
        if self._sampler is not None:
            await asyncio.to_thread(self._sampler.close)
        await self.attachments.aclose()
        await asyncio.to_thread(self._routes.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
