"""The router on a directory in ZooKeeper: it hears of moves, and goes on from memory while ZooKeeper is away."""

import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from balancer.client import Router
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.errors import BalancerError
from tests.support.shards import Shards, new_shards, user_of


@pytest.fixture(scope="module")
def own_zookeeper(server_folder: Path) -> Iterator[ZooKeeperServer]:
    """Not the one that others use: it is stopped here."""
    with ZooKeeperServer(server_folder / "zookeeper-of-clients") as server:
        yield server


@pytest.fixture
def shards(tmp_path: Path, dsns: list[str], own_zookeeper: ZooKeeperServer) -> Iterator[Shards]:
    with new_shards(tmp_path, dsns, url=f"zk://{own_zookeeper.address}/{uuid4().hex}") as made:
        yield made


def insert(router: Router, user: int, n: int) -> None:
    with router.transaction("orders", user) as connection:
        connection.execute("INSERT INTO orders VALUES (%s, %s)", (user, n))


def test_a_move_is_heard_of_within_moments(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    insert(router, user, 1)
    moved = shards.switch(1, "pg-b")
    began = time.monotonic()
    while router.locate("orders", user) != ("pg-b", 1, moved.epoch):
        assert time.monotonic() - began < 5
        time.sleep(0.001)
    print(f"known after {(time.monotonic() - began) * 1000:.0f} ms")
    insert(router, user, 2)
    assert shards.count(user) == 2


def test_ids_come_from_zookeeper(shards: Shards, router: Router) -> None:
    with Router.connect(shards.url, samples=False) as other:
        taken = [router.ids("orders").next(), other.ids("orders").next(), router.ids("orders").next()]
    assert len(set(taken)) == 3


def test_transactions_go_on_while_zookeeper_is_away(
    shards: Shards, router: Router, own_zookeeper: ZooKeeperServer
) -> None:
    """The node itself proves ownership, so a map that cannot be refreshed is safe to use."""
    user = user_of(shards, 1)
    own_zookeeper.kill()
    try:
        insert(router, user, 1)
        with pytest.raises(BalancerError):
            Router.connect(shards.url, samples=False, timeout=1.0)
    finally:
        own_zookeeper.start()
    assert shards.count(user) == 1
    shards.switch(1, "pg-b")
    insert(router, user, 2)
    assert shards.node("pg-b").execute("SELECT count(*) FROM orders WHERE user_id = %s", (user,)).fetchone() == (2,)
