"""Servers for the tests: started once per run, small, and gone when the run ends, even after SIGKILL."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4
from weakref import WeakKeyDictionary, finalize

import psycopg

from balancer.embedded.postgres import PostgresServer, embedded_binaries, system_binaries
from balancer.embedded.reaper import Keeper

# A SIGKILL leaves the page cache alone, so nothing that the tests do can notice the difference.
MEMORY = Path("/dev/shm")
ROOM = 8 << 30
FAST = {
    "fsync": "off",
    # PostgreSQL's default. Each database is visited once in this time, by a process that costs more than what it finds
    # to do in a short-lived database: with four of them, 10 s cost as much again as an idle server does.
    "autovacuum_naptime": "1min",
    "max_locks_per_transaction": 256,  # the server writes its table of locks when it starts: 50 ms of a core for 1024
    "shared_preload_libraries": "plpgsql",  # otherwise every session that calls a function loads it: half a millisecond
    "wal_retrieve_retry_interval": "200ms",  # before 16 a server starts one subscription's worker per interval: 5 s
}


@dataclass(frozen=True)
class Database:
    """A database of its own for one test."""

    server: PostgresServer
    name: str

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.name)

    def connect(self, autocommit: bool = True) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.dsn, autocommit=autocommit)


def nothing(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """For a database as an application finds it."""


@contextmanager
def new_database(
    server: PostgresServer,
    template: str = "",
    fill: Callable[[psycopg.Connection[tuple[object, ...]]], object] = nothing,
) -> Iterator[Database]:
    """A fresh database, dropped afterwards along with any remaining connections. Its files are copied, which costs a
    checkpoint instead of WAL: a killed server recovers sooner.

    `fill` does once per server what many tests begin with. And somebody has been connected: the server has cached what
    the catalog's own tables look like, which it would otherwise find out again for each database.
    """
    name = f"test_{uuid4().hex[:12]}"
    template = template or f"test_{fill.__name__}"
    statement = f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy'
    try:
        _administer(server, statement)
    except psycopg.errors.InvalidCatalogName:
        _make_template(server, template, fill)
        _administer(server, statement)
    try:
        yield Database(server, name)
    finally:
        if server.running():
            _drop(server, name)


def _make_template(
    server: PostgresServer, name: str, fill: Callable[[psycopg.Connection[tuple[object, ...]]], object]
) -> None:
    """It gets its name only when it is filled: others may ask for it at the same time."""
    made = f"{name}_{uuid4().hex[:12]}"
    _administer(server, f'CREATE DATABASE "{made}" TEMPLATE template0 STRATEGY file_copy')
    with psycopg.connect(server.dsn(made), autocommit=True) as connection:
        fill(connection)
    _administer(server, f'ALTER DATABASE "{made}" ALLOW_CONNECTIONS false')
    with suppress(psycopg.errors.DuplicateDatabase):
        _administer(server, f'ALTER DATABASE "{made}" RENAME TO "{name}"')


def unsubscribe(dsn: str) -> None:
    """Drops subscriptions of migrations that a test left half-way; their slots go with the database they are on."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for (name,) in connection.execute(_SUBSCRIPTIONS, (connection.info.dbname,)).fetchall():
            for rest in ("DISABLE", "SET (slot_name = NONE)"):
                connection.execute(f'ALTER SUBSCRIPTION "{name}" {rest}'.encode())
            connection.execute(f'DROP SUBSCRIPTION "{name}"'.encode())


_SUBSCRIPTIONS = "SELECT subname FROM pg_subscription s JOIN pg_database d ON d.oid = subdbid WHERE datname = %s"


def _drop(server: PostgresServer, name: str) -> None:
    """A database with a slot or a subscription cannot be dropped: a failed test may have left either."""
    if _administer(server, _SUBSCRIPTIONS, name):
        unsubscribe(server.dsn(name))
    _administer(
        server, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = %s AND active", name
    )
    _administer(
        server, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", name
    )
    _administer(server, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _administer(server: PostgresServer, statement: str, *values: str) -> list[tuple[object, ...]]:
    """Runs a statement on a kept connection: thousands of databases are made, and a new server process costs more than
    most of what it is asked to do."""
    connection = _kept_connection(server)
    try:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []
    except psycopg.Error:
        connection.close()
        raise


def _kept_connection(server: PostgresServer) -> psycopg.Connection[tuple[object, ...]]:
    kept = _kept_connections.get(server)
    if kept is not None:
        with suppress(psycopg.Error):  # of a server that a test has since killed
            kept.execute("")
            return kept
        kept.close()
    fresh = psycopg.connect(server.dsn(), autocommit=True)
    _kept_connections[server] = fresh
    finalize(server, fresh.close)
    return fresh


_kept_connections: WeakKeyDictionary[PostgresServer, psycopg.Connection[tuple[object, ...]]] = WeakKeyDictionary()


def postgres(folder: Path, version: int, settings: Mapping[str, object] | None = None) -> PostgresServer:
    """PostgreSQL 18 and 16 are embedded; 15 is the distribution's."""
    binaries = system_binaries(15) if version == 15 else embedded_binaries(version)
    return PostgresServer(folder, binaries, {**FAST, **(settings or {})})


def fast_place() -> Path | None:
    """Where servers' data is created fastest: in memory, if there is room; None: where temporary files are.

    A database has 300 files, and making them costs a disk ten times as much.
    """
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM else None


def new_folder(place: Path | None) -> Path:
    """A temporary folder that the servers' account can enter."""
    folder = Path(tempfile.mkdtemp(prefix="balancer-tests-", dir=place))
    folder.chmod(0o755)
    return folder


@contextmanager
def kept(folder: Path) -> Iterator[Path]:
    """A folder whose servers end with this process."""
    with Keeper(folder):
        yield folder
