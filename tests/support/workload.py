"""Writers and readers that keep account: what was acknowledged, what may have happened, what was read too old.

They find the owner in the directory, prove it on the node inside the transaction, and try again on `TB001`, `TB002`,
a missing partition or a lost connection, as the client library does.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from balancer.directory.contract import Follower
from balancer.directory.model import Layout, Tablet
from policies.hashing import partition_hash
from policies.keys import KeyType, encode_key
from policies.leaves import position
from tests.support.cluster import Cluster

RETRY_STATES = {"TB001", "TB002", "23514", "40001", "40P01", "55P03"}


class Ledger:
    """What the application knows: increments per id that were acknowledged, and those whose outcome it never heard."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.acknowledged: Counter[int] = Counter()
        self.unknown: Counter[int] = Counter()
        self.inserted: set[int] = set()
        self.maybe_inserted: set[int] = set()
        self.stale_reads: list[str] = []
        self.longest_wait = 0.0
        self.operations = 0

    def faults(self, rows: dict[str, dict[int, int]]) -> list[str]:
        """What is wrong with the rows that the nodes show in the end."""
        found = list(self.stale_reads[:3])
        places: dict[int, list[str]] = {}
        for node, content in rows.items():
            for number in content:
                places.setdefault(number, []).append(node)
        found += [f"row {number} is on {' and '.join(on)}" for number, on in places.items() if len(on) > 1]
        merged = {number: n for content in rows.values() for number, n in content.items()}
        found += [f"acknowledged row {number} is lost" for number in self.inserted if number not in merged]
        for number, n in merged.items():
            low = self.acknowledged[number]
            if not low <= n <= low + self.unknown[number]:
                found.append(f"row {number} has n = {n}; acknowledged {low}, unknown {self.unknown[number]}")
        return found


class Worker(threading.Thread):
    """One client of the application: increments, inserts and reads of its own rows."""

    def __init__(self, cluster: Cluster, follower: Follower, ledger: Ledger, number: int, seed: int) -> None:
        super().__init__(name=f"worker-{number}", daemon=True)
        self._cluster = cluster
        self._follower = follower
        self._ledger = ledger
        self._random = random.Random(seed * 1000 + number)
        self._next = 1_000_000 * (number + 1)
        self._mine: list[int] = []
        self._connections: dict[str, psycopg.Connection[tuple[object, ...]]] = {}
        self.stop = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                began = time.monotonic()
                self._one()
                waited = time.monotonic() - began
                with self._ledger.lock:
                    self._ledger.longest_wait = max(self._ledger.longest_wait, waited)
                    self._ledger.operations += 1
                time.sleep(0.002)
        except BaseException as error:  # reported by the test
            self.error = error
        finally:
            for connection in self._connections.values():
                connection.close()

    def _one(self) -> None:
        choice = self._random.random()
        if choice < 0.3 or not self._mine:
            self._insert()
        elif choice < 0.8:
            self._increment(self._random.choice(self._mine))
        else:
            self._read(self._random.choice(self._mine))

    def _insert(self) -> None:
        number, self._next = self._next, self._next + 1
        while not self.stop.is_set():
            outcome = self._write(number, f"INSERT INTO {self._root} (id) VALUES ({number})")
            if outcome == "done":
                with self._ledger.lock:
                    self._ledger.inserted.add(number)
                self._mine.append(number)
                return
            if outcome in ("unknown", "exists"):
                return  # it may be there or not: nobody was told

    def _increment(self, number: int) -> None:
        while not self.stop.is_set():
            outcome = self._write(number, f"UPDATE {self._root} SET n = n + 1 WHERE id = {number}", one=True)
            if outcome in ("done", "unknown"):
                with self._ledger.lock:
                    (self._ledger.acknowledged if outcome == "done" else self._ledger.unknown)[number] += 1
                return

    def _read(self, number: int) -> None:
        with self._ledger.lock:
            least = self._ledger.acknowledged[number]
        while not self.stop.is_set():
            try:
                with self._transaction(number) as connection:
                    row = connection.execute(f"SELECT n FROM {self._root} WHERE id = {number}").fetchone()
            except _Again:
                continue
            except _Unknown:
                continue
            if row is None or int(str(row[0])) < least:
                self._ledger.stale_reads.append(f"row {number} was read as {row}, at least {least} was acknowledged")
            return

    def _write(self, number: int, statement: str, one: bool = False) -> str:
        try:
            with self._transaction(number) as connection:
                _check(connection.execute(statement).rowcount == 1 or not one)
        except _Again:
            return "again"
        except _Unknown:
            return "unknown"
        except psycopg.errors.UniqueViolation:
            return "exists"
        return "done"

    @contextmanager
    def _transaction(self, number: int) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
        """Raises `_Again` if nothing happened, `_Unknown` if nobody knows."""
        tablet = self._owner(number)
        connection = self._connection(tablet.node)
        committing = False
        try:
            with connection.transaction():
                connection.execute("CALL balancer.hold(%s, %s, true)", (tablet.id, tablet.epoch))
                yield connection
                committing = True
        except psycopg.OperationalError as error:
            if error.sqlstate in RETRY_STATES:
                self._pause()
                raise _Again from error
            self._drop(tablet.node)
            raise (_Unknown if committing else _Again) from error
        except psycopg.Error as error:
            if error.sqlstate in RETRY_STATES:
                self._pause()
                raise _Again from error
            if connection.closed:
                self._drop(tablet.node)
                raise (_Unknown if committing else _Again) from error
            raise

    def _connection(self, node: str) -> psycopg.Connection[tuple[object, ...]]:
        found = self._connections.get(node)
        if found is None or found.closed:
            try:
                found = psycopg.connect(self._cluster.dsns[node], autocommit=True, connect_timeout=2)
            except psycopg.OperationalError as error:
                self._pause(0.05)
                raise _Again from error
            found.execute("SET statement_timeout = '5s'")
            self._connections[node] = found
        return found

    def _drop(self, node: str) -> None:
        self._connections.pop(node).close()
        self._pause(0.05)

    def _pause(self, seconds: float = 0.003) -> None:
        time.sleep(seconds * self._random.uniform(0.5, 1.5))

    def _owner(self, number: int) -> Tablet:
        return owner(self._cluster, self._follower, number)

    @property
    def _root(self) -> str:
        return self._cluster.table.roots[0]


class _Again(Exception):
    """Nothing happened: try again."""


class _Unknown(Exception):
    """The connection broke during the commit."""


def _check(found: bool) -> None:
    """A row that is not found where it should be: the tablet is not there any more."""
    if not found:
        raise _Again


def owner(cluster: Cluster, follower: Follower, number: int) -> Tablet:
    """Who owns an id, by the newest map."""
    table = cluster.table
    if table.layout is Layout.HASH:
        return follower.snapshot.locate(table.id, position(partition_hash((KeyType.BIGINT,), (number,))))
    return follower.snapshot.locate(table.id, encode_key((KeyType.BIGINT,), (number,)))


@contextmanager
def running(cluster: Cluster, workers: int, seed: int) -> Iterator[tuple[Ledger, Callable[[], None]]]:
    """Workers at work; call the second value to end them and raise what they raised."""
    directory = cluster.directory()
    follower = directory.follow()
    ledger = Ledger()
    threads = [Worker(cluster, follower, ledger, number, seed) for number in range(workers)]
    for thread in threads:
        thread.start()

    def finish() -> None:
        for thread in threads:
            thread.stop.set()
        for thread in threads:
            thread.join(30)
        for thread in threads:
            if thread.error is not None:
                raise thread.error

    try:
        yield ledger, finish
    finally:
        for thread in threads:
            thread.stop.set()
        for thread in threads:
            thread.join(30)
        follower.close()
