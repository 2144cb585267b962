"""What was done to a root after its adoption and no tablet can pass: refused before a migration begins, by name."""

from pathlib import Path

import pytest

from balancer.features.repair.doctor import examine
from balancer.migration.begin import begin_move
from balancer.policies.keyspace.keys import KeyType, encode_key
from tests.support.cluster import Cluster, build, insert_rows, range_table, range_tablets
from tests.support.resharding import begin_split

AUDIT = "CREATE TABLE audit (n int, o bigint REFERENCES {} (id)); INSERT INTO audit SELECT 1, min(id) FROM orders_t2"


@pytest.mark.parametrize("what", ["move", "split"])
@pytest.mark.parametrize("referenced", ["orders", "orders_t2"])
def test_a_foreign_key_from_a_table_that_stays_behind(cluster: Cluster, what: str, referenced: str) -> None:
    with cluster.connect("a") as connection:
        connection.execute(AUDIT.format(referenced).encode())
    before = cluster.rows()
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    begun = begin_move(directory, leadership, 2, "b") if what == "move" else begin_split(directory, leadership, 2)
    done = cluster.runner(directory, leadership).run(begun.id)
    assert done.state == "failed"
    assert "on node a: foreign key audit_o_fkey of public.audit points to" in done.error
    assert cluster.rows() == before
    assert cluster.tablets()[1].node == "a"


@pytest.mark.parametrize(("what", "node"), [("move", "a"), ("move", "b"), ("split", "a")])
def test_a_default_partition(tmp_path: Path, pair: dict[str, str], what: str, node: str) -> None:
    tablets = range_tablets([500], ["a"])
    cluster = build(tmp_path, pair, range_table(), tablets)
    insert_rows(cluster, tablets, range(1000))
    with cluster.connect(node) as connection:
        connection.execute("CREATE TABLE rest PARTITION OF orders DEFAULT")
    before = cluster.rows()
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    cut = encode_key((KeyType.BIGINT,), (700,))
    begun = (
        begin_move(directory, leadership, 2, "b") if what == "move" else begin_split(directory, leadership, 2, [cut])
    )
    done = cluster.runner(directory, leadership).run(begun.id)
    assert done.state == "failed"
    assert f"on node {node}: public.orders has the DEFAULT partition public.rest" in done.error
    assert cluster.rows() == before
    cluster.close()


def test_keys_of_partitions_in_migration_are_not_in_the_way(cluster: Cluster) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    for tablet, target in ((1, "b"), (2, "b"), (1, "a")):
        assert (
            cluster.runner(directory, leadership).run(begin_move(directory, leadership, tablet, target).id).state
            == "done"
        )
    assert examine(directory, cluster.address) == []
