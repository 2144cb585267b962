"""The same for splits, and for whoever holds a tablet: each step tried where leaving it out would lose something."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from balancer.directory.model import MigrationMode
from balancer.embedded.postgres import PostgresServer
from balancer.settings import MigrationSettings
from tests.support import nemeses
from tests.support.cluster import AMPLE, Cluster, build, hash_table, hash_tablets, insert_rows
from tests.support.directed import LEAF, TABLET, Beside, Tally, complaints, move, split, tally
from tests.support.nemeses import EveryPoint

pytestmark = pytest.mark.always

STANDING = 4.0
"""Seconds after which a migration that waits for a snapshot is believed to do so: there is no lock to be seen, and
without that wait it would be over in a fraction of the time."""


@pytest.fixture
def single(tmp_path: Path, any_postgres: PostgresServer, database: Any) -> Iterator[Cluster]:
    """One node, each version in turn."""
    tablets = hash_tablets(4, ["a"])
    made = build(tmp_path, {"a": database(any_postgres).dsn}, hash_table(), tablets)
    insert_rows(made, tablets, range(1000))
    yield made
    made.close()


@pytest.mark.parametrize("mode", list(MigrationMode))
def test_at_every_point_a_write_is_refused_or_kept(single: Cluster, mode: MigrationMode) -> None:
    row = tally(single)
    deleted: list[int] = []

    def meddle(_: str) -> None:
        row.write_everywhere()
        with single.connect("a") as connection:
            victim = f"(SELECT max(id) FROM orders WHERE tableoid = '{LEAF}'::regclass)"
            try:
                connection.execute("SET lock_timeout TO '300ms'")
                found = connection.execute(f"DELETE FROM orders WHERE id = {victim} RETURNING id".encode()).fetchall()
            except psycopg.Error:  # refused, or the partition is gone
                return
            deleted.extend(int(str(number)) for (number,) in found)

    points = EveryPoint(meddle)
    done = split(single, points, mode)
    assert (done.state, done.error) == ("done", "")
    assert row.faults() == []
    assert row.kept >= 3
    assert deleted
    assert set(range(1000)) - set(deleted) == set(single.rows()["a"])
    assert complaints(single) == []


@pytest.mark.parametrize("where", ["left:copying", "entered:verifying"])
def test_a_copy_that_was_tampered_with_is_not_swapped_in(single: Cluster, where: str) -> None:
    def spoil() -> None:
        (leaf,) = single.query("a", "SELECT min(relname) FROM pg_class WHERE relname ~ '^orders_t1...$'")[0]
        with single.connect("a") as connection:
            connection.execute("SET session_replication_role = replica")
            assert connection.execute(f"UPDATE {leaf} SET n = 66".encode()).rowcount > 0

    done = split(single, {where: spoil})
    assert done.state == "failed"
    assert set(single.rows()["a"].values()) == {0}


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_a_swap_does_not_pass_a_transaction_that_holds_the_tablet(single: Cluster, isolation: str) -> None:
    """It has locked no table yet. In one snapshot it would find the new partitions empty."""
    single.settings = patient(single)
    row = tally(single)
    with single.connect("a") as holder, single.connect("a") as observer:
        holder.execute(f"BEGIN ISOLATION LEVEL {isolation}; CALL balancer.hold({TABLET}, 1, false)".encode())
        migration = Beside(lambda: split(single, {}))
        nemeses.came(lambda: migration.over or nemeses.waits_for_lock(observer), STANDING)
        found = holder.execute(f"SELECT n FROM orders WHERE id = {row.key}".encode()).fetchall()
        holder.execute("COMMIT")
        assert found == [(0,)]
        assert migration.result().state == "done"


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_a_fence_does_not_pass_a_writer_that_holds_the_tablet(cluster: Cluster, isolation: str) -> None:
    cluster.settings = patient(cluster)
    row = tally(cluster)
    with cluster.connect("a") as holder, cluster.connect("a") as observer:
        holder.execute(f"BEGIN ISOLATION LEVEL {isolation}; CALL balancer.hold({TABLET}, 1, true)".encode())
        migration = Beside(lambda: move(cluster, {}))
        nemeses.came(lambda: migration.over or nemeses.waits_for_lock(observer), 15.0)
        row.kept += holder.execute(f"UPDATE orders SET n = n + 1 WHERE id = {row.key}".encode()).rowcount
        holder.execute("COMMIT")
        assert row.kept == 1
        assert migration.result().state == "done"
    assert row.faults() == []


def test_a_reader_that_holds_the_tablet_finds_its_rows_though_it_has_moved(cluster: Cluster) -> None:
    cluster.settings = patient(cluster)
    row = tally(cluster)
    with cluster.connect("a") as holder, cluster.connect("a") as observer:
        holder.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ; CALL balancer.hold({TABLET}, 1, false)".encode())
        migration = Beside(lambda: move(cluster, {}))
        nemeses.came(lambda: migration.over or nemeses.waits_for_lock(observer), STANDING)
        found = holder.execute(f"SELECT n FROM orders WHERE id = {row.key}".encode()).fetchall()
        holder.execute("COMMIT")
        assert found == [(0,)]
        assert migration.result().state == "done"
    assert Tally(cluster, row.key).faults() == []


def patient(cluster: Cluster) -> MigrationSettings:
    """Settings with which a mover waits for its locks long enough to be seen waiting."""
    return replace(cluster.settings, **{**AMPLE, "lock_timeout": 10.0})
