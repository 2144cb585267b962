"""DDL, triggers switched off, old snapshots and writers by a partition's name, each at the worst moment."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from balancer.directory.model import Migration
from balancer.embedded.postgres import PostgresServer
from balancer.policies.keyspace.keys import KeyType, encode_key
from tests.support import nemeses
from tests.support.cluster import (
    AMPLE,
    Cluster,
    build,
    hash_table,
    hash_tablets,
    insert_rows,
    range_table,
    range_tablets,
)
from tests.support.crash_matrix import Victims
from tests.support.directed import LEAF, Beside, complaints, move, split, tally
from tests.support.nemeses import ApplyWorker, EveryPoint
from tests.support.resharding import begin_split
from tests.support.sampling import sampled
from tests.support.servers import new_database
from tests.support.spy import Spy

pytestmark = pytest.mark.always

MOVE_POINTS = (
    *("left:copying", "left:catching_up", "entered:fencing", "left:fencing", "left:draining", "left:verifying"),
    *("left:sealing", "entered:committing", "left:committing", "left:opening"),
)
SPLIT_POINTS = (
    *("left:copying", "left:catching_up", "left:mirroring", "left:verifying"),
    *("entered:swapping", "left:swapping"),
)


@pytest.fixture
def single(tmp_path: Path, any_postgres: PostgresServer, database: Any) -> Iterator[Cluster]:
    """One node, each version in turn."""
    tablets = hash_tablets(4, ["a"])
    made = build(tmp_path, {"a": database(any_postgres).dsn}, hash_table(), tablets)
    insert_rows(made, tablets, range(1000))
    yield made
    made.close()


def on_roots(cluster: Cluster, statement: str) -> bool:
    """DDL on every node. If the first has to wait for a lock, it is given up and nothing has happened."""
    for number, node in enumerate(cluster.dsns):
        with cluster.connect(node) as connection:
            connection.execute(f"SET lock_timeout TO '{'500ms' if number == 0 else '20s'}'".encode())
            try:
                connection.execute(statement.encode())
            except psycopg.errors.LockNotAvailable:
                assert number == 0
                return False
    return True


def ended(cluster: Cluster, migration: Beside) -> Migration:
    """Its record; one that does not end is a fault."""
    return migration.result(40.0)


@pytest.mark.parametrize("point", sampled(MOVE_POINTS, 3, "values"))
def test_values_that_ddl_rewrites_during_a_move_are_the_new_ones(cluster: Cluster, point: str) -> None:
    cluster.settings = replace(cluster.settings, **AMPLE)
    rewrite = "ALTER TABLE orders ALTER COLUMN n TYPE bigint USING n + 1000"
    changed: list[bool] = []
    migration = Beside(lambda: move(cluster, {point: lambda: changed.append(on_roots(cluster, rewrite))}))
    assert ended(cluster, migration).state in ("done", "failed")
    rows = cluster.rows()
    assert sum(map(len, rows.values())) == 1000
    assert {n for content in rows.values() for n in content.values()} == {1000 if changed[0] else 0}
    assert complaints(cluster) == []


@pytest.mark.parametrize("point", sampled(MOVE_POINTS, 3, "column"))
def test_a_column_that_is_added_during_a_move_wedges_nothing(cluster: Cluster, point: str) -> None:
    cluster.settings = replace(cluster.settings, **AMPLE)
    add = "ALTER TABLE orders ADD COLUMN late text DEFAULT 'x'"
    changed: list[bool] = []
    migration = Beside(lambda: move(cluster, {point: lambda: changed.append(on_roots(cluster, add))}))
    assert ended(cluster, migration).state in ("done", "failed")
    if not changed[0]:
        return
    late = [row for node in cluster.dsns for row in cluster.query(node, "SELECT late FROM orders")]
    assert late == [("x",)] * 1000
    assert complaints(cluster) == []


@pytest.mark.parametrize("point", sampled(SPLIT_POINTS, 2, "split"))
def test_values_that_ddl_rewrites_during_a_split_are_the_new_ones(single: Cluster, point: str) -> None:
    single.settings = replace(single.settings, **AMPLE)
    rewrite = "ALTER TABLE orders ALTER COLUMN n TYPE bigint USING n + 1000"
    migration = Beside(lambda: split(single, {point: lambda: on_roots(single, rewrite)}))
    assert ended(single, migration).state in ("done", "failed")
    assert sorted(single.rows()["a"].items()) == [(number, 1000) for number in range(1000)]


# Nothing can be asked of a fence that is taken down after its seal.
@pytest.mark.parametrize("point", sampled(MOVE_POINTS[:6], 2, "move without triggers"))
def test_triggers_switched_off_and_on_lose_no_write_of_a_move(cluster: Cluster, point: str) -> None:
    cluster.settings = replace(cluster.settings, **AMPLE)
    row = tally(cluster)
    with ApplyWorker(cluster.dsns["b"]) as worker:

        def at(now: str) -> None:
            if now == point and not row.kept:
                worker.stop()
                write_without_triggers(cluster, row.write)
            elif now in ("entered:catching_up", "entered:retiring", "entered:cancelling", "entered:fencing"):
                worker.resume()

        done = move(cluster, EveryPoint(at))
    assert done.state in ("done", "failed")
    assert row.kept == 1
    assert row.faults() == []


@pytest.mark.parametrize("point", sampled(SPLIT_POINTS[:-1], 2, "split without triggers"))
def test_triggers_switched_off_and_on_lose_no_write_of_a_split(single: Cluster, point: str) -> None:
    row = tally(single)
    done = split(single, {point: lambda: write_without_triggers(single, row.write)})
    assert done.state in ("done", "failed")
    assert row.kept == 1
    assert row.faults() == []


def write_without_triggers(cluster: Cluster, write: Any) -> None:
    """What some import scripts do around their work."""
    with cluster.connect("a") as connection:
        connection.execute(f"ALTER TABLE {LEAF} DISABLE TRIGGER ALL".encode())
        write("a")
        connection.execute(f"ALTER TABLE {LEAF} ENABLE TRIGGER ALL".encode())


def test_a_delete_by_the_partitions_name_that_commits_during_the_swap_is_kept(
    tmp_path: Path, any_postgres: PostgresServer, database: Any
) -> None:
    """In a range table it takes no lock on the root. What commits before the DETACH must not be back."""
    tablets = range_tablets([300, 600], ["a"])
    single = build(tmp_path, {"a": database(any_postgres).dsn}, range_table(), tablets)
    insert_rows(single, tablets, range(1000))
    single.settings = replace(single.settings, **{**AMPLE, "lock_timeout": 10.0})
    directory = single.directory()
    leadership = single.become_leader(directory)
    begun = begin_split(directory, leadership, 2, [encode_key((KeyType.BIGINT,), (400,))])
    with psycopg.connect(single.dsns["a"]) as writer, single.connect("a") as observer:
        deleted: list[int] = []

        def delete() -> None:
            deleted.append(writer.execute(f"DELETE FROM {LEAF} WHERE id = 333".encode()).rowcount)

        runner = single.runner(directory, leadership, Spy({"entered:swapping": delete}))
        migration = Beside(lambda: runner.run(begun.id))
        nemeses.until(lambda: migration.over or nemeses.waits_for_lock(observer, LEAF), "the swap's wait for the leaf")
        writer.commit()
        assert migration.result().state == "done"
    assert deleted == [1]
    assert set(range(1000)) - {333} == set(single.rows()["a"])
    single.close()


def test_a_reader_with_one_snapshot_finds_every_row_though_a_tablet_was_split(single: Cluster) -> None:
    with nemeses.long_snapshots(single.dsns) as readers:
        migration = Beside(lambda: split(single, {}))
        nemeses.came(lambda: migration.over, 5.0)
        found = readers["a"].execute("SELECT count(*) FROM orders").fetchone()
        readers["a"].execute("COMMIT")
    assert found == (1000,)
    assert migration.result().state == "done"


def test_a_reader_with_one_snapshot_finds_every_row_though_a_tablet_has_moved(cluster: Cluster) -> None:
    with nemeses.long_snapshots({"a": cluster.dsns["a"]}) as readers:
        migration = Beside(lambda: move(cluster, {}))
        nemeses.came(lambda: migration.over, 5.0)
        found = readers["a"].execute("SELECT count(*) FROM orders").fetchone()
        readers["a"].execute("COMMIT")
    assert found == (1000,)
    assert migration.result().state == "done"


def test_a_target_that_stalls_past_the_deadline_is_no_difference(cluster: Cluster) -> None:
    """The fence ends by itself, a writer goes on, and the comparison finds another row than it had read."""
    cluster.settings = replace(cluster.settings, write_pause_budget=5.0, fence_deadline=0.4, retry_back_off=0.05)
    row = tally(cluster)

    def stall() -> None:
        with nemeses.stalled(cluster.dsns["b"], "balancer.marker"):
            held.set()

            def let_through() -> bool:
                row.write("a")
                return row.kept > 1

            nemeses.until(let_through, "a write after the deadline")

    held = threading.Event()
    stalling = threading.Thread(target=stall)

    def at(point: str) -> None:
        if point == "entered:fencing" and not row.kept:
            row.write("a")
            stalling.start()
            held.wait(10)

    done = move(cluster, EveryPoint(at))
    stalling.join()
    assert (done.state, done.error) == ("done", "")
    assert row.kept > 1
    assert row.faults() == []


@pytest.mark.parametrize("node", ["a", "b"], ids=["source", "target"])
def test_a_node_that_went_back_in_time_is_named(tmp_path: Path, killable: Victims, node: str) -> None:
    """After a move its copy is of before the move: the doctor must not be content."""
    with new_database(killable.nodes["a"]) as a, new_database(killable.nodes["b"]) as b:
        tablets = hash_tablets(4, ["a"])
        made = build(tmp_path, {"a": a.dsn, "b": b.dsn}, hash_table(), tablets)
        insert_rows(made, tablets, range(100))
        old = nemeses.OldCopy(killable.nodes[node])
        old.take()
        assert move(made, {}).state == "done"
        assert complaints(made) == []
        old.rewind()
        found = complaints(made)
        made.close()
    assert found
