"""A whole small product for tests of the command line: two databases, two tables with rows, and a daemon on them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from balancer.clock import SystemClock
from balancer.daemon.daemon import Daemon
from balancer.directory.open import open_directory
from balancer.directory.snapshot import Snapshot
from balancer.embedded.postgres import PostgresServer
from balancer.logs import set_up_logs
from balancer.settings import load_settings
from tests.support.commands import Result, balancer_here
from tests.support.logs import kept_logs
from tests.support.servers import Database, new_database
from tests.support.waiting import came

ROWS = 400

DAEMON = """
directory = "sqlite://{folder}/directory.db"
tick = "300ms"
instance = "{instance}"
session_timeout = "2s"
mode = "observe"
"""

TABLES = """
[migration]
retire_grace = "0s"
moves_per_node = 2

[checks]
share = 1.0

[tables.orders]
roots = ["public.orders"]
layout = "hash"
key = ["id"]
tablets = 4

[tables.events]
roots = ["public.events"]
layout = "range"
key = ["id"]
splits = [100, 200]
"""

DEFINITIONS = {
    "orders": "CREATE TABLE orders (id bigint PRIMARY KEY, note text) PARTITION BY HASH (id)",
    "events": "CREATE TABLE events (id bigint PRIMARY KEY, note text) PARTITION BY RANGE (id)",
}


@dataclass
class Running:
    """The product's files and databases; `run` adds a daemon."""

    folder: Path
    databases: dict[str, Database]

    @property
    def config(self) -> Path:
        return self.folder / "balancer.toml"

    def balancer(self, *arguments: str) -> Result:
        """A command with this configuration."""
        return balancer_here(*arguments, "--config", self.config)

    def snapshot(self) -> Snapshot:
        with open_directory(f"sqlite://{self.folder}/directory.db") as directory:
            return directory.snapshot()

    def published(self, topic: str) -> dict[str, Any]:
        with open_directory(f"sqlite://{self.folder}/directory.db") as directory:
            return dict(directory.published(topic))

    def rows(self, table: str) -> list[int]:
        """The ids that all nodes' roots show together."""
        found: list[int] = []
        for database in self.databases.values():
            with database.connect() as connection:
                found += [int(str(number)) for (number,) in connection.execute(f"SELECT id FROM {table}")]
        return sorted(found)

    @contextmanager
    def daemon(self, instance: str = "one") -> Iterator[Daemon]:
        """A daemon that leads."""
        self.config.write_text(DAEMON.format(folder=self.folder, instance=instance))
        daemon = Daemon(load_settings(self.config), SystemClock())
        daemon.start()
        try:
            until(lambda: daemon.leading is not None, "the daemon leads")
            yield daemon
        finally:
            daemon.stop()


def until(holds: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Waits for a condition; if it never comes, the test says what it waited for."""
    assert came(holds, seconds, 0.05), f"after {seconds:.0f} s it does not hold that {what}"


@contextmanager
def product(folder: Path, servers: dict[str, PostgresServer]) -> Iterator[Running]:
    """Configuration, databases and filled tables."""
    with ExitStack() as stack:
        stack.enter_context(quiet_logs())
        databases = {name: stack.enter_context(new_database(server)) for name, server in servers.items()}
        running = Running(folder, databases)
        (folder / "bundles").mkdir()
        running.config.write_text(DAEMON.format(folder=folder, instance="none"))
        nodes = "".join(f"[nodes.{name}]\ndsn = '{database.dsn}'\n" for name, database in databases.items())
        (folder / "bundles" / "shop.toml").write_text(nodes + TABLES)
        for name, definition in DEFINITIONS.items():
            (folder / f"{name}.sql").write_text(definition)
            made = running.balancer("table", "create", "shop", name, "--definition", str(folder / f"{name}.sql"))
            assert made.code == 0, made.err
        for database in databases.values():
            _fill(database)
        yield running


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Keeps a daemon's log lines out of what commands print; only problems go to standard error."""
    with kept_logs():
        set_up_logs("error", "text", sys.__stderr__)
        yield


def _fill(database: Database) -> None:
    """Every row that this node's tablets take."""
    with database.connect() as connection:
        partitions = connection.execute(
            "SELECT inhparent::regclass::text, inhrelid::regclass::text,"
            " pg_get_partition_constraintdef(inhrelid) FROM pg_inherits"
            " WHERE inhparent IN ('orders'::regclass, 'events'::regclass)"
        ).fetchall()
        for root, _, constraint in partitions:
            connection.execute(
                f"INSERT INTO {root} SELECT id, 'row ' || id FROM generate_series(1::bigint, {ROWS}) AS id"
                f" WHERE {constraint}".encode()
            )
        connection.execute("ANALYZE")
