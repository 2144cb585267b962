"""Work on every tablet of a table, side by side: `Router.each`, `map`, `scan` and `copy_into` are made of this.

Each tablet is asked in a transaction of its own, whose node has proven that it owns it (`balancer.hold`): former owners
keep rows for a while, and a question to their root would count those twice. So statements name partitions: `{orders}`
in a statement stands for the tablet's partition of that root. There is no one moment for all tablets: each answers
for the moment at which it is asked.
"""

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from psycopg import sql

from balancer.client.key_cover import KeyStretch, Vanished, parts, stretches, tablet_finder
from balancer.client.locate import Location
from balancer.client.routing import Routes
from balancer.client.transaction_steps import Held, Isolation, Request, Wish, ask, ask_together, enter, leave
from balancer.directory.model import Table
from balancer.errors import Unavailable, UserError
from balancer.relation_names import Name, parse_name

Outcome = TypeVar("Outcome")
Row = tuple[Any, ...]
Values = Sequence[Any] | Mapping[str, Any] | None
Drive = Callable[[Generator[Request, Any, Any]], Any]
Found = tuple[KeyStretch, tuple[Outcome, ...]]
"""A tablet that was asked and its one answer; none: it is not there any more."""

MOST_TOGETHER = 32
"""Tablets that one message asks: their answers are kept until the last of them is there."""
PAGE = 1_000
"""Rows that `scan` fetches at once."""


class Shard(NamedTuple):
    """A tablet that is being asked."""

    tablet: int
    node: str
    partitions: Mapping[str, Name]
    """By root, as the table's settings name it, and by its bare name."""

    def format(self, statement: str) -> sql.Composed:
        """A statement in which `{orders}` stands for the tablet's partition of that root."""
        names = {root: name.identifier for root, name in self.partitions.items()}
        try:
            return sql.SQL(statement).format(**names)
        except (KeyError, IndexError, ValueError):
            known = ", ".join(f"{{{root}}}" for root in self.partitions)
            raise UserError(
                f"{statement!r} does not name partitions as it must: write {known} where a table's name stands, and"
                " double other braces"
            ) from None


class EveryShard:
    """One table's tablets, asked by several threads. Belongs to one call."""

    def __init__(self, routes: Routes, drive: Drive, table: str, *, at_once: int, patience: float) -> None:
        if at_once < 1:
            raise UserError(f"at_once is {at_once}; at least one tablet must be asked at a time")
        self._routes = routes
        self._drive = drive
        self._table: Table = routes.snapshot.table(table)
        self._at_once = at_once
        self._patience = patience

    def run(self, work: Callable[[KeyStretch], Outcome]) -> Iterator[Outcome]:
        """Calls it for every tablet; answers as they come."""

        def one(group: list[KeyStretch]) -> list[Found[Outcome]]:
            try:
                return [(group[0], (work(group[0]),))]
            except Vanished:
                return [(group[0], ())]

        return self._run([[stretch] for stretch in stretches(self._routes.snapshot, self._table)], one)

    def ask_all(self, statement: str, values: Values) -> Iterator[tuple[int, str, list[Row]]]:
        """Tablet, node and rows of each answer. Tablets of one node share messages: most of the cost is in those."""
        self.shard(stretches(self._routes.snapshot, self._table)[0], "").format(statement)  # refused at once, if at all

        def group(together: list[KeyStretch]) -> list[Found[tuple[int, str, list[Row]]]]:
            found = self._ask_together(statement, values, together)
            return found if found is not None else [self._ask_one(statement, values, one) for one in together]

        return self._run(self._groups(), group)

    def _groups(self) -> list[list[KeyStretch]]:
        """Tablets of one node each, so many that every thread gets some."""
        snapshot = self._routes.snapshot
        by_node: dict[str, list[KeyStretch]] = {}
        for stretch in stretches(snapshot, self._table):
            by_node.setdefault(snapshot.tablet(stretch.tablet).node, []).append(stretch)
        total = sum(map(len, by_node.values()))
        size = max(1, min(MOST_TOGETHER, -(-total // self._at_once)))
        return [mine[at : at + size] for mine in by_node.values() for at in range(0, len(mine), size)]

    def _run(
        self, waiting: list[list[KeyStretch]], work: Callable[[list[KeyStretch]], list[Found[Outcome]]]
    ) -> Iterator[Outcome]:
        """The first failure ends it, with the number of tablets that had answered by then."""
        running: set[Future[list[Found[Outcome]]]] = set()
        done = 0
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="shards") as threads:
            try:
                while waiting or running:
                    while waiting and len(running) < self._at_once:
                        running.add(threads.submit(work, waiting.pop(0)))
                    ready, running = wait(running, return_when=FIRST_COMPLETED)
                    for stretch, answers in (found for future in ready for found in future.result()):
                        if not answers:
                            waiting[:0] = [[part] for part in parts(self._routes.snapshot, self._table, stretch)]
                        done += len(answers)
                        yield from answers
            except Unavailable as error:
                raise Unavailable(f"{error}; {done} tablets had answered") from error
            finally:
                for future in running:
                    future.cancel()

    def _ask_one(self, statement: str, values: Values, stretch: KeyStretch) -> Found[tuple[int, str, list[Row]]]:
        """One message: proof, statement, end. No answer: the tablet has vanished."""
        text = self.shard(stretch, "").format(statement)
        work = ask(self._finder(stretch), self._wish(), self._routes.clock.monotonic, text, values)
        try:
            location, rows = self._drive(work)
        except Vanished:
            return stretch, ()
        return stretch, ((stretch.tablet, location.node, rows),)

    def _ask_together(
        self, statement: str, values: Values, group: list[KeyStretch]
    ) -> list[Found[tuple[int, str, list[Row]]]] | None:
        """All in one message; None: something is in the way of one of them. They only read: they may be asked again."""
        try:
            places = [self._finder(stretch)()[1] for stretch in group]
        except Vanished:
            return None
        if len(group) == 1 or len({place.node for place in places}) > 1:
            return None
        wish = self._wish()
        texts = [self.shard(stretch, "").format(statement) for stretch in group]
        together = [(wish.opening(place), text) for place, text in zip(places, texts, strict=True)]
        rows = self._drive(ask_together(places[0].node, together, values))
        if rows is None:
            return None
        return [
            (stretch, ((stretch.tablet, place.node, mine),))
            for stretch, place, mine in zip(group, places, rows, strict=True)
        ]

    @contextmanager
    def transaction(self, stretch: KeyStretch, *, read_only: bool) -> Iterator[tuple[Shard, Any]]:
        """A transaction on the tablet's owner."""
        wish = self._wish(read_only=read_only)
        held: Held = self._drive(enter(self._finder(stretch), wish, self._routes.clock.monotonic))
        try:
            yield self.shard(stretch, held.location.node), held.loan.connection
        except BaseException:
            self._drive(leave(held, failed=True))
            raise
        self._drive(leave(held, failed=False))

    def shard(self, stretch: KeyStretch, node: str) -> Shard:
        names: dict[str, Name] = {}
        for root, leaf in zip(self._table.roots, stretch.partitions, strict=True):
            names |= {root: leaf, parse_name(root).name: leaf}
        return Shard(stretch.tablet, node, names)

    def _finder(self, stretch: KeyStretch) -> Callable[[], tuple[int, Location]]:
        return tablet_finder(lambda: self._routes.snapshot, stretch.tablet)

    def _wish(self, *, read_only: bool = True) -> Wish:
        deadline = self._routes.clock.monotonic() + self._patience
        return Wish(deadline, Isolation.READ_COMMITTED, read_only, proof=self._routes.proof)


def scan(every: EveryShard, statement: str, values: Values) -> Generator[Row, None, None]:
    """Rows of all tablets, streamed: a few pages are kept, however many rows there are. In no order."""
    pages: queue.Queue[list[Row] | None] = queue.Queue(4)
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
