"""A blocking session's transaction begins with its first statement, and nothing comes before the proof."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from balancer.client import PoolSettings, Router
from balancer.client.sqlalchemy import session
from balancer.client.sqlalchemy_engines import NodeEngines
from balancer.errors import Unavailable
from tests.client.test_sqlalchemy import Order, numbers
from tests.support.shards import Shards, user_of

pytestmark = pytest.mark.always


@pytest.fixture
def router(shards: Shards) -> Iterator[Router]:
    """One connection to each node: what is left behind on it meets the next session."""
    with Router.connect(shards.url, PoolSettings(size=1), samples=False) as opened:
        yield opened


def driver_of(orders: Session) -> Any:
    """psycopg's connection; to ask for it is no statement."""
    return orders.connection().connection.dbapi_connection


def _mapped(orders: Session, user: int) -> None:
    orders.add(Order(user_id=user, n=1))
    orders.flush()


def _several(orders: Session, user: int) -> None:
    orders.execute(insert(Order), [{"user_id": user, "n": n} for n in (1, 2)])


def _nested(orders: Session, user: int) -> None:
    with orders.begin_nested():
        _mapped(orders, user)


def _plain(orders: Session, user: int) -> None:
    orders.connection().exec_driver_sql(f"INSERT INTO orders VALUES ({user}, 1)")


def _streamed(orders: Session, user: int) -> None:
    found = orders.execute(select(Order.n).where(Order.user_id == user), execution_options={"stream_results": True})
    assert found.all() == []
    _mapped(orders, user)


def _driver(orders: Session, user: int) -> None:
    driver_of(orders).execute("INSERT INTO orders VALUES (%s, 1)", (user,))


def _raw(orders: Session, user: int) -> None:
    driver_of(orders).pgconn.exec_(f"INSERT INTO orders VALUES ({user}, 1)".encode())


WAYS = {
    "mapped": _mapped,
    "several": _several,
    "savepoint": _nested,
    "text": _plain,
    "server cursor": _streamed,
    "driver": _driver,
    "pgconn": _raw,
}


def database(orders: Session) -> object:
    return orders.scalar(text("SELECT current_database()"))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_whatever_comes_first_is_proven_and_follows_the_tablet(
    shards: Shards, router: Router, way: Callable[[Session, int], None]
) -> None:
    user, neighbour = (
        user_of(shards, 1),
        next(user_of(shards, one.id) for one in shards.tablets() if one.node == "pg-a" and one.id != 1),
    )
    names = {node: shards.node(node).info.dbname for node in shards.dsns}
    with session(router, "orders", user) as orders:
        orders.connection()
        shards.switch(1, "pg-b")  # the session has borrowed a connection to pg-a, and said nothing yet
        way(orders, user)
        assert driver_of(orders).location == ("pg-b", 1, 2)
    assert len(shards.node("pg-b").execute("SELECT FROM orders WHERE user_id = %s", (user,)).fetchall()) >= 1
    for _ in range(2):  # what went to another node has not come back to this one's pool
        for key, node in ((neighbour, "pg-a"), (user, "pg-b")):
            with session(router, "orders", key) as orders:
                assert database(orders) == names[node]
    assert router.counters.values()["moved"] >= 1, "the proof was refused"


def test_begin_proof_and_statement_are_one_message(shards: Shards, router: Router, tmp_path: Path) -> None:
    user = user_of(shards, 1)
    for number in range(8):  # past psycopg's threshold for preparing
        with session(router, "orders", user) as orders:
            orders.add(Order(user_id=user, n=number))
    with (tmp_path / "trace").open("w+b") as file:
        with session(router, "orders", user) as orders:
            pgconn = driver_of(orders).opening.pgconn
            pgconn.trace(file.fileno())
            orders.add(Order(user_id=user, n=99))
        pgconn.untrace()
        file.seek(0)
        lines = [line.split(b"\t") for line in file.read().splitlines()]
    # Of what the client (F) has said, a server answers to Sync, and to Query.
    asked = [line[3] for line in lines if line[1] == b"F" and line[3] in (b"Sync", b"Query")]
    assert asked == [b"Sync", b"Query"]
    assert [line[3] for line in lines if line[1] == b"F"].count(b"Execute") == 3
    assert len(numbers(shards, user)) == 9


def test_what_never_began_leaves_no_trace(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)

    def work() -> None:
        with session(router, "orders", user) as orders:
            orders.connection()
            raise ZeroDivisionError

    shards.fence(1, seconds=30)  # nobody asks, so nobody is refused
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            work()
    shards.lift(1)
    with session(router, "orders", user) as orders:
        _mapped(orders, user)
    assert numbers(shards, user) == [1]


def test_a_session_without_a_statement_is_proven(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    shards.fence(1, seconds=30)
    with (
        pytest.raises(Unavailable, match="still being moved"),
        session(router, "orders", user, patience=0.1) as orders,
    ):
        orders.connection()


def test_after_a_refusal_nothing_more_is_run(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    shards.fence(1, seconds=30)
    with session(router, "orders", user, patience=0.1) as orders:
        for _ in range(2):
            with pytest.raises((Unavailable, DBAPIError)):
                orders.connection().exec_driver_sql("SELECT 1")
        orders.rollback()
        shards.lift(1)
        _mapped(orders, user)
    assert numbers(shards, user) == [1]


def test_a_connection_that_broke_before_the_first_statement_is_replaced(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    with session(router, "orders", user) as orders:
        orders.execute(text("SELECT 1"))
        orders.commit()
        backend = driver_of(orders).opening.pgconn.backend_pid
        shards.node("pg-a").execute("SELECT pg_terminate_backend(%s, 1000)", (backend,))
        _mapped(orders, user)
    assert numbers(shards, user) == [1]
    engines = router.attachments.get(NodeEngines, lambda _: pytest.fail("there are none"))
    assert engines.engine("pg-a").pool.checkedout() == 0  # type: ignore[attr-defined]
