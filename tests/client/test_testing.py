"""What applications test with: a router on one database, and two real nodes that move tablets on command."""

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from balancer.client import Isolation, Router
from balancer.client.sqlalchemy import session
from balancer.client.testing import PracticeCluster, one_database, one_database_async
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Refused, UserError
from tests.support.servers import Database, new_database

TABLES: dict[str, dict[str, Any]] = {
    "orders": {"roots": ["public.orders", "public.items"], "layout": "hash", "key": ["user_id"], "tablets": 64},
    "events": {"roots": ["public.events"], "layout": "range", "key": ["day", "id"]},
    "settings": {"roots": ["public.settings"], "layout": "whole"},
}
PLAIN = """
    CREATE TABLE orders (user_id bigint, n bigint, PRIMARY KEY (user_id, n));
    CREATE TABLE items (user_id bigint, n bigint, PRIMARY KEY (user_id, n));
    CREATE TABLE events (day date, id bigint, PRIMARY KEY (day, id));
    CREATE TABLE settings (name text PRIMARY KEY, value text);
"""


@pytest.fixture(scope="module")
def plain(postgres18: PostgresServer) -> Iterator[Database]:
    with new_database(postgres18) as made:
        with made.connect() as connection:
            connection.execute(PLAIN)
        yield made


@pytest.fixture
def one(plain: Database) -> Iterator[Router]:
    with plain.connect() as connection:
        connection.execute("TRUNCATE orders, items, events, settings")
    with one_database(plain.dsn, TABLES) as router:
        yield router


class TestOneDatabase:
    def test_transactions_and_sessions_work_on_plain_tables(self, one: Router) -> None:
        with one.transaction("orders", 7) as connection:
            connection.execute("INSERT INTO orders VALUES (7, 1)")
        with one.transaction("settings") as connection:
            connection.execute("INSERT INTO settings VALUES ('a', 'b')")
        with session(one, "orders", 7) as orders:
            assert orders.scalar(text("SELECT n FROM orders WHERE user_id = 7")) == 1
        with one.transaction("orders", 7, read_only=True, isolation=Isolation.SERIALIZABLE) as connection:
            assert connection.execute("SHOW transaction_isolation").fetchone() == ("serializable",)

    def test_so_do_all_tablets_and_several_keys(self, one: Router) -> None:
        assert one.copy_into("orders", ((user, 1) for user in range(100)), ["user_id", "n"]) == 100
        with one.atomic() as tx:
            tx.on("orders", 1).execute("INSERT INTO orders VALUES (1, 2)")
            tx.on("orders", 2).execute("INSERT INTO orders VALUES (2, 2)")
            tx.on("settings").execute("INSERT INTO settings VALUES ('c', 'd')")
        assert [answer.rows for answer in one.map("orders", "SELECT count(*) FROM {orders}")] == [[(102,)]]
        assert len(list(one.scan("orders", "SELECT user_id FROM {orders}"))) == 102
        assert one.rekey("orders", 1, 1000) == 2
        assert one.ids("orders").next() != one.ids("orders").next()

    def test_keys_are_checked_as_they_always_are(self, one: Router) -> None:
        with pytest.raises(UserError, match="fit"):
            one.locate("orders", "seven")
        with pytest.raises(UserError, match="no table"):
            one.locate("order", 7)
        with pytest.raises(UserError, match="inside a block"), one.transaction("orders", 7) as connection:
            connection.commit()

    def test_with_asyncio(self, plain: Database) -> None:
        async def work() -> object:
            async with one_database_async(plain.dsn, TABLES) as router, router.transaction("orders", 7) as connection:
                return await (await connection.execute("SELECT 1")).fetchone()

        assert asyncio.run(work()) == (1,)

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            ({"roots": ["public.nothing"], "key": ["id"]}, "the database has no table public.nothing"),
            ({"roots": ["public.orders"], "key": ["nobody"]}, "public.orders has no column nobody; it has n, user_id"),
            ({"roots": ["public.orders"]}, "has no key"),
            ({"roots": ["public.orders"], "layout": "list", "key": ["n"]}, "layout 'list' is not known"),
            ({"roots": ['public."or"; DROP'], "key": ["n"]}, "is not a table's name"),
        ],
    )
    def test_a_wrong_table_is_refused_in_a_sentence(
        self, plain: Database, words: dict[str, object], sentence: str
    ) -> None:
        with pytest.raises(UserError, match=sentence), one_database(plain.dsn, {"orders": words}):
            pass

    def test_nothing_of_ours_is_left_in_the_database(self, one: Router, plain: Database) -> None:
        with plain.connect() as connection:
            assert connection.execute("SELECT to_regnamespace('balancer')").fetchone() == (None,)


DEFINITION = "CREATE TABLE orders (user_id bigint, n bigint, PRIMARY KEY (user_id, n)) PARTITION BY HASH (user_id)"


@pytest.fixture
def cluster(balancer_cluster: PracticeCluster) -> PracticeCluster:
    balancer_cluster.create_table("orders", DEFINITION, key=["user_id"])
    return balancer_cluster


class TestPracticeCluster:
    def test_a_tablet_is_moved_in_the_middle_of_a_test(self, cluster: PracticeCluster) -> None:
        with cluster.router() as router:
            with router.transaction("orders", 7) as connection:
                connection.execute("INSERT INTO orders VALUES (7, 1)")
            before = cluster.owner("orders", 7)
            after = cluster.move("orders", 7)
            assert after == cluster.owner("orders", 7) != before
            with router.transaction("orders", 7) as connection:
                assert connection.execute("SELECT n FROM orders WHERE user_id = 7").fetchall() == [(1,)]
        assert cluster.execute(before, "SELECT n FROM orders") == []
        assert cluster.execute(after, "SELECT n FROM orders") == [(1,)]

    def test_a_tablet_moves_while_the_application_works(self, cluster: PracticeCluster) -> None:
        with cluster.router() as router, cluster.moving("orders", 7):
            for n in range(200):
                with router.transaction("orders", 7) as connection:
                    connection.execute("INSERT INTO orders VALUES (7, %s)", (n,))
        assert sum(cluster.execute(node, "SELECT count(*) FROM orders")[0][0] for node in cluster.dsns) == 200

    def test_a_move_inside_an_open_block_of_its_tablet_says_what_is_in_the_way(
        self, cluster: PracticeCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("balancer.testing.practice._ATTEMPTS", 1)
        settings = importlib.import_module("balancer.testing.practice")._SETTINGS
        monkeypatch.setattr("balancer.testing.practice._SETTINGS", replace(settings, fence_attempts=1))
        with cluster.router() as router, router.transaction("orders", 7) as connection:
            connection.execute("SELECT 1")
            with pytest.raises(Refused, match="was not moved"):
                cluster.move("orders", 7)

    def test_whom_one_cannot_move_to(self, cluster: PracticeCluster) -> None:
        with pytest.raises(UserError, match="there is no node pg-x; there are pg-a, pg-b"):
            cluster.move("orders", 7, "pg-x")
        with pytest.raises(UserError, match="there is no node pg-x"):
            cluster.execute("pg-x", "SELECT 1")


def test_each_test_has_a_cluster_of_its_own(balancer_cluster: PracticeCluster) -> None:
    assert balancer_cluster.execute("pg-a", "SELECT to_regclass('orders')") == [(None,)]


def test_without_the_daemons_distribution_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "balancer.testing.practice", None)
    module = importlib.import_module("balancer.client.testing")
    with pytest.raises(UserError, match=r"pip install 'tablet-balancer\[embedded\]'"):
        _ = module.PracticeCluster


def test_a_database_that_is_away_is_the_drivers_error(database: Callable[[PostgresServer], Database]) -> None:
    with pytest.raises(psycopg.OperationalError), one_database("postgresql://nobody@127.0.0.1:1/x", {}):
        pass
