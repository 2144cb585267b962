"""What ends a migration, or keeps it waiting, before it can hurt; each names what is in the way."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

import psycopg
import pytest

from balancer.directory.model import Migration, MigrationMode
from balancer.errors import Refused
from balancer.features.repair.doctor import examine
from balancer.migration.begin import begin_move
from balancer.migration.journal import read_detail
from balancer.nodes.session.holder import NodeSessions
from tests.support.cluster import Cluster
from tests.support.resharding import begin_split
from tests.support.spy import Spy


def move(
    cluster: Cluster,
    work: Mapping[str, Callable[[], object]] | None = None,
    mode: MigrationMode = MigrationMode.REPLICATE,
    finding: str = "",
) -> Migration:
    """Nothing is left of it; `finding`: what the work itself has made wrong."""
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    migration = begin_move(directory, leadership, 2, "b", mode=mode)
    done = cluster.runner(directory, leadership, Spy(work)).run(migration.id)
    assert [
        found.text for found in examine(directory, cluster.address) if not finding or finding not in found.text
    ] == []
    leadership.resign()
    return done


def execute(cluster: Cluster, node: str, statement: str) -> None:
    with cluster.connect(node) as connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    ("node", "statement"),
    [
        ("a", "ALTER TABLE orders ADD COLUMN extra int"),
        ("a", "CREATE INDEX late ON orders_t2 (note)"),
        ("b", "ALTER TABLE orders ADD COLUMN extra int"),
        ("a", "TRUNCATE orders_t2"),
    ],
)
def test_a_definition_that_changes_ends_the_move_and_keeps_the_source(
    cluster: Cluster, node: str, statement: str
) -> None:
    work = {"entered:catching_up": lambda: execute(cluster, node, statement)}
    done = move(cluster, work, finding="public.orders differs between the nodes: column extra")
    assert done.state == "failed"
    assert "was changed while the migration ran" in done.error
    execute(cluster, "a", "INSERT INTO orders (id) SELECT generate_series(10000, 10100)")


def test_a_move_gives_up_when_it_keeps_too_much_log(cluster: Cluster) -> None:
    cluster.settings = replace(cluster.settings, wal_budget=1)
    done = move(cluster)
    assert done.state == "failed"
    assert "write-ahead log on node a, more than the 1 allowed" in done.error


def test_a_tablet_too_large_for_the_target_is_refused(cluster: Cluster) -> None:
    cluster.settings = replace(cluster.settings, disk_budget=1000)
    done = move(cluster)
    assert "a migration may add 1000 on node b" in done.error


def test_a_table_without_a_key_is_moved_in_read_only_mode(cluster: Cluster) -> None:
    for node in ("a", "b"):
        execute(cluster, node, "ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    execute(cluster, "a", "INSERT INTO orders (id) SELECT id FROM orders_t2 LIMIT 3")  # rows that are twice there
    before = cluster.query("a", "SELECT id, n FROM orders_t2 ORDER BY id")
    assert "use mode read-only" in move(cluster).error
    assert move(cluster, mode=MigrationMode.READ_ONLY).state == "done"
    assert cluster.query("b", "SELECT id, n FROM orders_t2 ORDER BY id") == before


def test_an_open_transaction_is_named_and_waited_for(cluster: Cluster) -> None:
    number = cluster.query("a", "SELECT min(id) FROM orders_t2")[0][0]
    blocker = psycopg.connect(cluster.dsns["a"], application_name="nightly report")
    pid = blocker.info.backend_pid
    waiting: list[str] = []

    def block() -> None:
        blocker.execute(f"UPDATE orders SET n = 3 WHERE id = {number}")
        threading.Timer(1.5, blocker.commit).start()

    class Listening(Spy):
        def progressed(self, migration: Migration, progress: object) -> None:
            waiting.append(str(getattr(progress, "waiting_for", "")))

    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    migration = begin_move(directory, leadership, 2, "b")
    done = cluster.runner(directory, leadership, Listening({"entered:fencing": block})).run(migration.id)
    blocker.close()
    assert done.state == "done"
    assert any(f"session {pid} (nightly report, open for" in text for text in waiting)
    assert "nightly report" in read_detail(done).retreat
    assert cluster.rows()["b"][int(str(number))] == 3


@pytest.mark.parametrize("written", [True, False])
def test_a_blocker_is_ended_where_that_is_allowed(cluster: Cluster, written: bool) -> None:
    """One that has written, or one that has only proven that it may."""
    cluster.settings = replace(cluster.settings, terminate_blockers=True, blocker_age=0.2)
    with psycopg.connect(cluster.dsns["a"]) as blocker:
        number = cluster.query("a", "SELECT min(id) FROM orders_t2")[0][0]
        statement = f"UPDATE orders SET n = 3 WHERE id = {number}" if written else "CALL balancer.hold(2, 1, true)"
        begun = {"entered:fencing": lambda: blocker.execute(statement)}
        assert move(cluster, begun).state == "done"
        with pytest.raises(psycopg.OperationalError):
            blocker.execute("SELECT 1")
    assert cluster.rows()["b"][int(str(number))] == 0


def test_a_prepared_transaction_is_named(cluster: Cluster) -> None:
    cluster.settings = replace(cluster.settings, retry_patience=1.0)
    number = cluster.query("a", "SELECT min(id) FROM orders_t2")[0][0]
    execute(cluster, "a", f"BEGIN; UPDATE orders SET n = 3 WHERE id = {number}; PREPARE TRANSACTION 'left-behind'")
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    # A slot waits for it as well; a split does not need one.
    done = cluster.runner(directory, leadership).run(begin_split(directory, leadership, 2).id)
    execute(cluster, "a", "ROLLBACK PREPARED 'left-behind'")
    assert done.state == "failed"
    assert "a prepared transaction ('left-behind', open for" in done.error


def test_a_database_of_another_cluster_is_left_alone(cluster: Cluster) -> None:
    """The same node's name in another cluster: raising its epoch would shut its own leader out."""
    links = NodeSessions(lambda node: replace(cluster.address(node), cluster="elsewhere"), "m1")
    with pytest.raises(Refused, match="leads to node b of cluster directory, not of elsewhere: nothing was done there"):
        links.control("b")
    right = NodeSessions(lambda node: replace(cluster.address(node), cluster="directory"), "m1")
    right.control("b")
    right.close()
