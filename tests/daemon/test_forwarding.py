"""Every node answers for every key, before and after a move. PostgreSQL 15: the embedded ones have no postgres_fdw."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from balancer.daemon.forwarding import ForwardingWatch, forward_bundle, stop_forwarding
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Refused
from balancer.nodes.connection import Address
from tests.support.commands import balancer_here as balancer
from tests.support.refusals import refused_with
from tests.support.shards import Shards, databases, new_shards, user_of

USERS = 40


@pytest.fixture(scope="module")
def dsns(postgres15: PostgresServer) -> Iterator[list[str]]:
    with databases(postgres15) as made:
        yield made


@pytest.fixture
def shards(tmp_path: Path, dsns: list[str]) -> Iterator[Shards]:
    with new_shards(tmp_path, dsns) as made:
        yield made
        stop_forwarding(made.directory.snapshot(), "shop", address(made).__getitem__)


def address(shards: Shards) -> dict[str, Address]:
    return {node: Address(node, dsn) for node, dsn in shards.dsns.items()}


def forward(shards: Shards) -> int:
    return forward_bundle(shards.directory.snapshot(), "shop", address(shards).__getitem__)


def everything(shards: Shards, node: str) -> list[int]:
    rows = shards.node(node).execute("SELECT user_id FROM balancer_all.orders ORDER BY user_id").fetchall()
    return [row[0] for row in rows]


def test_any_node_reads_and_writes_any_key(shards: Shards) -> None:
    assert forward(shards) == 16, "two nodes, two roots, four tablets"
    for user in range(USERS):
        writer = shards.node("pg-a" if user % 2 else "pg-b")
        writer.execute("INSERT INTO balancer_all.orders VALUES (%s, 1)", (user,))
    writer.execute("UPDATE balancer_all.orders SET note = 'seen' WHERE n = 1")
    assert everything(shards, "pg-a") == everything(shards, "pg-b") == list(range(USERS))
    owned = [row for node in shards.dsns for row in shards.node(node).execute("SELECT note FROM orders").fetchall()]
    assert owned == [("seen",)] * USERS
    assert forward(shards) == 0, "nothing changed, nothing done"


def test_a_cross_shard_join_is_an_ordinary_query(shards: Shards) -> None:
    forward(shards)
    node = shards.node("pg-a")
    node.execute("INSERT INTO balancer_all.orders SELECT g, 1 FROM generate_series(1, 20) g")
    node.execute("INSERT INTO balancer_all.items SELECT g, i FROM generate_series(1, 20) g, generate_series(1, 3) i")
    joined = "SELECT count(*) FROM balancer_all.orders JOIN balancer_all.items USING (user_id)"
    assert shards.node("pg-b").execute(joined.encode()).fetchone() == (60,)


def test_a_move_is_followed_and_a_write_before_that_is_refused_not_lost(shards: Shards) -> None:
    forward(shards)
    user = user_of(shards, 1)
    shards.node("pg-b").execute("INSERT INTO balancer_all.orders VALUES (%s, 1)", (user,))
    with shards.leading() as move:
        assert move(1, "pg-b").state == "done"
    with pytest.raises(psycopg.Error):
        shards.node("pg-a").execute("INSERT INTO balancer_all.orders VALUES (%s, 2)", (user,))
    assert forward(shards) == 4
    shards.node("pg-a").execute("INSERT INTO balancer_all.orders VALUES (%s, 2)", (user,))
    assert everything(shards, "pg-a") == everything(shards, "pg-b") == [user, user]
    assert shards.count(user) == 2


def test_a_migration_keeps_it_right(shards: Shards) -> None:
    forward(shards)
    user = user_of(shards, 1)
    watch = ForwardingWatch(lambda _: True, shards.directory.snapshot, address(shards).__getitem__)
    with shards.leading(watch) as move:
        for target, number in (("pg-b", 1), ("pg-a", 2)):
            assert move(1, target).state == "done"
            shards.node("pg-a").execute("INSERT INTO balancer_all.orders VALUES (%s, %s)", (user, number))
            assert everything(shards, "pg-a") == everything(shards, "pg-b") == [user] * number


def test_it_is_left_alone_where_it_is_not_wanted(shards: Shards) -> None:
    ForwardingWatch(lambda _: False, shards.directory.snapshot, address(shards).__getitem__).follow("shop")
    assert shards.node("pg-a").execute("SELECT to_regnamespace('balancer_all')").fetchone() == (None,)


def test_a_fence_is_told_through_the_forwarding(shards: Shards) -> None:
    forward(shards)
    shards.fence(1)
    with pytest.raises(psycopg.Error) as caught:
        shards.node("pg-b").execute("INSERT INTO balancer_all.orders VALUES (%s, 1)", (user_of(shards, 1),))
    assert refused_with(caught.value) == "TB001"


def test_whoever_may_read_the_root_may_read_ours_and_nothing_else(shards: Shards) -> None:
    node = shards.node("pg-a")
    node.execute("CREATE ROLE reader LOGIN PASSWORD 'reader'")
    try:
        node.execute("GRANT SELECT ON orders TO reader")
        forward(shards)
        with psycopg.connect(shards.dsns["pg-a"], user="reader", password="reader", autocommit=True) as reader:
            assert reader.execute("SELECT count(*) FROM balancer_all.orders").fetchone() == (0,)
            for forbidden in ("SELECT * FROM balancer_all.items", "INSERT INTO balancer_all.orders VALUES (1, 1)"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    reader.execute(forbidden.encode())
            hidden = reader.execute("SELECT umoptions FROM pg_user_mappings").fetchall()
            assert all(options == (None,) for options in hidden), "no password is shown"
    finally:
        node.execute("DROP OWNED BY reader")
        node.execute("DROP ROLE reader")


def test_the_command_brings_it_and_takes_it_away(shards: Shards, tmp_path: Path) -> None:
    (tmp_path / "bundles").mkdir()
    nodes = "".join(f'[nodes.{node}]\ndsn = "{dsn}"\n' for node, dsn in shards.dsns.items())
    (tmp_path / "bundles" / "shop.toml").write_text(nodes)
    config = tmp_path / "balancer.toml"
    config.write_text(f'directory = "{shards.url}"\n')
    brought = balancer("forward", "-c", config, "shop")
    assert (brought.code, brought.out) == (0, "16 partitions changed\n"), brought.err
    assert everything(shards, "pg-b") == []
    assert balancer("forward", "-c", config, "shop", "--off").code == 0
    assert shards.node("pg-a").execute("SELECT to_regnamespace('balancer_all')").fetchone() == (None,)
    assert balancer("forward", "-c", config, "nowhere").code == 2


def test_a_server_without_the_extension_says_so(tmp_path: Path, postgres18: PostgresServer) -> None:
    with (
        databases(postgres18, 1) as dsns,
        new_shards(tmp_path, dsns, tablets=1) as shards,
        pytest.raises(Refused, match="postgres_fdw is not installed"),
    ):
        forward(shards)
