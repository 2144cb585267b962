"""What troubles an instance while it soaks: one thing after another, chosen by a seed that is printed.

The instance itself is left alive, if not always awake, so that its figures at rest can be compared; its servers are
not. No node is taken back to an older copy here: that loses acknowledged writes by definition, and how it is handled is
tested separately (`test_rewound`).
"""

import os
import shutil
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random

import psycopg

from balancer.embedded.postgres import PostgresServer
from balancer.embedded.zookeeper import ZooKeeperServer
from tests.support.nemeses import ApplyWorker, clock_ahead, dump, long_snapshots

PAUSE = (2.0, 6.0)
DOWN = 0.5
STALLED = 1.5
DDL_PATIENCE = 60.0


class Trouble(threading.Thread):
    """Makes trouble until told to stop. `faults` has what it finds wrong by itself."""

    def __init__(self, server: PostgresServer, keeper: ZooKeeperServer, dsns: Mapping[str, str], seed: int) -> None:
        super().__init__(name="trouble", daemon=True)
        self.faults: list[str] = []
        self.made: Counter[str] = Counter()
        self.calm = threading.Event()
        self._halt = threading.Event()
        self._idle = threading.Event()
        self._server = server
        self._keeper = keeper
        self._dsns = dsns
        self._chance = Random(seed)
        self.instance = 0  # its process, once there is one

    def run(self) -> None:
        kinds: tuple[Callable[[], None], ...] = (
            *(self.apply_worker_stopped, self.server_killed, self.directory_killed, self.two_victims_at_once),
            *(self.wal_written_late, self.snapshots_kept, self.dump_running, self.slow_target, self.triggers_switched),
            *(self.column_comes_and_goes, self.disk_full, self.clock_jumps, self.instance_stands_still),
        )
        while not self._halt.wait(self._chance.uniform(*PAUSE)):
            if self.calm.is_set():
                self._idle.set()
                continue
            self._idle.clear()
            kind = self._chance.choice(kinds)
            self.made[kind.__name__] += 1
            try:
                kind()
            except psycopg.OperationalError:
                continue  # it hit the victim of the previous trouble
            except Exception:
                self.faults.append(f"{kind.__name__}: {traceback.format_exc()}")

    def rest(self) -> None:
        """Returns when nothing is being broken any more."""
        self.calm.set()
        self._idle.wait(60)

    def go_on(self) -> None:
        self._idle.clear()
        self.calm.clear()

    def stop(self) -> None:
        self._halt.set()
        self.join(60)

    def apply_worker_stopped(self) -> None:
        with ApplyWorker(self._dsns[self._chance.choice(sorted(self._dsns))]) as worker:
            try:
                worker.stop()
            except AssertionError:
                return  # no move is streaming right now
            self._halt.wait(STALLED)

    def server_killed(self) -> None:
        self._server.kill()
        self._halt.wait(DOWN)
        self._server.start()

    def directory_killed(self) -> None:
        self._keeper.kill()
        self._halt.wait(DOWN)
        self._keeper.start()

    def two_victims_at_once(self) -> None:
        self._keeper.kill()
        self.server_killed()
        self._keeper.start()

    def wal_written_late(self) -> None:
        """The WAL of an apply worker is not on disk when the server is killed."""
        with psycopg.connect(self._server.dsn(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
            connection.execute("SELECT pg_reload_conf()")
        self._halt.wait(STALLED)
        self.server_killed()
        with psycopg.connect(self._server.dsn(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM RESET wal_writer_delay")
            connection.execute("SELECT pg_reload_conf()")

    def snapshots_kept(self) -> None:
        """Readers with one snapshot miss no row at its end that they had at its beginning.

        They may see a tablet arrive meanwhile: plain SQL asks a node that does not own it yet.
        """
        with long_snapshots(self._dsns) as readers:
            before = {node: _count(reader) for node, reader in readers.items()}
            self._halt.wait(2 * STALLED)
            after = {node: _count(reader) for node, reader in readers.items()}
        if any(after[node] < count for node, count in before.items()):
            self.faults.append(f"a snapshot had {before} rows, and later {after}")

    def dump_running(self) -> None:
        node = self._chance.choice(sorted(self._dsns))
        dump(self._server, self._dsns[node], "public.orders")

    def slow_target(self) -> None:
        """Somebody holds a lock on a root for a while."""
        with psycopg.connect(self._dsns[self._chance.choice(sorted(self._dsns))]) as connection:
            connection.execute("LOCK TABLE ONLY orders IN SHARE UPDATE EXCLUSIVE MODE")
            self._halt.wait(STALLED)

    def triggers_switched(self) -> None:
        """On a tablet of the root, as import scripts do; nothing is written meanwhile."""
        with psycopg.connect(self._dsns[self._chance.choice(sorted(self._dsns))], autocommit=True) as connection:
            connection.execute("SET lock_timeout TO '1s'")
            found = connection.execute(
                "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'orders'::regclass LIMIT 1"
            ).fetchone()
            if found is None:
                return
            try:
                connection.execute(f"ALTER TABLE {found[0]} DISABLE TRIGGER USER".encode())
                connection.execute(f"ALTER TABLE {found[0]} ENABLE TRIGGER USER".encode())
            except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
                return  # it is being moved away: there is nothing to switch

    def clock_jumps(self) -> None:
        """Fences end before their time, and writers come through; then the clock is set back."""
        node = self._chance.choice(sorted(self._dsns))
        with psycopg.connect(self._dsns[node], autocommit=True) as connection, clock_ahead(connection):
            self._halt.wait(STALLED)

    def instance_stands_still(self) -> None:
        """For longer than a fence's deadline, and less than its leadership lasts."""
        os.kill(self.instance, signal.SIGSTOP)
        self._halt.wait(2 * STALLED)
        os.kill(self.instance, signal.SIGCONT)

    def column_comes_and_goes(self) -> None:
        """As a deployment does it: node by node, so that the roots differ for a while, and back again."""
        for change in ("ADD COLUMN IF NOT EXISTS soaked text DEFAULT 'x'", "DROP COLUMN IF EXISTS soaked"):
            for node in self._chance.sample(sorted(self._dsns), len(self._dsns)):
                self._alter(node, change)
                self._halt.wait(0.3)

    def _alter(self, node: str, change: str) -> None:
        deadline = time.monotonic() + DDL_PATIENCE
        with psycopg.connect(self._dsns[node], autocommit=True) as connection:
            connection.execute("SET lock_timeout TO '1s'")
            while time.monotonic() < deadline:
                with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                    connection.execute(f"ALTER TABLE orders {change}".encode())
                    return
                time.sleep(0.1)
        self.faults.append(f"{change} on {node} got no lock for {DDL_PATIENCE:.0f} s")

    def disk_full(self) -> None:
        """For a moment not a byte is left for the server, not even for its WAL; it may have to be restarted."""
        ballast = self._server.folder / "ballast"
        try:
            with ballast.open("wb") as file, suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(ballast.parent).free)
            self._halt.wait(STALLED)
        finally:
            ballast.unlink(missing_ok=True)
        self._halt.wait(DOWN)
        self._server.start()


def _count(reader: psycopg.Connection[tuple[object, ...]]) -> int:
    row = reader.execute("SELECT count(*) FROM orders").fetchone()
    return int(str(row[0])) if row else 0
