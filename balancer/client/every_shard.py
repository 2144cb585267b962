"""Work on every tablet of a table in threads: `Router.each`, `map` and `scan` are made of this.

`shard_steps` decides what is asked, and what is left to ask.
"""

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from balancer.client.key_cover import KeyStretch, Vanished
from balancer.client.shard_steps import PAGE, PAGES, Answer, Found, Questions, Row, Shard, ShardSteps, Values
from balancer.client.transaction_steps import Held, Request, leave
from balancer.errors import Unavailable

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
