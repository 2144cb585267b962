"""A tablet that was closed because its node has gone back in time stays closed, whatever a migration of it does."""

import psycopg
import pytest

from balancer.directory.model import Migration
from balancer.migration import steps
from balancer.migration.begin import begin_move
from balancer.migration.context import Context
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.tablets.closed import close_tablet, locked_rows
from tests.support.cluster import Cluster
from tests.support.directed import LEAF, TABLET, move, split
from tests.support.spy import Spy

pytestmark = pytest.mark.always


def close(cluster: Cluster, node: str) -> None:
    """As the leader's guard does."""
    with cluster.connect(node) as connection:
        epoch = int(str(cluster.query(node, "SELECT leader_epoch FROM balancer.node")[0][0]))
        with node_transaction(connection, epoch, node) as cursor:
            (row,) = locked_rows(cursor, [TABLET])
            close_tablet(cursor, row, node, epoch, 5.0)


def answers(cluster: Cluster, node: str) -> set[str]:
    """To a writer by either name, and to a client that asks for the tablet."""
    epoch = cluster.query(node, f"SELECT epoch FROM balancer.tablet WHERE id = {TABLET}")[0][0]
    key = cluster.query(node, f"SELECT min(id) FROM {LEAF}")[0][0]
    found = set()
    for statement in (
        f"UPDATE {LEAF} SET n = 5 WHERE id = {key}",
        f"UPDATE public.orders SET n = 5 WHERE id = {key}",
        f"CALL balancer.hold({TABLET}, {epoch}, true)",
    ):
        with cluster.connect(node) as connection:
            try:
                connection.execute(statement.encode())
                found.add("allowed")
            except psycopg.Error as error:
                found.add(error.sqlstate or "?")
    return found


def cancelled_move(cluster: Cluster) -> Migration:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    begun = begin_move(directory, leadership, TABLET, "b")
    spy = Spy()
    runner = cluster.runner(directory, leadership, spy)

    def work() -> None:
        close(cluster, "a")
        runner.cancel(begun.id)

    spy.work["entered:copying"] = work
    return runner.run(begun.id)


def test_a_cancelled_move_does_not_open_it(cluster: Cluster) -> None:
    assert cancelled_move(cluster).state == "cancelled"
    assert answers(cluster, "a") == {"TB004"}


def test_a_move_that_is_undone_leaves_the_short_way_to_clients(cluster: Cluster) -> None:
    """A lock that is left in a tablet's row sends every proof the long way."""
    done = move(cluster, {"entered:copying": lambda: change_root(cluster)})
    assert done.state == "failed"
    assert cluster.query("a", f"SELECT xmax = 0, state FROM balancer.tablet WHERE id = {TABLET}") == [(True, "owned")]


def test_one_that_is_closed_while_a_move_is_undone_keeps_its_triggers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = steps._drop_incoming

    def closed_first(ctx: Context) -> None:
        close(cluster, "a")
        before(ctx)

    monkeypatch.setattr(steps, "_drop_incoming", closed_first)
    assert move(cluster, {"entered:copying": lambda: change_root(cluster)}).state == "failed"
    assert answers(cluster, "a") == {"TB004"}


def change_root(cluster: Cluster) -> None:
    """What a move is given up for."""
    with cluster.connect("b") as connection:
        connection.execute("ALTER TABLE public.orders ADD COLUMN late int")


def test_a_move_does_not_fence_it(cluster: Cluster) -> None:
    done = move(cluster, {"entered:fencing": lambda: close(cluster, "a")})
    assert done.state == "failed"
    assert "tablet 2 is closed on node a, which has gone back in time" in (done.error or "")
    assert answers(cluster, "a") == {"TB004"}


def test_a_split_does_not_put_open_ones_in_its_place(cluster: Cluster) -> None:
    done = split(cluster, {"entered:swapping": lambda: close(cluster, "a")})
    assert done.state == "failed"
    assert answers(cluster, "a") == {"TB004"}


def test_a_new_owner_that_is_closed_while_the_former_one_retires_keeps_its_triggers(cluster: Cluster) -> None:
    done = move(cluster, {"entered:retiring": lambda: close(cluster, "b")})
    assert done.state == "done"
    assert answers(cluster, "b") == {"TB004"}
