"""Killed at any step, a conversion goes on or is taken back: rows are there all the time, and nothing is half done."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Node
from balancer.embedded.postgres import PostgresServer
from balancer.features.convert.run import convert, unconvert
from balancer.nodes.session.connection import Address, Connection, connect
from tests.support.converting import Shop, dump, request_of, workplace
from tests.support.forked import run_forked
from tests.support.running import until
from tests.support.sampling import sampled
from tests.support.servers import Database

RECORDS = [Node("a", "shop", "postgresql:///shop")]
FORTH = [
    "root of public.orders",
    "check of public.orders",
    "root of public.items",
    "check of public.items",
    "swap",
    "foreign key of_parent",
    "root's foreign key of_parent",
    "foreign key of_order",
    "root's foreign key of_order",
    "view public.lines",
    "name of view public.lines",
    "view public.totals",
    "name of view public.totals",
    "adopt",
]
BACK = [
    "directory",
    "swap back",
    "foreign key of_parent",
    "foreign key of_order",
    "view public.lines",
    "name of view public.lines",
    "view public.totals",
    "name of view public.totals",
    "empty roots",
]


@pytest.fixture
def node(shop: Shop) -> Iterator[Connection]:
    with connect(Address("a", shop.database.dsn), purpose="test") as connection:
        yield connection


def killed(way: str, directory: str, database: Database, step: str) -> list[str]:
    """The steps that the process told of before it was killed at this one."""
    done = run_forked("tests.support.converting", way, directory, database.dsn, step)
    assert done.returncode == (-9 if step else 0), done.stderr
    return done.stdout.splitlines()


def check_rows(shop: Shop) -> None:
    """Every row is there by the table's name, and the tables take new ones."""
    with shop.database.connect() as connection, connection.transaction(force_rollback=True):
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (200,)
        assert connection.execute("SELECT n FROM of_cheap").fetchone() == (90,)
        assert connection.execute("SELECT count(*) FROM totals").fetchone() == (10,)
        made = connection.execute("INSERT INTO orders (user_id) VALUES (3) RETURNING id").fetchone()
        assert made is not None
        connection.execute("INSERT INTO items VALUES (3, %s, 2, 'more')", made)


def test_every_step_is_told(shop: Shop, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/directory.db"
    assert killed("convert", url, shop.database, "") == FORTH
    assert killed("unconvert", url, shop.database, "") == BACK


@pytest.mark.parametrize("step", sampled(FORTH, 4, "forth"))
def test_a_conversion_that_was_killed_goes_on_or_is_taken_back(
    shop: Shop, node: Connection, directory: Directory, tmp_path: Path, step: str
) -> None:
    url = f"sqlite://{tmp_path}/directory.db"
    plain = dump(shop.database)
    killed("convert", url, shop.database, step)
    check_rows(shop)
    unconvert(request_of(), directory, {"a": node}, workplace=workplace())
    assert dump(shop.database).splitlines() == plain.splitlines()
    killed("convert", url, shop.database, step)
    done = convert(request_of(), directory, {"a": node}, RECORDS, "shop", workplace=workplace())
    assert [tablet.partitions for tablet in done.adopted.tablets] == [("orders_t0", "items_t0")]
    check_rows(shop)
    unconvert(request_of(), directory, {"a": node}, workplace=workplace())
    assert dump(shop.database).splitlines() == plain.splitlines()


@pytest.mark.parametrize("step", sampled(BACK, 3, "back"))
def test_a_way_back_that_was_killed_goes_on(
    shop: Shop, node: Connection, directory: Directory, tmp_path: Path, step: str
) -> None:
    plain = dump(shop.database)
    convert(request_of(), directory, {"a": node}, RECORDS, "shop", workplace=workplace())
    killed("unconvert", f"sqlite://{tmp_path}/directory.db", shop.database, step)
    check_rows(shop)
    unconvert(request_of(), directory, {"a": node}, workplace=workplace())
    assert dump(shop.database).splitlines() == plain.splitlines()


def test_an_index_that_was_left_half_built_is_built_again(
    any_postgres: PostgresServer, database: Callable[[PostgresServer], Database], directory: Directory
) -> None:
    fresh = database(any_postgres)
    wanted = request_of("orders", key="user_id")
    with fresh.connect() as connection, fresh.connect(autocommit=False) as open_one:
        connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, user_id bigint NOT NULL)")
        connection.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, 100) AS n")
        open_one.execute("UPDATE orders SET user_id = 1 WHERE id = 1")  # the index waits for its end

        def work() -> None:
            build = "CREATE UNIQUE INDEX CONCURRENTLY orders_t0_pkey ON orders (id, user_id)"
            with fresh.connect() as doomed:
                doomed.execute("SET application_name TO doomed")
                with pytest.raises(psycopg.Error):
                    doomed.execute(build)

        thread = threading.Thread(target=work)
        thread.start()
        waiting = "SELECT count(*) FROM pg_index WHERE indexrelid = to_regclass('orders_t0_pkey') AND NOT indisvalid"
        until(lambda: connection.execute(waiting).fetchone() == (1,), "the index is begun")
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ 'doomed'")
        thread.join(60)
        open_one.commit()
        assert connection.execute(waiting).fetchone() == (1,)
        with connect(Address("a", fresh.dsn), purpose="test") as node:
            convert(wanted, directory, {"a": node}, RECORDS, "shop", workplace=workplace(), widen=True)
        assert connection.execute("SELECT count(*) FROM pg_index WHERE NOT indisvalid").fetchone() == (0,)
        key = (
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'orders'::regclass AND contype = 'p'"
        )
        assert connection.execute(key).fetchone() == ("PRIMARY KEY (id, user_id)",)
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute("INSERT INTO orders VALUES (5, 5)")
