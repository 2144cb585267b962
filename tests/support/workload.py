"""Writers and readers that keep track: what was acknowledged, what may have happened, what was read too old.

A write is acknowledged once COMMIT has returned, and only then; if COMMIT was never answered it may be there or not.
They find the owner in the directory, have the node hold the tablet for their transaction, and retry when it refuses or
the connection is lost, as the client library does. Once the node holds it, nothing may go wrong any more.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import psycopg

from balancer.directory.contract import Follower
from balancer.directory.model import Layout, Tablet
from balancer.policies.keyspace.hash_leaves import position
from balancer.policies.keyspace.hashing import partition_hash
from balancer.policies.keyspace.keys import KeyType, encode_key
from tests.support.cluster import Cluster
from tests.support.refusals import refused_with

RETRY_STATES = {"TB001", "TB002", "40001", "40P01", "55P03"}
BROKEN_PROMISES = {"TB001", "TB002", "23514"}  # after the node has said that it holds the tablet


class Ledger:
    """What the application knows: writes that were acknowledged, those whose outcome it never heard, odd answers."""

    def __init__(self, present: Iterable[int] = ()) -> None:
        self.lock = threading.Lock()
        self.acknowledged: Counter[int] = Counter()
        self.unknown: Counter[int] = Counter()
        self.inserted: set[int] = set(present)
        self.maybe_inserted: set[int] = set()
        self.deleted: set[int] = set()
        self.maybe_deleted: set[int] = set()
        self.surprises: list[str] = []
        self.writes: list[tuple[float, int]] = []
        """When (by the monotonic clock) a write of which id was acknowledged."""
        self.reads: list[tuple[float, int]] = []
        """When an answered read of which id began."""
        self.longest_wait = 0.0
        self.operations = 0

    def faults(self, rows: dict[str, dict[int, int]]) -> list[str]:
        """What is wrong with the rows that the nodes show in the end."""
        found = list(self.surprises[:3])
        places: dict[int, list[str]] = {}
        for node, content in rows.items():
            for number in content:
                places.setdefault(number, []).append(node)
        found += [f"row {number} is on {' and '.join(on)}" for number, on in places.items() if len(on) > 1]
        merged = {number: n for content in rows.values() for number, n in content.items()}
        gone = self.deleted | self.maybe_deleted
        found += [f"acknowledged row {number} is lost" for number in self.inserted - gone if number not in merged]
        found += [f"deleted row {number} is back" for number in self.deleted if number in merged]
        known = self.inserted | self.maybe_inserted
        found += [f"row {number} is there, but its write was refused" for number in merged if number not in known]
        for number, n in merged.items():
            low = self.acknowledged[number]
            if not low <= n <= low + self.unknown[number]:
                found.append(f"row {number} has n = {n}; acknowledged {low}, unknown {self.unknown[number]}")
        return found

    def acknowledge(self, number: int) -> None:
        """Called with the lock held, after COMMIT returned."""
        self.writes.append((time.monotonic(), number))


class Worker(threading.Thread):
    """One client of the application: increments, inserts, deletes and reads of its own rows."""

    def __init__(
        self, cluster: Cluster, follower: Follower, ledger: Ledger, number: int, seed: int, pace: float = 0.002
    ) -> None:
        super().__init__(name=f"worker-{number}", daemon=True)
        self._cluster = cluster
        self._follower = follower
        self._ledger = ledger
        self._pace = pace
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
                time.sleep(self._pace)
        except BaseException as error:  # reported by the test
            self.error = error
        finally:
            for connection in self._connections.values():
                connection.close()

    def _one(self) -> None:
        choice = self._random.random()
        if choice < 0.25 or not self._mine:
            self._insert()
        elif choice < 0.3:
            self._remove(self._mine.pop(self._random.randrange(len(self._mine))))
        elif choice < 0.7:
            self._increment(self._random.choice(self._mine))
        else:
            self._read(self._random.choice(self._mine))

    def _insert(self) -> None:
        number, self._next = self._next, self._next + 1
        outcome = self._until_answered(number, f"INSERT INTO {self._root} (id) VALUES ({number})")
        with self._ledger.lock:
            if outcome == "done":
                self._ledger.inserted.add(number)
                self._ledger.acknowledge(number)
                self._mine.append(number)
            elif outcome == "unknown":
                self._ledger.maybe_inserted.add(number)
            elif outcome == "exists":  # every earlier attempt was refused, and nobody else writes this row
                self._ledger.surprises.append(f"row {number} was there before its write was acknowledged")

    def _increment(self, number: int) -> None:
        outcome = self._until_answered(number, f"UPDATE {self._root} SET n = n + 1 WHERE id = {number}", one=True)
        with self._ledger.lock:
            if outcome == "done":
                self._ledger.acknowledged[number] += 1
                self._ledger.acknowledge(number)
            elif outcome == "unknown":
                self._ledger.unknown[number] += 1

    def _remove(self, number: int) -> None:
        outcome = self._until_answered(number, f"DELETE FROM {self._root} WHERE id = {number}", one=True)
        with self._ledger.lock:
            if outcome == "done":
                self._ledger.deleted.add(number)
                self._ledger.acknowledge(number)
            elif outcome == "unknown":
                self._ledger.maybe_deleted.add(number)

    def _read(self, number: int) -> None:
        with self._ledger.lock:
            least = self._ledger.acknowledged[number]
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                with self._transaction(number, writing=False) as connection:
                    row = connection.execute(f"SELECT n FROM {self._root} WHERE id = {number}").fetchone()
            except (_Again, _Unknown):
                continue
            with self._ledger.lock:
                self._ledger.reads.append((began, number))
            if row is None or int(str(row[0])) < least:
                self._surprise(f"row {number} was read as {row}, at least {least} was acknowledged")
            return

    def _surprise(self, words: str) -> None:
        with self._ledger.lock:
            self._ledger.surprises.append(words)

    def _until_answered(self, number: int, statement: str, one: bool = False) -> str:
        """Tries until the answer is something other than "try again"; empty if the test ended first."""
        while not self.stop.is_set():
            outcome = self._write(number, statement, one)
            if outcome != "again":
                return outcome
        return ""

    def _write(self, number: int, statement: str, one: bool) -> str:
        try:
            with self._transaction(number, writing=True) as connection:
                changed = connection.execute(statement).rowcount
                if one and changed != 1:
                    self._surprise(f"{changed} rows were changed by: {statement}")
        except _Again:
            return "again"
        except _Unknown:
            return "unknown"
        except psycopg.errors.UniqueViolation:
            return "exists"
        return "done"

    @contextmanager
    def _transaction(self, number: int, *, writing: bool) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
        """Raises `_Again` if nothing happened, `_Unknown` if nobody knows."""
        tablet = self._owner(number)
        connection = self._connection(tablet.node)
        held = committing = False
        try:
            connection.execute(_opening(tablet, writing))
            held = True
            yield connection
            committing = True
            connection.execute("COMMIT")
        except psycopg.Error as error:
            if held and refused_with(error) in BROKEN_PROMISES:
                self._surprise(f"row {number} was refused by the node that held its tablet: {error}")
            if refused_with(error) in RETRY_STATES:
                self._roll_back(connection)
                self._pause()
                raise _Again from error
            if isinstance(error, psycopg.OperationalError) or connection.closed:
                self._drop(tablet.node)
                raise (_Unknown if committing else _Again) from error
            self._roll_back(connection)
            raise

    def _roll_back(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        with suppress(psycopg.OperationalError):  # it was lost meanwhile; the next use opens another
            connection.execute("ROLLBACK")

    def _connection(self, node: str) -> psycopg.Connection[tuple[object, ...]]:
        found = self._connections.get(node)
        if found is None or found.closed:
            try:
                found = psycopg.connect(
                    self._cluster.dsns[node], autocommit=True, connect_timeout=2, options="-c statement_timeout=10s"
                )
            except psycopg.OperationalError as error:
                self._pause(0.05)
                raise _Again from error
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


class Reader(Worker):
    """A client that only reads rows that nobody writes: no writer's wait keeps it from asking."""

    def __init__(
        self, cluster: Cluster, follower: Follower, ledger: Ledger, rows: Sequence[int], seed: int, pace: float
    ) -> None:
        super().__init__(cluster, follower, ledger, 99, seed, pace)
        self._rows = rows

    def _one(self) -> None:
        self._read(self._random.choice(self._rows))


class _Again(Exception):
    """Nothing happened: try again."""


class _Unknown(Exception):
    """The connection broke during the commit."""


def _opening(tablet: Tablet, writing: bool) -> bytes:
    """BEGIN and the proof of ownership in one message, as the client library sends it."""
    mode = "READ COMMITTED READ WRITE" if writing else "REPEATABLE READ READ ONLY"
    return f"BEGIN ISOLATION LEVEL {mode}; CALL balancer.hold({tablet.id}, {tablet.epoch}, {writing})".encode()


def owner(cluster: Cluster, follower: Follower, number: int) -> Tablet:
    """Who owns an id, by the newest map."""
    table = cluster.table
    if table.layout is Layout.HASH:
        return follower.snapshot.locate(table.id, position(partition_hash((KeyType.BIGINT,), (number,))))
    return follower.snapshot.locate(table.id, encode_key((KeyType.BIGINT,), (number,)))


@contextmanager
def running(
    cluster: Cluster, workers: int, seed: int, *, pace: float = 0.002, present: Sequence[int] = ()
) -> Iterator[tuple[Ledger, Callable[[], None]]]:
    """Workers at work; call the second value to end them and raise what they raised.

    `present`: ids of rows that already exist; one more client reads them, and they must be there in the end.
    """
    directory = cluster.directory()
    follower = directory.follow()
    ledger = Ledger(present)
    threads = [Worker(cluster, follower, ledger, number, seed, pace) for number in range(workers)]
    if present:
        threads.append(Reader(cluster, follower, ledger, present, seed, pace))
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
