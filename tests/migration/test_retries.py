"""A failure that passes is retried, with writers let on; one that lasts ends the migration and says how often."""

from dataclasses import replace

import pytest

from balancer.directory.model import Migration, MigrationMode
from balancer.features.repair.doctor import examine
from balancer.migration.begin import begin_move
from balancer.migration.journal import read_detail
from tests.support.cluster import AMPLE, Cluster
from tests.support.failing import Listener, obstacle
from tests.support.resharding import begin_split
from tests.support.spy import Spy

WRITE = "UPDATE orders SET n = 0 RETURNING id"


def move(cluster: Cluster, observer: Spy, mode: MigrationMode = MigrationMode.REPLICATE) -> Migration:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    done = cluster.runner(directory, leadership, observer).run(begin_move(directory, leadership, 2, "b", mode=mode).id)
    assert [finding.text for finding in examine(directory, cluster.address)] == []
    return done


@pytest.mark.parametrize("node", ["a", "b"])
def test_a_node_that_is_lost_in_a_replicated_copy_costs_what_was_on_its_way(cluster: Cluster, node: str) -> None:
    cluster.settings = replace(cluster.settings, **AMPLE)
    before = cluster.rows()["a"]
    listener = Listener()
    with obstacle(cluster, node, "orders_t2") as lost:
        listener.work["entered:copying"] = lost.lose
        done = move(cluster, listener)
    assert (done.state, done.error) == ("done", "")
    detail = read_detail(done)
    assert (detail.restarts, detail.retries) == (0, 1)
    assert f"node {node}" in detail.retreat
    assert [str(state) for state in listener.states].count("planned") == 1
    assert {**cluster.rows()["a"], **cluster.rows()["b"]} == before


@pytest.mark.parametrize(("mode", "node"), [("read-only", "a"), ("read-only", "b"), ("replicate", "b")])
def test_a_node_that_is_lost_in_the_copy_costs_a_new_copy(cluster: Cluster, mode: str, node: str) -> None:
    """Of a replicated one, when the patience with it is over."""
    impatient = {"retry_patience": 0.0} if mode == "replicate" else {}
    cluster.settings = replace(cluster.settings, **(AMPLE | impatient))
    before = cluster.rows()["a"]
    written: list[object] = []
    listener = Listener()
    with obstacle(cluster, node, "orders_t2") as lost:
        listener.work["entered:copying"] = lost.lose
        # Everything was undone, the fence first.
        listener.work["left:restarting"] = lambda: written.extend(cluster.query("a", WRITE))
        done = move(cluster, listener, MigrationMode(mode))
    assert (done.state, done.error) == ("done", "")
    detail = read_detail(done)
    assert (detail.restarts, detail.retries) == (1, 1)
    assert f"node {node}" in detail.retreat
    assert [str(state) for state in listener.states].count("planned") == 2
    assert any(text.startswith("the next copy, in 0.1 s: node") for text in listener.waited)
    assert len(written) == 1000
    assert {**cluster.rows()["a"], **cluster.rows()["b"]} == before


def test_copies_that_keep_failing_end_the_move_and_are_counted(cluster: Cluster) -> None:
    cluster.settings = replace(cluster.settings, copy_attempts=2, retry_patience=0.0)
    with obstacle(cluster, "b", "orders_t2") as lost:
        spy = Spy({"entered:copying": lost.lose})
        spy.work["left:restarting"] = lambda: spy.work.update({"entered:copying": lost.lose})
        done = move(cluster, spy)
    assert done.state == "failed"
    assert done.error.endswith("(given up after 2 tries)")
    assert len(cluster.rows()["a"]) == 1000


def test_a_lock_that_is_not_granted_while_a_split_is_completed_costs_a_new_copy(cluster: Cluster) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    migration = begin_split(directory, leadership, 2)
    with obstacle(cluster, "a", f"orders_t{migration.targets[1].id}", "SHARE UPDATE EXCLUSIVE") as vacuum:
        # Rows can be written, indexes cannot be built; it ends when the wait for it has been given up.
        spy = Spy({"entered:copying": vacuum.hold, "entered:restarting": vacuum.release})
        done = cluster.runner(directory, leadership, spy).run(migration.id)
    assert (done.state, done.error) == ("done", "")
    assert "lock timeout" in read_detail(done).retreat
    assert read_detail(done).restarts == 1
    assert len(cluster.rows()["a"]) == 1000
    assert [finding.text for finding in examine(directory, cluster.address)] == []


@pytest.mark.parametrize("mode", list(MigrationMode))
def test_a_fence_that_ran_out_is_raised_again(cluster: Cluster, mode: MigrationMode) -> None:
    """A daemon that slept between its last look and the seal."""
    cluster.settings = replace(
        cluster.settings, write_pause_budget=5.0, fence_deadline=0.2, read_only_fence_deadline=0.6
    )
    number = cluster.query("a", "SELECT min(id) FROM orders_t2")[0][0]

    def sleep() -> None:
        cluster.query("a", "SELECT pg_sleep(0.8)")
        cluster.query("a", f"UPDATE orders SET n = 99 WHERE id = {number} RETURNING 1")

    done = move(cluster, Spy({"entered:sealing": sleep}), mode)
    assert (done.state, done.error) == ("done", "")
    said = "has expired: writes may have come through", "has ended a session that stood still"
    assert said[mode is MigrationMode.REPLICATE] in read_detail(done).retreat
    assert cluster.rows()["b"][int(str(number))] == 99


def test_a_fence_is_kept_although_a_vacuum_holds_the_lock_for_a_while(cluster: Cluster) -> None:
    # Between the end of the vacuum and the fence's there is a second, in which a busy machine, too, finds a moment.
    cluster.settings = replace(cluster.settings, throttle=3_300, read_only_fence_deadline=3.6, lock_timeout=0.05)
    with obstacle(cluster, "a", "orders_t2", "SHARE UPDATE EXCLUSIVE") as vacuum:
        done = move(cluster, Spy({"entered:copying": lambda: vacuum.hold_for(2.4)}), MigrationMode.READ_ONLY)
    assert (done.state, done.error) == ("done", "")
    assert read_detail(done).restarts == 0


def test_a_copy_that_is_begun_anew_can_be_cancelled(cluster: Cluster) -> None:
    cluster.settings = replace(cluster.settings, retry_back_off=30.0, retry_back_off_limit=30.0, retry_patience=0.0)
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    migration = begin_move(directory, leadership, 2, "b")
    runner = cluster.runner(directory, leadership, spy := Spy())
    with obstacle(cluster, "b", "orders_t2") as lost:
        spy.work["entered:copying"] = lost.lose
        spy.work["left:restarting"] = lambda: runner.cancel(migration.id, "not any more")
        done = runner.run(migration.id)
    assert (done.state, done.error) == ("cancelled", "not any more")
    assert [finding.text for finding in examine(directory, cluster.address)] == []
