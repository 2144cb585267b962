"""An application that shards a plain table over three nodes by `id % 3`, with writers; and a process that imports it.

Run as `python -m tests.support.self_sharded URL DSNS STEP [cancel]`: imports, and is killed where that step begins; or
at its N-th word to a node, if STEP is a number (see `ddl_killed`).
"""

import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg

from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import Node
from balancer.directory.open import open_directory
from balancer.nodes.connection import Address
from balancer.nodes.names import parse_name
from balancer.settings import MigrationSettings
from balancer.tables.adopt import TableRequest
from balancer.tables.importing import TableImport
from tests.support.ddl_killed import killed_at

SETTINGS = MigrationSettings(
    write_pause_budget=10.0, lock_timeout=1.0, fence_deadline=20.0, retry_patience=30.0, retry_back_off=0.05
)
"""A busy machine is no reason to fail."""
TABLETS = 8
SHARDS = 3
PACE = 0.004
"""Seconds between two writes: an application, not a benchmark."""
TABLE = """
CREATE TABLE orders (
    id bigint PRIMARY KEY,
    n bigint NOT NULL DEFAULT 0 CHECK (n >= 0),
    note text,
    twice bigint GENERATED ALWAYS AS (n * 2) STORED
)
"""


def request(*, layout: str = "hash", key: str = "id", root: str = "public.orders") -> TableRequest:
    return TableRequest("shop", "orders", (parse_name(root),), layout, (key,), "test")


def importer(
    directory: Directory,
    dsns: Mapping[str, str],
    observe: Callable[[str], None] = lambda step: None,
    wanted: TableRequest | None = None,
    settings: MigrationSettings = SETTINGS,
    clock: Clock | None = None,
) -> TableImport:
    return TableImport(
        wanted or request(),
        directory,
        {node: Address(node, dsn) for node, dsn in dsns.items()},
        records=[Node(node, "shop", f"postgresql:///{node}") for node in dsns],
        cluster="shop",
        settings=settings,
        clock=clock or SystemClock(),
        observe=observe,
    )


def make_tables(dsns: Mapping[str, str], rows: int) -> None:
    """The application's: the last node has none yet."""
    for number, dsn in enumerate(list(dsns.values())[:SHARDS]):
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(TABLE)
            connection.execute("CREATE INDEX by_note ON orders (lower(note))")
            connection.execute(
                "INSERT INTO orders (id, n, note) SELECT g, 1, 'row ' || g FROM generate_series(1, %s) AS g"
                " WHERE g %% %s = %s",
                (rows, SHARDS, number),
            )


class Writer(threading.Thread):
    """Inserts, updates and deletes by the application's rule and, once that is refused, wherever the row is taken.

    Keeps account of what was acknowledged; while servers live, no answer is lost.
    """

    def __init__(self, dsns: Mapping[str, str], ids: range) -> None:
        super().__init__()
        self._dsns = dsns
        self._ids = ids
        self.rows: dict[int, int] = {}
        self.refused = 0
        self.fault = ""
        self._stopping = threading.Event()

    def stop(self) -> dict[int, int]:
        self._stopping.set()
        self.join()
        assert not self.fault, self.fault
        return self.rows

    def run(self) -> None:
        connections = [psycopg.connect(dsn, autocommit=True) for dsn in self._dsns.values()]
        try:
            for turn in itertools.count():
                for number in self._ids:
                    if self._stopping.is_set():
                        return
                    self._write(connections, number, turn)
        except Exception as error:
            self.fault = f"{type(error).__name__}: {error}"
        finally:
            for connection in connections:
                connection.close()

    def _write(self, connections: Sequence[psycopg.Connection[Any]], number: int, turn: int) -> None:
        known = self.rows.get(number)
        if known is None:
            statement, after = "INSERT INTO orders (id, n, note) VALUES (%(id)s, %(n)s, 'w')", turn
        elif turn % 5 == 4:
            statement, after = "DELETE FROM orders WHERE id = %(id)s", None
        else:
            statement, after = "UPDATE orders SET n = %(n)s WHERE id = %(id)s", turn
        home = number % SHARDS
        nodes = [connections[home], *(one for one in connections if one is not connections[home])]
        while not self._stopping.wait(PACE):
            for connection in nodes:
                if self._taken(connection, statement, {"id": number, "n": turn}):
                    if after is None:
                        del self.rows[number]
                    else:
                        self.rows[number] = after
                    return

    def _taken(self, connection: psycopg.Connection[Any], statement: str, values: Mapping[str, int]) -> bool:
        """Whether the row was there and changed; a node that refuses, or does not have it, is no fault."""
        try:
            return connection.execute(statement.encode(), values).rowcount == 1
        except (psycopg.errors.SerializationFailure, psycopg.errors.CheckViolation, psycopg.errors.UndefinedTable):
            self.refused += 1
            return False


def rows_of(dsns: Mapping[str, str]) -> list[tuple[int, int]]:
    """What the tables of all nodes show together, sorted: a row that is there twice is there twice."""
    found: list[tuple[int, int]] = []
    for dsn in dsns.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            if connection.execute("SELECT to_regclass('public.orders')").fetchone() != (None,):
                found += connection.execute("SELECT id, n FROM orders").fetchall()
    return sorted(found)


def main() -> None:
    url, dsns, wanted, *words = sys.argv[1:]
    told = killed_at(int(wanted) if wanted.isdigit() else 0, "tablet-balancer import")

    def observe(step: str) -> None:
        print(step, flush=True)
        if step == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    with open_directory(url) as directory, importer(directory, json.loads(dsns), observe) as work:
        if "cancel" in words:
            work.cancel()
        else:
            work.run(TABLETS, ())
    print(told())


if __name__ == "__main__":
    main()
