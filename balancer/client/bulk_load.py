"""Many rows into a table, each to the node that owns its key: `Router.copy_into`.

Rows go in batches, one COPY and one transaction per node and batch, whose node has proven every tablet that gets a row.
A batch of a node is there whole or not at all; one that a switch has refused is located again and sent again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from operator import itemgetter
from typing import Any

import psycopg
from psycopg import sql

from balancer.client.failures import Failure, classify, classify_entry
from balancer.client.locate import NO_KEY, AnyKey, Location
from balancer.client.pools import Loan
from balancer.client.retry import Attempts
from balancer.client.routing import Routes
from balancer.client.transaction_steps import LONGEST_BORROW, Borrow, Execute, GiveBack, Request
from balancer.directory.model import Table
from balancer.errors import OutcomeUnknown, Unavailable, UserError
from balancer.relation_names import Name, parse_name

Row = Sequence[Any]
Perform = Callable[[Request], Any]


class BulkLoad:
    """One call. `perform` is the router's: it borrows connections and sends statements."""

    def __init__(
        self, routes: Routes, perform: Perform, table: str, *, root: str | None, columns: Sequence[str], patience: float
    ) -> None:
        self._routes = routes
        self._perform = perform
        self._table: Table = routes.snapshot.table(table)
        self._name = table
        self._patience = patience
        into = _root(self._table, root)
        listed = sql.SQL(", ").join(map(sql.Identifier, columns))
        self._copy = sql.SQL("COPY {} ({}) FROM STDIN").format(into.identifier, listed)
        self._key = _key_of(self._table, columns)

    def load(self, rows: Iterable[Row], batch: int) -> int:
        """Sends all rows; returns how many. What a failure leaves out is said with it."""
        done = 0
        source = iter(rows)
        nodes = len(self._routes.snapshot.nodes) or 1
        with ThreadPoolExecutor(min(nodes, 16), thread_name_prefix="copy") as threads:
            while part := list(islice(source, batch)):
                try:
                    self._load_batch(part, threads)
                except (Unavailable, OutcomeUnknown) as error:
                    raise type(error)(f"{error}; the {done} rows before this batch are there") from error
                done += len(part)
        return done

    def _load_batch(self, rows: list[Row], threads: ThreadPoolExecutor) -> None:
        clock = self._routes.clock
        deadline = clock.monotonic() + self._patience
        attempts = Attempts(deadline, clock.monotonic)
        while rows:
            version = self._routes.snapshot.version
            shares = list(self._shares(rows))
            failed: list[tuple[psycopg.Error, list[Row]]] = []
            for error, left in threads.map(self._send, shares):
                if error is not None:
                    failed.append((error, left))
            rows = [row for _, left in failed for row in left]
            if failed:
                self._routes.wait(version, attempts.pause_after(failed[0][0]))

    def _shares(self, rows: list[Row]) -> Iterator[tuple[str, set[Location], list[Row]]]:
        """By node: the tablets that get a row, and the rows."""
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

    def _send(self, share: tuple[str, set[Location], list[Row]]) -> tuple[psycopg.Error | None, list[Row]]:
        """One transaction on one node. Returns an error that another try may cure, and then nothing was done."""
        node, tablets, rows = share
        loan: Loan | None = None
        began = False
        try:
            loan = self._perform(Borrow(node, LONGEST_BORROW))
            assert loan is not None
            self._perform(Execute(loan, _opening(tablets)))
            began = True
            with loan.connection.cursor() as cursor, cursor.copy(self._copy) as copy:
                write = copy.write_row
                for row in rows:
                    write(row)
            self._commit(loan, node)
        except psycopg.Error as error:
            if (classify if began else classify_entry)(error) is Failure.OTHER:
                raise
            return error, rows
        else:
            return None, []
        finally:
            if loan is not None:
                _roll_back(loan)
                self._perform(GiveBack(loan))

    def _commit(self, loan: Loan, node: str) -> None:
        try:
            self._perform(Execute(loan, b"COMMIT"))
        except psycopg.Error as error:
            if classify(error) is Failure.LOST:
                raise OutcomeUnknown(f"the connection to node {node} broke while a batch was committed") from error
            raise


def _opening(tablets: set[Location]) -> bytes:
    # In one order everywhere: two loads, or a mover, must not wait for each other.
    holds = (f"; CALL balancer.hold({one.tablet:d}, {one.epoch:d}, true)" for one in sorted(tablets, key=itemgetter(1)))
    return ("BEGIN" + "".join(holds)).encode()


def _roll_back(loan: Loan) -> None:
    """What was not committed; after a commit nothing is sent."""
    try:
        loan.connection.rollback()
    except psycopg.Error:
        return  # a broken connection is discarded when it is given back


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
