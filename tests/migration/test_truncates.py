"""A TRUNCATE that was acknowledged, of the root or of a partition, at every point of a migration: no row comes back."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from balancer.directory.model import Migration, MigrationMode
from tests.support.cluster import AMPLE, Cluster
from tests.support.directed import LEAF, complaints, move, split
from tests.support.nemeses import EveryPoint
from tests.support.sampling import sampled

Run = Callable[..., Migration]
CASES = [
    (operation, mode, what) for operation in (move, split) for mode in MigrationMode for what in ("public.orders", LEAF)
]


class Truncating:
    """Empties the table at one point after another; one row is put there between two of them."""

    def __init__(self, cluster: Cluster, what: str) -> None:
        self._cluster = cluster
        self._what = what
        (self._key,) = cluster.query("a", f"SELECT min(id) FROM {LEAF}")[0]
        self.there: set[int] = set()
        self.answers: list[str] = []

    def at(self, point: str) -> None:
        for node in self._cluster.dsns:
            with self._cluster.connect(node) as connection:
                connection.execute("SET lock_timeout TO '300ms'")
                self._empty(connection, node)
                if self._done(connection, f"INSERT INTO public.orders (id) VALUES ({self._key})"):
                    self.there.add(int(str(self._key)))

    def _empty(self, connection: psycopg.Connection[tuple[Any, ...]], node: str) -> None:
        (found,) = self._cluster.query(node, f"SELECT to_regclass('{self._what}') IS NOT NULL")
        rows = self._cluster.query(node, f"SELECT id FROM {self._what}") if found[0] else []
        before = {int(str(key)) for (key,) in rows}
        if self._done(connection, f"TRUNCATE {self._what}"):
            self.there -= before

    def _done(self, connection: psycopg.Connection[tuple[Any, ...]], statement: str) -> bool:
        try:
            connection.execute(statement.encode())
        except psycopg.Error as error:
            self.answers.append(error.sqlstate or "?")
            return False
        self.answers.append("done")
        return True


@pytest.mark.parametrize(("operation", "mode", "what"), sampled(CASES, 3, "truncates"))
def test_a_truncate_that_was_acknowledged_leaves_nothing(
    cluster: Cluster, operation: Run, mode: MigrationMode, what: str
) -> None:
    cluster.settings = replace(cluster.settings, **AMPLE)
    work = Truncating(cluster, what)
    work.there = {key for content in cluster.rows().values() for key in content}
    done = operation(cluster, EveryPoint(work.at), mode)
    assert done.state in ("done", "failed", "cancelled")
    assert work.answers.count("done") > 3, work.answers
    assert {key for content in cluster.rows().values() for key in content} == work.there, work.answers
    assert complaints(cluster) == []
