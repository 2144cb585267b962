"""The mode is chosen per migration: replicate, and read-only only where that cannot work, which is then said."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from balancer.directory.model import Migration, MigrationMode, Tablet
from balancer.embedded.postgres import PostgresServer, system_binaries
from balancer.features.repair.doctor import examine
from balancer.migration.begin import begin_move, begin_reshard
from balancer.migration.journal import read_detail
from tests.support.cluster import Cluster, build, hash_table, hash_tablets, insert_rows
from tests.support.servers import FAST, Database, new_database

Factory = Callable[[PostgresServer], Database]

WITHOUT_KEY = "orders_t2 has no primary key or unique index as replica identity"


def move(cluster: Cluster, *, fallback: bool) -> Migration:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    done = cluster.runner(directory, leadership).run(begin_move(directory, leadership, 2, "b", fallback=fallback).id)
    assert [finding.text for finding in examine(directory, cluster.address)] == []
    leadership.resign()
    return done


def execute(cluster: Cluster, statement: str, *nodes: str) -> None:
    for node in nodes or ("a", "b"):
        with cluster.connect(node) as connection:
            connection.execute(statement)


def test_a_table_without_a_key_becomes_read_only_and_says_why(cluster: Cluster) -> None:
    execute(cluster, "ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    before = cluster.query("a", "SELECT id, n FROM orders_t2 ORDER BY id")
    refused = move(cluster, fallback=False)
    assert (refused.state, refused.mode) == ("failed", MigrationMode.REPLICATE)
    assert refused.error == f"public.{WITHOUT_KEY}: use mode read-only"
    done = move(cluster, fallback=True)
    assert (done.state, done.mode, done.error) == ("done", MigrationMode.READ_ONLY, "")
    assert read_detail(done).mode_reason == f"public.{WITHOUT_KEY}"
    assert cluster.query("b", "SELECT id, n FROM orders_t2 ORDER BY id") == before


@pytest.mark.parametrize("kind", ["citext", "hstore", "mail"])
def test_a_key_of_an_extensions_type_becomes_read_only_and_says_why(
    tmp_path: Path, postgres15: PostgresServer, database: Factory, kind: str
) -> None:
    """What such a type calls equal is not what `=` means where we act: `Ann` that became `ANN` was not followed."""
    dsns = {node: database(postgres15).dsn for node in ("a", "b")}
    for dsn in dsns.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE DOMAIN mail AS citext")
            columns = f"(id bigint NOT NULL, n bigint NOT NULL DEFAULT 0, who {kind} NOT NULL, PRIMARY KEY (id, who))"
            connection.execute(f"CREATE TABLE orders {columns} PARTITION BY HASH (id)".encode())
    cluster = build(tmp_path, dsns, hash_table(), hash_tablets(4, ["a"]), None)
    rows = f"SELECT i, 0, ('Ann=>' || i)::{kind} FROM generate_series(1, 100) AS i"
    execute(cluster, f"INSERT INTO orders {rows}", "a")
    before = cluster.query("a", "SELECT id, who::text FROM orders_t2 ORDER BY id")
    assert "use mode read-only" in move(cluster, fallback=False).error
    done = move(cluster, fallback=True)
    assert (done.state, done.mode) == ("done", MigrationMode.READ_ONLY)
    shown = "citext" if kind == "mail" else kind
    assert f"(public.orders_t2: who public.{shown})" in read_detail(done).mode_reason
    assert cluster.query("b", "SELECT id, who::text FROM orders_t2 ORDER BY id") == before
    cluster.close()


def test_a_deferrable_key_becomes_read_only_since_no_row_of_it_could_be_changed_while_it_is_published(
    cluster: Cluster,
) -> None:
    key = "DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED"
    execute(cluster, f"ALTER TABLE orders {key}")
    why = "the primary key of public.orders_t2 is deferrable, so it cannot be a replica identity"
    refused = move(cluster, fallback=False)
    assert (refused.state, refused.error) == ("failed", f"{why}: use mode read-only")
    done = move(cluster, fallback=True)
    assert (done.state, done.mode, done.error) == ("done", MigrationMode.READ_ONLY, "")
    assert read_detail(done).mode_reason == why


def test_a_table_with_a_key_is_replicated(cluster: Cluster) -> None:
    done = move(cluster, fallback=True)
    assert (done.state, done.mode, read_detail(done).mode_reason) == ("done", MigrationMode.REPLICATE, "")


def test_a_split_of_a_table_without_a_key_becomes_read_only_too(cluster: Cluster) -> None:
    execute(cluster, "ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    tablet: Tablet = directory.snapshot().tablet(2)
    parts = tablet.bounds.children()  # type: ignore[union-attr]  # it is a leaf
    done = cluster.runner(directory, leadership).run(begin_reshard(directory, leadership, [2], parts, fallback=True).id)
    assert (done.state, done.mode) == ("done", MigrationMode.READ_ONLY)
    assert WITHOUT_KEY in read_detail(done).mode_reason
    assert len(cluster.rows()["a"]) == 1000


@pytest.fixture
def without_logical(
    tmp_path: Path, server_folder: Path, postgres18: PostgresServer, database: Factory
) -> Iterator[Cluster]:
    """Node a is on a server that writes no logical log."""
    settings = {**FAST, "wal_level": "replica"}
    server = PostgresServer(server_folder / "without_logical", system_binaries(15), settings)
    with server, new_database(server) as plain:
        tablets = hash_tablets(2, ["a"])
        dsns = {"a": plain.dsn, "b": database(postgres18).dsn}
        cluster = build(tmp_path, dsns, hash_table(), tablets)
        insert_rows(cluster, tablets, range(200))
        yield cluster
        cluster.close()


def test_a_server_without_logical_replication_gets_read_only_moves(without_logical: Cluster) -> None:
    why = "node a: wal_level is replica, so changes cannot be streamed"
    assert move(without_logical, fallback=False).error == f"{why}: use mode read-only"
    done = move(without_logical, fallback=True)
    assert (done.state, done.mode, read_detail(done).mode_reason) == ("done", MigrationMode.READ_ONLY, why)
    assert len(without_logical.rows()["b"]) > 0
