"""A tablet moves: its rows arrive, its former owner lets go, nothing is left behind."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from balancer.directory.model import MigrationMode
from balancer.embedded.postgres import PostgresServer
from balancer.migration.begin import begin_move
from tests.support.cluster import Cluster, build, hash_table, hash_tablets, insert_rows
from tests.support.servers import Database

Factory = Callable[[PostgresServer], Database]


@pytest.fixture
def cluster(
    tmp_path: Path, postgres15: PostgresServer, postgres18: PostgresServer, database: Factory
) -> Iterator[Cluster]:
    dsns = {"a": database(postgres15).dsn, "b": database(postgres18).dsn}
    tablets = hash_tablets(4, ["a"])
    made = build(tmp_path, dsns, hash_table(), tablets)
    insert_rows(made, tablets, range(1000))
    yield made
    made.close()


@pytest.mark.parametrize("mode", list(MigrationMode))
def test_a_move_carries_every_row_and_changes_the_owner(cluster: Cluster, mode: MigrationMode) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    before = cluster.rows()["a"]
    migration = begin_move(directory, leadership, 2, "b", mode=mode)

    done = cluster.runner(directory, leadership).run(migration.id)
    assert (done.state, done.error) == ("done", "")
    after = cluster.rows()
    assert {**after["a"], **after["b"]} == before
    assert after["b"]
    tablet = directory.snapshot().tablet(2)
    assert (tablet.node, tablet.epoch) == ("b", 2)
