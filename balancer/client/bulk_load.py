"""Many rows into a table, each to the node that owns its key: `Router.copy_into`.

Rows go in batches, one COPY and one transaction per node and batch, whose node has proven every tablet that gets a row.
A node's batch arrives whole or not at all; one that a switch has refused is located and sent again.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from operator import itemgetter
from typing import Any

import psycopg
from psycopg import sql

from balancer.client.keys.routes import Routes
from balancer.client.transaction.failures import Attempts, Failure, classify, classify_entry
from balancer.client.transaction.pools import Loan
from balancer.client.transaction.steps import LONGEST_BORROW, Borrow, CopyRows, Execute, GiveBack, Request, Undo
from balancer.directory.locate import NO_KEY, AnyKey, Location
from balancer.directory.model import Table
from balancer.errors import OutcomeUnknown, Unavailable, UserError
from balancer.naming import Name, parse_name

Row = Sequence[Any]
Drive = Callable[[Generator[Request, Any, Any]], Any]
Share = tuple[str, set[Location], list[Row]]
"""A node, its tablets that are proven, and the rows that it gets."""
Refusal = tuple[psycopg.Error, list[Row]] | None

MOST_PROVEN = 64
"""Up to this many tablets of a node are all proven for a batch; if there are more, only those that get a row."""


class BulkLoad:
    """One call: which node gets which rows, and the steps of one transaction. Without any I/O of its own."""

    def __init__(
        self, routes: Routes, table: str, *, root: str | None, columns: Sequence[str], patience: float
    ) -> None:
        self._routes = routes
        self._table: Table = routes.snapshot.table(table)
        self._name = table
        self._patience = patience
        into = _root(self._table, root)
        listed = sql.SQL(", ").join(map(sql.Identifier, columns))
        self._copy = sql.SQL("COPY {} ({}) FROM STDIN").format(into.identifier, listed)
        self._key = _key_of(self._table, columns)

    @property
    def version(self) -> int:
        """The map's version: to be read before rows are distributed, for `wait`."""
        return self._routes.snapshot.version

    def wait(self, version: int, seconds: float) -> None:
        """Waits for a map other than the one by which refused rows were distributed."""
        self._routes.wait(version, seconds)

    def attempts(self) -> Attempts:
        """How long a batch may be retried."""
        clock = self._routes.clock
        return Attempts(clock.monotonic() + self._patience, clock.monotonic)

    def shares(self, rows: list[Row]) -> Iterator[Share]:
        """By node: the tablets that get a row, and the rows."""
        try:
            snapshot, places = self._routes.grouped(self._name, list(map(self._key, rows)))
        except ImportError:  # without numpy: key by key
            return self._located(rows)
        mine: dict[str, set[Location]] = {}
        for tablet in snapshot.tablets(self._table.id):
            mine.setdefault(tablet.node, set()).add(Location(tablet.node, tablet.id, tablet.epoch))
        if any(len(mine[node]) > MOST_PROVEN for node in places):
            return self._located(rows)
        return ((node, mine[node], [rows[at] for at in found.tolist()]) for node, found in places.items())

    def _located(self, rows: list[Row]) -> Iterator[Share]:
        locate, key, name = self._routes.locate, self._key, self._name
        shares: dict[str, tuple[set[Location], list[Row]]] = {}
        for row in rows:
            location = locate(name, key(row))
            share = shares.get(location.node)
            if share is None:
                share = shares[location.node] = (set(), [])
            share[0].add(location)
            share[1].append(row)
        return ((node, *share) for node, share in shares.items())

    def send(self, share: Share) -> Generator[Request, Any, Refusal]:
        """One transaction on one node. Returns an error that a retry may cure: then nothing was done."""
        node, tablets, rows = share
        loan: Loan | None = None
        began = committed = False
        try:
            loan = yield Borrow(node, LONGEST_BORROW)
            assert loan is not None
            yield Execute(loan, _opening(tablets if self._routes.proof else set()))
            began = True
            yield CopyRows(loan, self._copy, rows)
            yield from _commit(loan, node)
            committed = True
        except psycopg.Error as error:
            if (classify if began else classify_entry)(error) is Failure.OTHER:
                raise
            return error, rows
        else:
            return None
        finally:
            if loan is not None:
                yield from _put_away(loan, committed)


class ThreadedLoad:
    """A load by several threads. `drive` is the router's: it borrows connections and sends statements."""

    def __init__(self, work: BulkLoad, drive: Drive, nodes: int) -> None:
        self._work = work
        self._drive = drive
        self._nodes = nodes

    def load(self, rows: Iterable[Row], batch: int) -> int:
        """Sends all rows; returns how many. A failure says what it left out."""
        done = 0
        source = iter(rows)
        with ThreadPoolExecutor(min(self._nodes or 1, 16), thread_name_prefix="copy") as threads:
            part = list(islice(source, batch))
            while part:
                sent = self._sent(threads, part)
                following = list(islice(source, batch))  # read while the servers are busy
                try:
                    self._finish(sent, threads)
                except (Unavailable, OutcomeUnknown) as error:
                    raise type(error)(f"{error}; the {done} rows before this batch are there") from error
                done += len(part)
                part = following
        return done

    def _sent(self, threads: ThreadPoolExecutor, rows: list[Row]) -> list[Future[Refusal]]:
        return [threads.submit(self._drive, self._work.send(share)) for share in self._work.shares(rows)]

    def _finish(self, sent: list[Future[Refusal]], threads: ThreadPoolExecutor) -> None:
        """Until every share of a batch has arrived."""
        attempts = self._work.attempts()
        while True:
            version = self._work.version
            wait(sent)  # all of them: a batch that continues after its failure was raised would be a surprise
            refused = [answer for answer in (one.result() for one in sent) if answer is not None]
            if not refused:
                return
            self._work.wait(version, attempts.pause_after(refused[0][0]))
            sent = self._sent(threads, [row for _, left in refused for row in left])


def _commit(loan: Loan, node: str) -> Generator[Request, Any, None]:
    try:
        yield Execute(loan, b"COMMIT")
    except psycopg.Error as error:
        if classify(error) is Failure.LOST:
            raise OutcomeUnknown(f"the connection to node {node} broke while a batch was committed") from error
        raise


def _put_away(loan: Loan, committed: bool) -> Generator[Request, Any, None]:
    """Ends what was not committed, and returns the connection."""
    try:
        if not committed and not loan.connection.closed:
            yield Undo(loan)
    except psycopg.Error:
        pass  # a broken connection is discarded when it is returned
    finally:
        yield GiveBack(loan)


def _opening(tablets: set[Location]) -> bytes:
    # In the same order everywhere: two loads, or a load and a mover, must not wait for each other.
    holds = (f"; CALL balancer.hold({one.tablet:d}, {one.epoch:d}, true)" for one in sorted(tablets, key=itemgetter(1)))
    return ("BEGIN" + "".join(holds)).encode()


def _root(table: Table, wanted: str | None) -> Name:
    roots = tuple(map(parse_name, table.roots))
    name = parse_name(wanted) if wanted else roots[0]
    if name not in roots:
        raise UserError(f"table {table.name} has no root {wanted!r}; there are: {', '.join(table.roots)}")
    return name


def _key_of(table: Table, columns: Sequence[str]) -> Callable[[Row], AnyKey]:
    if table.whole:
        return lambda _: NO_KEY
    missing = [column.name for column in table.columns if column.name not in columns]
    if missing:
        raise UserError(f"the rows lack {', '.join(missing)}, which the key of table {table.name} needs")
    places = [list(columns).index(column.name) for column in table.columns]
    getter: Callable[[Row], AnyKey] = itemgetter(*places)
    return getter
