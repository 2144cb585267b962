"""A key's rows under another key: all of them, value for value, whatever the nodes' tables and settings are like; or
nothing has changed."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql

from balancer.client import Router
from balancer.errors import Refused
from tests.support.shards import Shards, user_of


@pytest.fixture
def keys(shards: Shards) -> tuple[int, int]:
    """Of tablets on different nodes."""
    there = shards.tablet(1).node
    return user_of(shards, 1), user_of(shards, next(one.id for one in shards.tablets() if one.node != there))


def on_both(shards: Shards, *statements: str) -> None:
    for name in shards.dsns:
        for statement in statements:
            shards.node(name).execute(statement.encode())


@contextmanager
def settings(shards: Shards, node: str, **values: str) -> Iterator[None]:
    """Of the node's database, until the block ends."""
    connection = shards.node(node)
    name = sql.Identifier(connection.info.dbname)
    for setting, value in values.items():
        change = sql.SQL("ALTER DATABASE {} SET {} TO {}")
        connection.execute(change.format(name, sql.Identifier(setting), sql.Literal(value)))
    try:
        yield
    finally:
        connection.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(name))


def rows(shards: Shards, router: Router, key: int, what: str) -> list[tuple[object, ...]]:
    """As the key's owner shows them under PostgreSQL's own settings."""
    node = shards.node(router.locate("orders", key).node)
    with node.transaction():
        node.execute("SET LOCAL datestyle TO 'ISO'")
        node.execute("SET LOCAL extra_float_digits TO 1")
        return node.execute(f"{what} WHERE user_id = {key} ORDER BY 1".encode()).fetchall()


def test_rows_of_a_root_that_is_listed_before_the_one_it_refers_to_survive_its_cascade(
    shards: Shards, router: Router, keys: tuple[int, int]
) -> None:
    old, new = keys
    on_both(
        shards,
        "ALTER TABLE orders ADD FOREIGN KEY (user_id, n) REFERENCES items ON DELETE CASCADE",
    )
    with router.transaction("orders", old) as connection:
        for n in range(3):
            connection.execute("INSERT INTO items VALUES (%s, %s, 'an item')", (old, n))
            connection.execute("INSERT INTO orders VALUES (%s, %s, 'an order')", (old, n))
    assert router.rekey("orders", old, new) == 6
    assert rows(shards, router, new, "SELECT n, note FROM orders") == [(n, "an order") for n in range(3)]
    assert rows(shards, router, new, "SELECT n, note FROM items") == [(n, "an item") for n in range(3)]
    assert [shards.count(old), shards.count(old, "items")] == [0, 0]


def test_values_arrive_in_their_own_columns_whatever_their_order_there(
    shards: Shards, router: Router, keys: tuple[int, int]
) -> None:
    old, new = keys
    here, there = (shards.node(router.locate("orders", key).node) for key in keys)
    here.execute("ALTER TABLE orders ADD COLUMN price int, ADD COLUMN amount int")
    there.execute("ALTER TABLE orders ADD COLUMN amount int, ADD COLUMN price int")
    with router.transaction("orders", old) as connection:
        connection.execute("INSERT INTO orders (user_id, n, price, amount) VALUES (%s, 1, 7, 1000)", (old,))
    assert router.rekey("orders", old, new) == 1
    assert rows(shards, router, new, "SELECT price, amount FROM orders") == [(7, 1000)]


ODD = {
    "day": ("date", "2026-03-04"),
    "ratio": ("float8", "0.1000000000000000055511151231257827"),
    "third": ("float4", "0.33333334"),
    "bits": ("bytea", "\\x00ff27"),
    "moment": ("timestamptz", "2026-03-04 05:06:07.891011+05:30"),
    "span": ("interval", "1 year 2 mons -3 days 04:05:06.7"),
    "parts": ("text[]", '{"a,\\"b",NULL,"NULL",""}'),
    "pair": ("json", '{"a" : 1,  "a": [null]}'),
    "fixed": ("char(5)", "ab"),
    "empty": ("text", ""),
    "nothing": ("text", None),
    "odd": ("text", "%s {} \\N ,(')"),
}


def test_odd_values_pass_between_nodes_of_different_settings(
    shards: Shards, router: Router, keys: tuple[int, int]
) -> None:
    old, new = keys
    here, there = (router.locate("orders", key).node for key in keys)
    on_both(shards, *(f"ALTER TABLE orders ADD COLUMN {name} {kind}" for name, (kind, _) in ODD.items()))
    names, marks = ", ".join(ODD), ", ".join(["%s"] * len(ODD))
    odd = [value for _, value in ODD.values()]
    mine = {"datestyle": "SQL, DMY", "extra_float_digits": "0", "intervalstyle": "sql_standard"}
    yours = {"datestyle": "German", "bytea_output": "escape", "timezone": "Asia/Tokyo"}
    shown = f"SELECT n, {', '.join(f'{name}::text' for name in ODD)} FROM orders"
    with settings(shards, here, **mine), settings(shards, there, **yours):
        with psycopg.connect(shards.dsns[here], autocommit=True) as connection:
            connection.execute("SET datestyle TO ISO; SET extra_float_digits TO 1")
            statement = f"INSERT INTO orders (user_id, n, {names}) VALUES (%s, 1, {marks})"
            connection.execute(statement.encode(), (old, *odd))
        shards.node(here).execute("SET timezone TO 'UTC'; SET intervalstyle TO postgres; SET bytea_output TO hex")
        shards.node(there).execute("SET timezone TO 'UTC'; SET intervalstyle TO postgres; SET bytea_output TO hex")
        before = rows(shards, router, old, shown)
        assert router.rekey("orders", old, new) == 1
        assert rows(shards, router, new, shown) == before
        assert shards.count(old) == 0


@pytest.mark.parametrize(
    ("when", "body"),
    [
        ("INSERT", "NEW.note := 'changed'; RETURN NEW"),
        ("INSERT", "RETURN NULL"),
        ("DELETE", "RETURN NULL"),
    ],
)
def test_what_a_trigger_would_change_or_keep_is_refused_and_nothing_has_changed(
    shards: Shards, router: Router, keys: tuple[int, int], when: str, body: str
) -> None:
    old, new = keys
    with router.transaction("orders", old) as connection:
        connection.execute("INSERT INTO orders VALUES (%s, 1, 'mine')", (old,))
    on_both(
        shards,
        f"CREATE OR REPLACE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; END $$",
        f"CREATE TRIGGER odd BEFORE {when} ON orders FOR EACH ROW EXECUTE FUNCTION odd()",
    )
    with pytest.raises(Refused, match="nothing was changed"):
        router.rekey("orders", old, new)
    assert [shards.count(old), shards.count(new)] == [1, 0]
    on_both(shards, "DROP FUNCTION odd CASCADE")


def test_a_column_that_the_other_node_lacks_is_named(shards: Shards, router: Router, keys: tuple[int, int]) -> None:
    old, new = keys
    shards.node(router.locate("orders", old).node).execute("ALTER TABLE orders ADD COLUMN fresh int")
    with pytest.raises(Refused, match=r"different columns on the two nodes \(fresh\)"):
        router.rekey("orders", old, new)
