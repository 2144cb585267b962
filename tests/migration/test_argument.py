"""The steps of the argument in `balancer.migration.machine`, one test each, in its numbers.

Steps 2 and 5 are about fences alone (`tests/nodes/tablets/test_fence.py`) and shown here at work; what needs a crash or
a paused daemon is in `test_argument_crashes`."""

import time
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

from balancer.directory.model import Migration, MigrationMode, TabletState
from balancer.errors import Fenced, Refused
from balancer.features.repair.doctor import examine
from balancer.migration.begin import begin_move
from balancer.migration.journal import read_detail
from balancer.naming import Name
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.tablets.partition import drop_partition
from tests.support.cluster import Cluster
from tests.support.opening import connect
from tests.support.refusals import refused_with
from tests.support.spy import Spy

pytestmark = pytest.mark.always


def run(
    cluster: Cluster, work: dict[str, Callable[[], object]], mode: MigrationMode = MigrationMode.REPLICATE
) -> Migration:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    migration = begin_move(directory, leadership, 2, "b", mode=mode)
    return cluster.runner(directory, leadership, Spy(work)).run(migration.id)


def refused(cluster: Cluster, node: str, statement: str) -> str | None:
    """How a node refuses a statement; None if it does not. Who would have to wait for a lock is told 55P03."""
    with cluster.connect(node) as connection:
        connection.execute("SET lock_timeout TO '200ms'")
        try:
            connection.execute(statement)
        except psycopg.Error as error:
            return refused_with(error)
    return None


def some_id(cluster: Cluster) -> int:
    return int(str(cluster.query("a", "SELECT min(id) FROM orders_t2")[0][0]))


def test_step_1_before_the_fence_only_the_owner_is_writable(cluster: Cluster) -> None:
    number = some_id(cluster)
    seen: list[str | None] = []

    def look() -> None:
        seen.append(refused(cluster, "a", f"UPDATE orders SET n = 1 WHERE id = {number}"))
        seen.append(refused(cluster, "b", f"INSERT INTO orders (id) VALUES ({number})"))
        seen.append(refused(cluster, "b", f"INSERT INTO orders_t2 (id) VALUES ({number})"))

    assert run(cluster, {"entered:catching_up": look}).state == "done"
    assert seen == [None, "23514", "TB001"]


def test_step_2_and_3_everything_before_the_fence_has_arrived_when_the_drain_is_over(cluster: Cluster) -> None:
    sides: list[list[tuple[object, ...]]] = []

    def compare() -> None:
        sides.extend(cluster.query(node, "SELECT id, n, note FROM orders_t2 ORDER BY id") for node in ("a", "b"))

    def write() -> None:
        cluster.query("a", "UPDATE orders_t2 SET n = n + 1 RETURNING 1")

    assert run(cluster, {"entered:fencing": write, "entered:verifying": compare}).state == "done"
    assert sides[0] == sides[1]
    assert all(n == 1 for _, n, _ in sides[0])


def test_step_4_a_row_that_differs_ends_the_migration_and_is_named(cluster: Cluster) -> None:
    number = some_id(cluster)
    change = f"UPDATE orders SET n = 5 WHERE id = {number} RETURNING 1"
    spoil = f"SET session_replication_role = replica; UPDATE orders_t2 SET n = 6 WHERE id = {number}"

    def tamper() -> None:
        with cluster.connect("b") as connection:
            connection.execute(spoil)

    done = run(cluster, {"entered:fencing": lambda: cluster.query("a", change), "entered:verifying": tamper})
    assert done.state == "failed"
    assert f"({number})" in done.error
    assert len(cluster.rows()["a"]) == 1000
    assert cluster.rows()["b"] == {}
    directory = cluster.directory()
    assert directory.snapshot().tablet(2).state is TabletState.QUARANTINED
    assert [finding.text for finding in examine(directory, cluster.address)] == []


def test_step_4_a_rest_that_is_cut_off_is_not_taken_for_all_of_it(cluster: Cluster) -> None:
    """Thirteen changes of one row stand before that of another in the log, and nine are read behind the fence."""
    first, other = (int(str(row[0])) for row in cluster.query("a", "SELECT id FROM orders_t2 ORDER BY id LIMIT 2"))
    cluster.settings = replace(cluster.settings, verify_keys_in_fence=2)

    def change() -> None:
        with cluster.connect("a") as connection:
            for number in (*[first] * 13, other):
                connection.execute(f"UPDATE orders SET n = n + 1 WHERE id = {number}".encode())

    done = run(cluster, {"entered:fencing": change})
    assert (done.state, read_detail(done).fences) == ("done", 2)
    assert [cluster.rows()["b"][number] for number in (first, other)] == [13, 1]


def test_step_5_a_fence_that_expired_is_not_sealed_and_its_writes_are_kept(cluster: Cluster) -> None:
    number = some_id(cluster)
    # A budget longer than the deadline cannot be configured; a clock that jumps has the same effect.
    cluster.settings = replace(cluster.settings, fence_deadline=0.3)

    def dawdle() -> None:
        time.sleep(0.4)
        assert refused(cluster, "a", f"UPDATE orders SET n = 99 WHERE id = {number}") is None

    assert run(cluster, {"entered:sealing": dawdle}).state == "done"
    assert cluster.rows()["b"][number] == 99


@pytest.mark.parametrize(("point", "fences"), [("entered:sealing", 2), ("entered:opening", 1)])
def test_steps_3_and_9_a_target_that_was_lost_is_not_committed_to_before_and_opened_after_the_commit(
    cluster: Cluster, point: str, fences: int
) -> None:
    cut = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'tablet-balancer migration %'"
    )
    done = run(cluster, {point: lambda: cluster.query("b", cut)})
    assert (done.state, read_detail(done).fences) == ("done", fences)
    assert refused(cluster, "b", "UPDATE orders SET n = 1") is None
    assert [finding.text for finding in examine(cluster.directory(), cluster.address)] == []


@pytest.mark.parametrize("mode", list(MigrationMode))
def test_steps_8_to_10_the_new_owner_opens_only_after_the_old_one_is_closed_for_good(
    cluster: Cluster, mode: MigrationMode
) -> None:
    number = some_id(cluster)
    seen: dict[str, list[str | None]] = {}

    def look(point: str) -> Callable[[], None]:
        def work() -> None:
            write = f"UPDATE orders SET n = 1 WHERE id = {number}"
            proof = f"CALL balancer.hold(2, {cluster.directory().snapshot().tablet(2).epoch}, true)"
            seen[point] = [
                refused(cluster, "a", write),
                refused(cluster, "b", f"INSERT INTO orders (id) VALUES ({number})"),
                refused(cluster, "b", proof),
            ]

        return work

    points = ("entered:committing", "left:committing", "left:opening")
    assert run(cluster, {point: look(point) for point in points}, mode).state == "done"
    # Who writes on the target waits for the transaction that would open it, which nobody has committed.
    assert seen["entered:committing"] == ["55P03", "55P03", "TB001"]
    assert seen["left:committing"] == ["55P03", "55P03", "TB001"]
    assert seen["left:opening"] == ["TB002", "23505", None]  # there, and it has the row already


def test_step_11_a_predecessor_that_wakes_up_late_is_refused_by_the_node_itself(cluster: Cluster) -> None:
    with connect(cluster.address("a")) as connection:
        with node_transaction(connection, 7, "a"):
            pass
        with pytest.raises(Fenced), node_transaction(connection, 6, "a") as cursor:
            cursor.execute("DROP TABLE orders")


def test_step_12_a_partition_that_is_attached_is_never_dropped(cluster: Cluster) -> None:
    with (
        connect(cluster.address("a")) as connection,
        connection.cursor() as cursor,
        pytest.raises(Refused, match="still attached"),
    ):
        drop_partition(cursor, Name("public", "orders_t2"))
