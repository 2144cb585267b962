"""Work on every tablet of a table in threads: `Router.each`, `map` and `scan` are made of this.

`shard_steps` decides what is asked, and what is left to ask.

Work on every tablet of a table in tasks of one event loop: `AsyncRouter.each`, `map`, `scan` and `copy_into`.

`shard_steps` and `bulk_load` decide what is asked, and what is left to ask.

Small helpers for answers of every tablet: `Router.map` yields parts, these combine them. Pure.
"""

import asyncio
import heapq
import queue
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import chain, islice
from typing import Any, Protocol, TypeVar

from balancer.client.bulk_load import BulkLoad, Refusal
from balancer.client.bulk_load import Row as LoadedRow
from balancer.client.shard_steps import (
    PAGE,
    PAGES,
    Answer,
    Found,
    KeyStretch,
    Questions,
    Row,
    Shard,
    ShardSteps,
    Values,
    Vanished,
)
from balancer.client.transaction.steps import Held, Request, leave
from balancer.errors import OutcomeUnknown, Unavailable

Outcome = TypeVar("Outcome")
Drive = Callable[[Generator[Request, Any, Any]], Any]


class EveryShard:
    """One table's tablets, asked by several threads. Belongs to one call."""

    def __init__(self, steps: ShardSteps, drive: Drive) -> None:
        self._steps = steps
        self._drive = drive

    def run(self, work: Callable[[KeyStretch], Outcome]) -> Iterator[Outcome]:
        """Calls it for every tablet; yields answers as they come."""

        def one(group: list[KeyStretch]) -> list[Found[Outcome]]:
            try:
                return [(group[0], (work(group[0]),))]
            except Vanished:
                return [(group[0], ())]

        return self._run(self._steps.one_by_one(), one)

    def ask_all(self, statement: str, values: Values) -> Iterator[Answer]:
        """Tablet, node and rows of each answer."""

        def group(together: list[KeyStretch]) -> list[Found[Answer]]:
            found: list[Found[Answer]] = self._drive(self._steps.ask_group(statement, values, together))
            return found

        return self._run(self._steps.in_groups(statement), group)

    def _run(
        self, questions: Questions[Outcome], work: Callable[[list[KeyStretch]], list[Found[Outcome]]]
    ) -> Iterator[Outcome]:
        running: set[Future[list[Found[Outcome]]]] = set()
        with ThreadPoolExecutor(self._steps.at_once, thread_name_prefix="shards") as threads:
            try:
                while questions.waiting or running:
                    while questions.waiting and len(running) < self._steps.at_once:
                        running.add(threads.submit(work, questions.waiting.pop(0)))
                    ready, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in ready:
                        yield from questions.answered(future.result())
            except Unavailable as error:
                raise questions.failed(error) from error
            finally:
                for future in running:
                    future.cancel()

    @contextmanager
    def transaction(self, stretch: KeyStretch, *, read_only: bool) -> Iterator[tuple[Shard, Any]]:
        """A transaction on the tablet's owner."""
        held: Held = self._drive(self._steps.begin(stretch, read_only=read_only))
        held.loan.connection.begun, held.loan.connection.over = True, False
        try:
            yield self._steps.shard(stretch, held.location.node), held.loan.connection
        except BaseException:
            self._drive(leave(held, failed=True))
            raise
        self._drive(leave(held, failed=False))


def scan(every: EveryShard, statement: str, values: Values) -> Generator[Row, None, None]:
    """Rows of all tablets, streamed: keeps a few pages, however many rows there are. In no order."""
    pages: queue.Queue[list[Row] | None] = queue.Queue(PAGES)
    ended = threading.Event()
    failures: list[BaseException] = []

    def read(stretch: KeyStretch) -> None:
        with (
            every.transaction(stretch, read_only=True) as (shard, connection),
            connection.cursor(name="balancer_scan") as cursor,
        ):
            cursor.execute(shard.format(statement), values)
            while page := cursor.fetchmany(PAGE):
                _put(pages, page, ended)

    def work() -> None:
        try:
            for _ in every.run(read):
                pass
        except BaseException as error:  # noqa: BLE001 - the reader of the rows raises it
            failures.append(error)
        finally:
            _put(pages, None, ended)

    thread = threading.Thread(target=work, name="scan", daemon=True)
    thread.start()
    try:
        while (page := pages.get()) is not None:
            yield from page
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]


class ScanEnded(Exception):
    """Nobody wants the rest of the rows."""


def _put(pages: "queue.Queue[list[Row] | None]", page: list[Row] | None, ended: threading.Event) -> None:
    while True:
        if ended.is_set():
            if page is None:
                return
            raise ScanEnded
        with suppress(queue.Full):
            pages.put(page, timeout=0.1)
            return


class AsyncDrive(Protocol):
    """The router's: it awaits for requests."""

    def __call__(self, steps: Generator[Request, Any, Outcome]) -> Awaitable[Outcome]: ...


class AsyncEveryShard:
    """One table's tablets, asked by several tasks. Belongs to one call."""

    def __init__(self, steps: ShardSteps, drive: AsyncDrive) -> None:
        self._steps = steps
        self._drive = drive

    def run(self, work: Callable[[KeyStretch], Awaitable[Outcome]]) -> AsyncGenerator[Outcome, None]:
        """Awaits it for every tablet; yields answers as they come."""

        async def one(group: list[KeyStretch]) -> list[Found[Outcome]]:
            try:
                return [(group[0], (await work(group[0]),))]
            except Vanished:
                return [(group[0], ())]

        return self._run(self._steps.one_by_one(), one)

    def ask_all(self, statement: str, values: Values) -> AsyncGenerator[Answer, None]:
        """Tablet, node and rows of each answer."""

        async def group(together: list[KeyStretch]) -> list[Found[Answer]]:
            return await self._drive(self._steps.ask_group(statement, values, together))

        return self._run(self._steps.in_groups(statement), group)

    async def _run(
        self, questions: Questions[Outcome], work: Callable[[list[KeyStretch]], Awaitable[list[Found[Outcome]]]]
    ) -> AsyncGenerator[Outcome, None]:
        running: set[asyncio.Task[list[Found[Outcome]]]] = set()
        ready: set[asyncio.Task[list[Found[Outcome]]]] = set()
        try:
            while questions.waiting or running:
                while questions.waiting and len(running) < self._steps.at_once:
                    running.add(asyncio.ensure_future(_wrapped(work, questions.waiting.pop(0))))
                ready, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in ready:
                    for answer in questions.answered(task.result()):
                        yield answer
        except Unavailable as error:
            raise questions.failed(error) from error
        finally:
            for task in running:
                task.cancel()
            # Connections are returned before we end; tasks that failed besides the one that is raised are awaited too.
            await asyncio.gather(*running, *ready, return_exceptions=True)

    @asynccontextmanager
    async def transaction(self, stretch: KeyStretch, *, read_only: bool) -> AsyncIterator[tuple[Shard, Any]]:
        """A transaction on the tablet's owner."""
        held: Held = await self._drive(self._steps.begin(stretch, read_only=read_only))
        held.loan.connection.begun, held.loan.connection.over = True, False
        try:
            yield self._steps.shard(stretch, held.location.node), held.loan.connection
        except BaseException:
            await self._drive(leave(held, failed=True))
            raise
        await self._drive(leave(held, failed=False))


async def _wrapped(work: Callable[[Any], Awaitable[Outcome]], given: Any) -> Outcome:
    return await work(given)


@asynccontextmanager
async def _streaming(connection: Any) -> AsyncGenerator[Any, None]:
    """A server-side cursor. If closing it is cancelled, or fails, it goes with its connection."""
    cursor = connection.cursor(name="balancer_scan")
    try:
        yield cursor
    finally:
        try:
            await cursor.close()
        except BaseException:
            await connection.close()
            await cursor.close()  # nothing is sent any more
            raise


async def scan_async(every: AsyncEveryShard, statement: str, values: Values) -> AsyncGenerator[Row, None]:
    """Rows of all tablets, streamed: keeps a few pages, however many rows there are. In no order."""
    pages: asyncio.Queue[list[Row] | None] = asyncio.Queue(PAGES)

    async def read(stretch: KeyStretch) -> None:
        async with (
            every.transaction(stretch, read_only=True) as (shard, connection),
            _streaming(connection) as cursor,
        ):
            await cursor.execute(shard.format(statement), values)
            while page := await cursor.fetchmany(PAGE):
                await pages.put(page)

    async def work() -> None:
        try:
            async for _ in every.run(read):
                pass
        finally:
            await pages.put(None)

    task = asyncio.ensure_future(work())
    try:
        while (page := await pages.get()) is not None:
            for row in page:
                yield row
        await task
    finally:
        if not task.done():
            task.cancel()
            while not task.done():  # one that waits for room in the queue, or puts its last item there
                while not pages.empty():
                    pages.get_nowait()
                await asyncio.sleep(0)
        await asyncio.gather(task, return_exceptions=True)


async def load_async(
    work: BulkLoad, drive: AsyncDrive, rows: Iterable[LoadedRow] | AsyncIterable[LoadedRow], batch: int
) -> int:
    """Sends all rows; returns how many. A failure says what it left out."""
    done = 0
    async for part in _batches(rows, batch):
        try:
            await _load(work, drive, part)
        except (Unavailable, OutcomeUnknown) as error:
            raise type(error)(f"{error}; the {done} rows before this batch are there") from error
        done += len(part)
    return done


async def _load(work: BulkLoad, drive: AsyncDrive, rows: list[LoadedRow]) -> None:
    attempts = work.attempts()
    while rows:
        version = work.version
        sent = [asyncio.ensure_future(_wrapped(drive, work.send(share))) for share in work.shares(rows)]
        # All of them: a batch that continues after its failure was raised would be a surprise.
        ended: list[Refusal | BaseException] = await asyncio.gather(*sent, return_exceptions=True)
        for answer in ended:
            if isinstance(answer, BaseException):
                raise answer
        refused = [answer for answer in ended if answer is not None and not isinstance(answer, BaseException)]
        rows = [row for _, left in refused for row in left]
        if refused:
            await asyncio.to_thread(work.wait, version, attempts.pause_after(refused[0][0]))


async def _batches(rows: Iterable[LoadedRow] | AsyncIterable[LoadedRow], size: int) -> AsyncIterator[list[LoadedRow]]:
    part: list[LoadedRow] = []
    async for row in _each(rows):
        part.append(row)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part


async def _each(rows: Iterable[LoadedRow] | AsyncIterable[LoadedRow]) -> AsyncIterator[LoadedRow]:
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
    else:
        for row in rows:
            yield row


class HasRows(Protocol):
    """What `Router.map` yields."""

    @property
    def rows(self) -> list[tuple[Any, ...]]: ...


def summed(answers: Iterable[HasRows]) -> tuple[Any, ...]:
    """The rows of all tablets added up, column by column: for `SELECT count(*), sum(…)`. NULL counts as nothing.

    Averages are not sums: ask for the sum and the count, and divide.
    """
    total: list[Any] = []
    for row in chain.from_iterable(answer.rows for answer in answers):
        total = total or [None] * len(row)
        total = [new if old is None else old if new is None else old + new for old, new in zip(total, row, strict=True)]
    return tuple(total)


def top(
    answers: Iterable[HasRows], count: int, key: Callable[[tuple[Any, ...]], Any], *, reverse: bool = True
) -> list[tuple[Any, ...]]:
    """The first rows of all by a key: each tablet returns its own first `count` (`ORDER BY … LIMIT …`)."""
    merged = heapq.merge(
        *(sorted(answer.rows, key=key, reverse=reverse) for answer in answers), key=key, reverse=reverse
    )
    return list(islice(merged, count))
