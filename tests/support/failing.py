"""Deliberate passing failures: sessions of a migration that end in the middle of something, locks in its way."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from balancer.directory.model import Migration
from balancer.migration.progress import Progress
from tests.support.cluster import Cluster
from tests.support.spy import Spy

_OURS = "application_name LIKE 'tablet-balancer migration %' AND datname = current_database()"


class Listener(Spy):
    """A spy that also remembers what the migration waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[str] = []

    def progressed(self, migration: Migration, progress: Progress) -> None:
        if progress.waiting_for:
            self.waited.append(progress.waiting_for)


class Obstacle:
    """A lock that a migration's session must wait for. `lose` then ends all of its sessions on the node."""

    def __init__(self, cluster: Cluster, node: str, table: str, mode: str = "ACCESS EXCLUSIVE") -> None:
        self._cluster, self._node = cluster, node
        self._statement = f"LOCK TABLE {table} IN {mode} MODE"
        self._holder: psycopg.Connection[tuple[object, ...]] | None = None
        self._thread: threading.Thread | None = None

    def lose(self) -> None:
        """Takes the lock; as soon as somebody waits for it, the sessions end as if a server restarted."""
        self.hold()
        self._thread = threading.Thread(target=self._end_sessions)
        self._thread.start()

    def hold_for(self, seconds: float) -> None:
        """Takes the lock for this long."""
        self.hold()
        self._thread = threading.Timer(seconds, self.release)
        self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join()
        if self._holder is not None:
            self._holder.close()

    def hold(self) -> None:
        """Takes the lock until it is released."""
        self.close()
        self._holder = psycopg.connect(self._cluster.dsns[self._node])
        self._holder.execute(self._statement)

    def release(self) -> None:
        """Releases it."""
        assert self._holder is not None
        self._holder.rollback()

    def _end_sessions(self) -> None:
        until = time.monotonic() + 10.0
        with self._cluster.connect(self._node) as connection:
            while time.monotonic() < until:
                waiting = f"SELECT 1 FROM pg_stat_activity WHERE {_OURS} AND wait_event_type = 'Lock'"
                if connection.execute(waiting).fetchone():
                    break
                time.sleep(0.01)
        end_sessions(self._cluster.dsns[self._node])
        self.release()


def end_sessions(dsn: str) -> None:
    """Ends every session of a migration in this database, as a restarting server does."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_OURS}".encode())


@contextmanager
def obstacle(cluster: Cluster, node: str, table: str, mode: str = "ACCESS EXCLUSIVE") -> Iterator[Obstacle]:
    """An obstacle that is gone afterwards."""
    made = Obstacle(cluster, node, table, mode)
    try:
        yield made
    finally:
        made.close()
