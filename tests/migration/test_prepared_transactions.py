"""Transactions that somebody has prepared and ends later: at every point of a migration, on source and target."""

import threading
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

from balancer.directory.model import Migration
from balancer.migration.begin import begin_move
from balancer.migration.progress import Observer
from tests.support.cluster import AMPLE, Cluster
from tests.support.directed import complaints
from tests.support.nemeses import EveryPoint
from tests.support.resharding import begin_merge, begin_split
from tests.support.sampling import crossed

pytestmark = pytest.mark.always

KEPT_SECONDS = 0.25
AT_ONCE = 5  # fewer than the servers' max_prepared_transactions
MOVED, STAYING = 2, 4
REFUSALS = (psycopg.errors.SerializationFailure, psycopg.errors.LockNotAvailable)


class Coordinator:
    """Prepares a transaction that increments a row, and ends it a moment later, as a transaction manager does."""

    def __init__(self, cluster: Cluster, end: str) -> None:
        self._cluster = cluster
        self._end = end
        self._enders: list[threading.Thread] = []
        self.prepared: list[str] = []
        self.refused: list[str] = []
        self.acknowledged: dict[int, int] = {}
        asked = {tablet: cluster.query("a", f"SELECT id FROM orders_t{tablet}") for tablet in (MOVED, STAYING)}
        self._keys = {tablet: [int(str(row[0])) for row in rows] for tablet, rows in asked.items()}

    def at(self, point: str) -> None:
        """Twice: on the tablet that is migrated, on each node, and on one that stays where it is."""
        for node in sorted(self._cluster.dsns):
            for tablet in (MOVED, STAYING):
                self._prepare(f"{node} {tablet} {point}", node, tablet)

    def finish(self) -> None:
        for ender in self._enders:
            ender.join(30)
            assert not ender.is_alive()

    def _prepare(self, name: str, node: str, tablet: int) -> None:
        for ender in self._enders[:-AT_ONCE]:
            ender.join(30)
        with self._cluster.connect(node) as connection:
            connection.execute("SET lock_timeout TO '200ms'")
            connection.execute("BEGIN")
            try:
                changed = self._change(connection, tablet, len(self._enders))
            except REFUSALS:
                self.refused.append(name)
                return
            connection.execute(f"PREPARE TRANSACTION '{name}'".encode())
        self.prepared.append(name)
        ender = threading.Timer(KEPT_SECONDS, self._finish, (name, node, changed))
        ender.start()
        self._enders.append(ender)

    def _change(self, connection: psycopg.Connection[tuple[object, ...]], tablet: int, number: int) -> list[int]:
        """Another row each time, so that none waits for the one before."""
        keys = self._keys[tablet]
        given = {"key": keys[number % len(keys)]}
        done = connection.execute("UPDATE public.orders SET n = n + 1 WHERE id = %(key)s RETURNING id", given)
        return [int(str(row[0])) for row in done.fetchall()]

    def _finish(self, name: str, node: str, changed: list[int]) -> None:
        with self._cluster.connect(node) as connection:
            connection.execute(f"{self._end} PREPARED '{name}'".encode())
        for key in changed if self._end == "COMMIT" else ():
            self.acknowledged[key] = self.acknowledged.get(key, 0) + 1


def move(cluster: Cluster, observer: Observer) -> Migration:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    return cluster.runner(directory, leadership, observer).run(begin_move(directory, leadership, MOVED, "b").id)


def split(cluster: Cluster, observer: Observer) -> Migration:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    return cluster.runner(directory, leadership, observer).run(begin_split(directory, leadership, MOVED).id)


def merge(cluster: Cluster, observer: Observer) -> Migration:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    begun = begin_merge(directory, leadership, [MOVED, STAYING])
    return cluster.runner(directory, leadership, observer).run(begun.id)


@pytest.mark.parametrize(
    ("operation", "end"), crossed([move, split, merge], ["COMMIT", "ROLLBACK"], 1, "prepared at every point")
)
def test_a_prepared_transaction_at_every_point_is_kept_or_refused(
    cluster: Cluster, operation: Callable[[Cluster, Observer], Migration], end: str
) -> None:
    cluster.settings = replace(cluster.settings, **AMPLE)
    coordinator = Coordinator(cluster, end)
    points = EveryPoint(coordinator.at)
    done = operation(cluster, points)
    coordinator.finish()
    assert (done.state, done.error) == ("done", "")
    assert len(coordinator.prepared) > len(points.points) / 2, coordinator.refused
    counts = {key: n for content in cluster.rows().values() for key, n in content.items() if n}
    assert counts == coordinator.acknowledged
    assert len({key for content in cluster.rows().values() for key in content}) == 1000
    assert complaints(cluster) == []
