"""The examples of the README, as an application runs them. The same lines stand there."""

import asyncio
from typing import Any

import numpy as np
import psycopg

from balancer.client import AsyncRouter, Isolation, PoolSettings, Router, RowId
from tests.support.shards import Shards


def test_a_transaction_on_the_right_node(shards: Shards) -> None:
    url, user_id = shards.url, 42

    with Router.connect(url) as router:
        with router.transaction("orders", user_id) as connection:
            connection.execute("INSERT INTO orders VALUES (%s, %s)", (user_id, 1))
            connection.execute("INSERT INTO items VALUES (%s, %s)", (user_id, 1))

        with router.transaction("orders", user_id, read_only=True) as connection:
            rows = connection.execute("SELECT n FROM orders WHERE user_id = %s", (user_id,)).fetchall()

        where = router.locate("orders", user_id)
        print(where.node, where.tablet, where.epoch)

    assert rows == [(1,)]


def test_a_function_that_is_run_again_where_it_must_be(shards: Shards) -> None:
    url, user_id = shards.url, 42

    def raise_by_one(connection: psycopg.Connection[Any]) -> None:
        connection.execute("UPDATE orders SET note = note || '+' WHERE user_id = %s", (user_id,))

    with Router.connect(url, PoolSettings(size=20), samples=False) as router:
        with router.transaction("orders", user_id) as connection:
            connection.execute("INSERT INTO orders VALUES (%s, %s)", (user_id, 1))
        router.run("orders", user_id, raise_by_one, isolation=Isolation.SERIALIZABLE)
        with router.transaction("orders", user_id, read_only=True) as connection:
            rows = connection.execute("SELECT note FROM orders WHERE user_id = %s", (user_id,)).fetchall()
    assert rows == [("+",)]


def test_many_keys_at_once(shards: Shards) -> None:
    url = shards.url

    with Router.connect(url) as router:
        users = np.arange(1000)
        for node, places in router.group("orders", users).items():
            print(node, "owns", len(places), "of them, such as", users[places[0]])

        assert sum(len(places) for places in router.group("orders", users).values()) == 1000


def test_ids_that_need_no_round_trip(shards: Shards) -> None:
    url, user_id = shards.url, 42

    with Router.connect(url) as router:
        order_id = router.ids("orders").next()
        item_id = router.located_ids("orders").next_for(user_id)
        with router.transaction("orders", RowId(item_id)) as connection:  # where user 42's rows are
            connection.execute("INSERT INTO items VALUES (%s, %s)", (user_id, item_id))

    assert order_id > 0


def test_the_same_with_asyncio(shards: Shards) -> None:
    url, user_id = shards.url, 42

    async def main() -> None:
        async with await AsyncRouter.connect(url) as router, router.transaction("orders", user_id) as connection:
            await connection.execute("INSERT INTO orders VALUES (%s, %s)", (user_id, 1))

    asyncio.run(main())
    assert shards.count(user_id) == 1
