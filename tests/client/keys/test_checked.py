"""Statements in a transaction for one key that mean others: noticed where it can be."""

import asyncio
from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from balancer.client import AsyncRouter, PoolSettings, Router, WrongKey
from balancer.client.keys.hints import named_keys
from balancer.policies.keyspace.keys import KeyType
from tests.support.shards import Shards, user_of


@pytest.fixture
def keys(shards: Shards, router: Router) -> dict[str, int]:
    """A key; one of its tablet; one of another tablet of its node; one of another node. Each has a row."""
    mine = shards.tablet(1)
    beside = next(one.id for one in shards.tablets() if one.node == mine.node and one.id != 1)
    away = next(one.id for one in shards.tablets() if one.node != mine.node)
    first = user_of(shards, 1)
    found = {"mine": first, "same": user_of(shards, 1, first)}
    found |= {"beside": user_of(shards, beside), "away": user_of(shards, away)}
    for user in found.values():
        with router.transaction("orders", user) as connection:
            connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))
    return found


Ask = Callable[[psycopg.Connection[object], dict[str, int]], object]
MEANT: dict[str, Ask] = {
    "in": lambda c, k: c.execute("SELECT n FROM orders WHERE user_id IN (%s, %s)", (k["mine"], k["away"])),
    "literal": lambda c, k: c.execute(f"SELECT n FROM orders o WHERE o.user_id = {k['away']}".encode()),
    "any": lambda c, k: c.execute('DELETE FROM orders WHERE "user_id" = ANY(%(all)s)', {"all": [k["away"]]}),
    "composed": lambda c, k: c.execute(sql.SQL("SELECT 1 FROM orders WHERE user_id = {}").format(k["away"])),
    "many": lambda c, k: c.cursor().executemany(
        "UPDATE orders SET n = 2 WHERE user_id = %s", [(k["mine"],), (k["away"],)]
    ),
}


@pytest.mark.parametrize("ask", MEANT.values(), ids=MEANT)
def test_a_key_that_is_named_and_elsewhere_is_said(router: Router, keys: dict[str, int], ask: Ask) -> None:
    there = router.locate("orders", keys["away"]).node
    said = f"key {keys['away']} is on {there}, this block is for key {keys['mine']}"
    with pytest.raises(WrongKey, match=said), router.transaction("orders", keys["mine"], checked=True) as connection:
        ask(connection, keys)
    with router.transaction("orders", keys["mine"]) as connection:
        ask(connection, keys)  # without the option nobody says a word


def test_rows_of_other_tablets_that_come_back_are_said(router: Router, shards: Shards, keys: dict[str, int]) -> None:
    tablet = router.locate("orders", keys["beside"]).tablet
    block = router.transaction("orders", keys["mine"], checked=True)
    with pytest.raises(WrongKey, match=f"key {keys['beside']} is in tablet {tablet}"), block as connection:
        connection.execute("UPDATE orders SET n = n + 1 RETURNING user_id AS renamed, n")
    assert shards.node("pg-a").execute("SELECT max(n) FROM orders").fetchone() == (1,), "nothing was kept"
    with router.transaction("orders", keys["mine"], checked=True) as connection:
        cursor = connection.cursor(row_factory=dict_row)
        own = cursor.execute("SELECT n, user_id FROM orders_t1 ORDER BY user_id").fetchall()
        assert {row["user_id"] for row in own} == {keys["mine"], keys["same"]}, "keys of the same tablet are proven"
        other = connection.execute("SELECT count(*), max(user_id) FROM orders").fetchone()
        assert other is not None, "what is computed is no key"


def test_the_next_user_of_the_connection_is_not_checked(shards: Shards, keys: dict[str, int]) -> None:
    with Router.connect(shards.url, PoolSettings(size=1), samples=False) as router:
        with router.transaction("orders", keys["mine"], checked=True):
            pass
        with router.transaction("orders", keys["mine"]) as connection:
            asked = connection.execute("SELECT user_id FROM orders WHERE user_id = %s", (keys["away"],))
            assert asked.fetchall() == []


def test_the_same_for_asyncio(shards: Shards, keys: dict[str, int]) -> None:
    async def work() -> None:
        async with await AsyncRouter.connect(shards.url, samples=False) as router:
            async with router.transaction("orders", keys["mine"], checked=True) as connection:
                found = await connection.execute("SELECT user_id FROM orders WHERE user_id = %s", (keys["same"],))
                assert await found.fetchall() == [(keys["same"],)]
            with pytest.raises(WrongKey, match=f"key {keys['away']} is on"):
                async with router.transaction("orders", keys["mine"], checked=True) as connection:
                    await connection.execute("SELECT n FROM orders WHERE user_id IN (%s)", (keys["away"],))

    asyncio.run(work())


@pytest.mark.quick
@pytest.mark.parametrize(
    ("statement", "values", "found"),
    [
        ("SELECT 1 FROM t WHERE id IN (7, %s, '9')", (8,), [7, 8, 9]),
        ("SELECT 1 FROM t WHERE a = %s AND t.id = %s", (1, 2), [2]),
        ("SELECT 1 FROM t WHERE ID = any(ARRAY[1, 2]) OR id=%(x)s", {"x": 5}, [1, 2, 5]),
        ("SELECT 1 FROM t WHERE id = ANY(%s)", ([3, 4],), [3, 4]),
        ('UPDATE t SET id = 6 WHERE "id" = 5', None, [6, 5]),
        ("SELECT 'id = 9', \"iD\" = 1 FROM t -- id = 8\n WHERE id <> 7 AND id > 5 AND idx = 4", None, []),
        ("SELECT 1 FROM t WHERE id = other.id AND id IN (SELECT id FROM u) AND id = f(3)", None, []),
        ("SELECT 1 FROM t WHERE id = %s", None, []),
        ("not even SQL ( id = ", None, []),
    ],
)
def test_keys_that_a_statement_names(statement: str, values: object, found: list[int]) -> None:
    assert list(named_keys(statement, values, "id", KeyType.BIGINT)) == found
