"""`balancer moves` and `balancer doctor`, as a user calls them, on a cluster in which a migration has been left."""

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from balancer.cli.migrate import encoded_key
from balancer.cli.moves import bar
from balancer.directory.model import RangeBounds
from balancer.embedded.postgres import PostgresServer
from balancer.errors import UserError
from balancer.migration.begin import begin_move
from balancer.policies.keyspace.keys import KeyType, encode_key
from tests.support.cluster import Cluster, build, hash_table, hash_tablets, insert_rows, range_table, range_tablets
from tests.support.commands import balancer_here as balancer
from tests.support.servers import Database


@pytest.fixture
def pair(
    postgres15: PostgresServer, postgres18: PostgresServer, database: Callable[[PostgresServer], Database]
) -> dict[str, str]:
    return {"a": database(postgres15).dsn, "b": database(postgres18).dsn}


@pytest.fixture
def cluster(tmp_path: Path, pair: dict[str, str]) -> Cluster:
    tablets = hash_tablets(2, ["a"])
    made = build(tmp_path, pair, hash_table(), tablets)
    insert_rows(made, tablets, range(100))
    (tmp_path / "bundles").mkdir()
    nodes = "".join(f"[nodes.{name}]\ndsn = '{dsn}'\n" for name, dsn in pair.items())
    (tmp_path / "bundles" / "shop.toml").write_text(nodes)
    (tmp_path / "balancer.toml").write_text(f'directory = "sqlite://{tmp_path}/directory.db"\n')
    return made


def test_moves_shows_what_runs_and_what_has_been_done(cluster: Cluster) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    config = cluster.folder / "balancer.toml"
    assert "no migration is running" in balancer("moves", "--config", config).out
    migration = begin_move(directory, leadership, 2, "b", reason="a test")
    shown = json.loads(balancer("moves", "--config", config, "--output", "json").out)
    assert [(row["id"], row["state"], row["source"], row["target"]) for row in shown] == [
        (migration.id, "planned", "a", "b")
    ]
    cluster.runner(directory, leadership).run(migration.id)
    done = json.loads(balancer("moves", "--all", "--config", config, "--output", "json").out)
    assert done[0]["state"] == "done"
    assert done[0]["write_pause"] > 0
    assert done[0]["seconds"] > 0
    assert f"{migration.id}\tmove\torders\t2\ta\tb\tdone" in balancer("moves", "--all", "-c", config).out
    leadership.resign()
    cluster.close()


def test_doctor_finds_leftovers_and_removes_them(cluster: Cluster) -> None:
    config = cluster.folder / "balancer.toml"
    assert balancer("doctor", "--config", config).code == 0
    with cluster.connect("a") as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('tb_mdead1', 'pgoutput')")
        connection.execute("CREATE PUBLICATION tb_mdead1 FOR TABLE orders_t2")
        connection.execute("INSERT INTO balancer.marker VALUES ('mdead1', 1)")
        connection.execute("CREATE TABLE balancer.changes_mdead1_0 (id int)")
    with cluster.connect("b") as connection:
        connection.execute("CREATE TABLE orders_t2 (LIKE orders)")
        connection.execute(
            "INSERT INTO balancer.tablet (id, epoch, state, schemas, partitions, migration)"
            " VALUES (2, 2, 'incoming', '{public}', '{orders_t2}', 'mdead1')"
        )
    found = balancer("doctor", "--config", config)
    assert found.code == 1
    for word in ("replication slot tb_mdead1", "publication tb_mdead1", "marker", "changes_mdead1_0", "incoming"):
        assert word in found.out
    fixed = balancer("doctor", "--fix", "--config", config)
    assert fixed.code == 0, fixed.out + fixed.err
    assert "nothing is wrong" in fixed.out
    with cluster.connect("b") as connection, pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute("SELECT * FROM orders_t2")
    cluster.close()


def test_doctor_repairs_nothing_while_somebody_leads(cluster: Cluster) -> None:
    leadership = cluster.become_leader(cluster.directory())
    with cluster.connect("a") as connection:
        connection.execute("INSERT INTO balancer.marker VALUES ('mdead1', 1)")
    refused = balancer("doctor", "--fix", "--config", cluster.folder / "balancer.toml")
    assert refused.code == 4
    assert "stop it first" in refused.err
    leadership.resign()
    cluster.close()


def test_keys_are_read_as_a_person_writes_them(tmp_path: Path, pair: dict[str, str]) -> None:
    cluster = build(tmp_path, pair, range_table(), range_tablets([10], ["a"]))
    snapshot = cluster.directory().snapshot()
    assert isinstance(snapshot.tablet(1).bounds, RangeBounds)
    assert encoded_key(snapshot, "1", "7") == encode_key((KeyType.BIGINT,), (7,))
    for wrong in ("7,8", "seven", str(1 << 70)):
        with pytest.raises(UserError, match="cannot be a key of this table"):
            encoded_key(snapshot, "1", wrong)
    cluster.close()


def test_a_bar_is_never_overfull() -> None:
    assert bar(0, 10) == "░" * 12 + "   0%"
    assert bar(5, 10) == "█" * 6 + "░" * 6 + "  50%"
    assert bar(20, 10) == "█" * 12 + " 100%"
