"""An ordinary busy database: sessions that read, write and keep snapshots while something is split, merged or moved.

Every session counts what it did, the longest time that it waited beyond its own work, and what it was refused. Used by
tests, which also check what it read, and by `make bench`.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg

Connection = psycopg.Connection[tuple[object, ...]]
ROWS = 20_000
OTHER = "CREATE TABLE IF NOT EXISTS elsewhere AS SELECT generate_series(1, 1000) AS id"


@dataclass
class Seen:
    """What one kind of session has met."""

    done: int = 0
    longest: float = 0.0
    refused: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    written: int = 0
    waits: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def one(self, waited: float, written: int = 0) -> None:
        with self.lock:
            self.done += 1
            self.longest = max(self.longest, waited)
            self.waits.append(waited)
            self.written += written

    def was_refused(self, error: psycopg.Error) -> None:
        with self.lock:
            word = error.sqlstate or str(error)
            self.refused[word] = self.refused.get(word, 0) + 1


Work = Callable[[Connection, random.Random, Seen], None]


def elsewhere(least: float, most: float) -> Work:
    """Statements on another table."""
    return _statement("SELECT count(*), pg_sleep({}) FROM (SELECT FROM elsewhere LIMIT 1) AS e", least, most)


def statements(least: float, most: float) -> Work:
    """Statements on the table itself."""
    return _statement("SELECT (SELECT count(*) FROM orders), pg_sleep({})", least, most, counted=True)


def _statement(text: str, least: float, most: float, *, counted: bool = False) -> Work:
    def work(connection: Connection, choice: random.Random, seen: Seen) -> None:
        seconds = choice.uniform(least, most)
        began = time.monotonic()
        row = connection.execute(text.format(f"{seconds:.3f}").encode()).fetchone()
        assert row is not None
        if counted and row[0] != ROWS:
            seen.wrong.append(f"a statement found {row[0]} rows")
        seen.one(time.monotonic() - began - seconds)

    return work


def snapshots(least: float, most: float, level: str = "REPEATABLE READ") -> Work:
    """Transactions on one snapshot, that count the table's rows at their beginning and at their end."""

    def work(connection: Connection, choice: random.Random, seen: Seen) -> None:
        seconds, waited = choice.uniform(least, most), 0.0
        connection.execute(f"BEGIN ISOLATION LEVEL {level} READ ONLY".encode())
        connection.execute("SELECT count(*) FROM elsewhere")
        for pause in (seconds / 2, seconds / 2):
            time.sleep(pause)
            began = time.monotonic()
            row = connection.execute("SELECT count(*), sum(n) FROM orders").fetchone()
            waited = max(waited, time.monotonic() - began)
            assert row is not None
            if row[0] != ROWS:
                seen.wrong.append(f"a transaction on one snapshot found {row[0]} rows")
        connection.execute("COMMIT")
        seen.one(waited)

    return work


def writers(least: float, most: float, level: str = "READ COMMITTED") -> Work:
    """Transactions that change one row and stay open."""

    def work(connection: Connection, choice: random.Random, seen: Seen) -> None:
        seconds = choice.uniform(least, most)
        began = time.monotonic()
        connection.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
        changed = connection.execute("UPDATE orders SET n = n + 1 WHERE id = %s", (choice.randrange(ROWS),)).rowcount
        waited = time.monotonic() - began
        if changed != 1:
            seen.wrong.append(f"an UPDATE of one row found {changed}")
        time.sleep(seconds)
        connection.execute("COMMIT")
        seen.one(waited, changed)

    return work


@dataclass(frozen=True)
class Load:
    """Sessions of one kind."""

    name: str
    sessions: int
    work: Work


@contextmanager
def busy(dsn: str, loads: Sequence[Load], seed: str = "") -> Iterator[Mapping[str, Seen]]:
    """While the block runs, these sessions work, one transaction after another."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(OTHER)
    seen = {load.name: Seen() for load in loads}
    over = threading.Event()
    threads = [
        threading.Thread(target=_session, args=(dsn, load, seen[load.name], over, f"{seed} {load.name} {number}"))
        for load in loads
        for number in range(load.sessions)
    ]
    for thread in threads:
        thread.start()
    try:
        _until(lambda: all(one.done or one.refused for one in seen.values()))
        yield seen
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _session(dsn: str, load: Load, seen: Seen, over: threading.Event, seed: str) -> None:
    choice = random.Random(seed)
    with psycopg.connect(dsn, autocommit=True, application_name=load.name) as connection:
        connection.prepare_threshold = None
        while not over.is_set():
            try:
                load.work(connection, choice, seen)
            except psycopg.Error as error:
                seen.was_refused(error)
                if not connection.closed:
                    connection.rollback()


def _until(happened: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "the sessions did not get going"
        time.sleep(0.01)
