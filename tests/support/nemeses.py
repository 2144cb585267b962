"""What goes wrong on purpose, apart from being killed: each is a block, or a call that may be made at a named point.

Used by the directed tests, the crash matrix and `make soak`. All of them act on real servers.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg

from balancer.directory.contract import Leadership
from balancer.directory.model import Migration
from balancer.embedded.postgres import PostgresServer
from balancer.migration.machine import State
from balancer.migration.progress import Observer
from tests.support import waiting
from tests.support.crash_daemon import Blind

PATIENCE = 30.0
Connection = psycopg.Connection[tuple[object, ...]]


def until(happened: Callable[[], object], words: str, seconds: float = PATIENCE) -> None:
    """Waits for a condition; fails by name."""
    assert waiting.surely(happened, seconds, 0.005), f"{words} did not happen within {waiting.SLOWER * seconds:.0f} s"


def came(happened: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Waits for a condition that may never come true; whether it did."""
    return waiting.came(happened, seconds, 0.005)


class ApplyWorker:
    """The processes that apply a node's subscriptions: stopped, nothing arrives there any more."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._stopped: set[int] = set()

    def stop(self) -> None:
        """SIGSTOP. There must be one, as long as the stream has not ended."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            asked = "SELECT pid FROM pg_stat_subscription s JOIN pg_subscription p ON p.oid = s.subid"
            asked += " WHERE pid IS NOT NULL AND subdbid = (SELECT oid FROM pg_database WHERE datname = %s)"
            found = [int(str(row[0])) for row in connection.execute(asked, (connection.info.dbname,)).fetchall()]
            ended = connection.execute("SELECT FROM pg_subscription WHERE NOT subenabled").fetchone() is not None
        assert found or ended, "no subscription is being applied"
        for pid in found:
            os.kill(pid, signal.SIGSTOP)
            self._stopped.add(pid)

    def resume(self) -> None:
        """SIGCONT. Idempotent."""
        for pid in self._stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._stopped = set()

    def __enter__(self) -> "ApplyWorker":
        return self

    def __exit__(self, *error: object) -> None:
        self.resume()


class EveryPoint(Observer):
    """Does something at the beginning and the end of every state; `work` is told the point."""

    def __init__(self, work: Callable[[str], object], only: Sequence[str] = ()) -> None:
        self._work = work
        self._only = only
        self.points: list[str] = []

    def entered(self, migration: Migration, state: State) -> None:
        self._at(f"entered:{state}")

    def left(self, migration: Migration, state: State) -> None:
        self._at(f"left:{state}")

    def _at(self, point: str) -> None:
        self.points.append(point)
        if not self._only or point in self._only:
            self._work(point)


def lift_and_put_back(connection: Connection, leaf: str, write: Callable[[], object]) -> None:
    """A node's clock jumps past the fence's deadline, somebody writes, and the clock jumps back.

    Only the clock of the fence's function: a server has none but the machine's.
    """
    asked = "SELECT FROM pg_trigger WHERE tgrelid = %s::regclass AND tgname = '!balancer_fence'"
    assert connection.execute(asked, (leaf,)).fetchone() is not None, f"{leaf} has no fence"
    with clock_ahead(connection):
        write()


@contextmanager
def clock_ahead(connection: Connection) -> Iterator[None]:
    """The clock of the fence's function is an hour ahead for the length of a block: unsealed fences end."""
    row = connection.execute("SELECT pg_get_functiondef('balancer.refuse_write'::regproc)").fetchone()
    assert row is not None
    definition = str(row[0])
    later = definition.replace("clock_timestamp()", "(clock_timestamp() + interval '1 hour')")
    assert later != definition, "the fence goes by the clock"
    connection.execute(later.encode())
    try:
        yield
    finally:
        connection.execute(definition.encode())


class Sleeper:
    """A leader whose clock stood still: it has resigned, or lost its lease, without knowing it."""

    def __init__(self, real: Leadership) -> None:
        self._real = real
        self.leadership: Leadership = Blind(real)

    def fall_asleep(self) -> None:
        """From here on another may lead."""
        self._real.resign()


@contextmanager
def settings(server: PostgresServer, **values: str) -> Iterator[None]:
    """Settings of a server for the length of a block, such as a `wal_writer_delay` of ten seconds."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        for name, value in values.items():
            connection.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
        connection.execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            for name in values:
                connection.execute(f"ALTER SYSTEM RESET {name}".encode())
            connection.execute("SELECT pg_reload_conf()")


class OldCopy:
    """A node's data folder as it was: a failover to a lagging standby, or an old base backup."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._copy = server.folder / "old-copy"

    def take(self) -> None:
        """With the server stopped for a moment."""
        self._server.stop()
        subprocess.run(["cp", "-a", str(self._server.data), str(self._copy)], check=True)
        self._server.start()

    def rewind(self) -> None:
        """The node goes back in time."""
        self._server.kill()
        subprocess.run(["rm", "-rf", str(self._server.data)], check=True)
        self._copy.rename(self._server.data)
        (self._server.data / "postmaster.pid").unlink(missing_ok=True)
        self._server.start()


@contextmanager
def small_disk(folder: Path, megabytes: int, owner: int | None = None) -> Iterator[Path]:
    """A file system that fills up quickly; everybody may pass through it unless it has an owner."""
    folder.mkdir(parents=True)
    options = f"size={megabytes}m," + ("mode=755" if owner is None else f"uid={owner},mode=700")
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    subprocess.run([*as_root, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*as_root, "umount", "-l", str(folder)], check=True)


@contextmanager
def long_snapshots(dsns: Mapping[str, str]) -> Iterator[dict[str, Connection]]:
    """A REPEATABLE READ reader on each node that took its snapshot and has touched no table yet."""
    with ExitStack() as stack:
        readers = {node: stack.enter_context(psycopg.connect(dsn, autocommit=True)) for node, dsn in dsns.items()}
        for reader in readers.values():
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            reader.execute("SELECT 1")
        yield readers


def dump(server: PostgresServer, dsn: str, table: str) -> int:
    """How many rows pg_dump finds in a table."""
    command = [str(server.program("pg_dump")), "--data-only", f"--table={table}*", "--inserts", dsn]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return sum(line.startswith("INSERT INTO") for line in done.stdout.splitlines())


@contextmanager
def stalled(dsn: str, table: str) -> Iterator[None]:
    """A target that makes no progress: any writer to one of its tables waits."""
    with psycopg.connect(dsn) as connection:
        connection.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE".encode())
        yield


def waits_for_lock(observer: Connection, relation: str | None = None) -> bool:
    """Whether somebody waits for a lock: on this relation, or an advisory one."""
    where = "locktype = 'advisory'" if relation is None else "relation = to_regclass(%s)"
    given = () if relation is None else (relation,)
    row = observer.execute(
        f"SELECT count(*) FROM pg_locks WHERE NOT granted AND {where} AND database ="
        " (SELECT oid FROM pg_database WHERE datname = current_database())".encode(),
        given,
    ).fetchone()
    return row != (0,)
