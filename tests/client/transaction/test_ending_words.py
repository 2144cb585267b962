"""No statement of a block ends its transaction, whichever cursor sends it and however its text is written."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL

from balancer.client import PoolSettings, Router
from balancer.client.transaction.wire import ends_transaction
from balancer.errors import UserError
from tests.support.shards import Shards, user_of

pytestmark = pytest.mark.always

ENDING = (
    "COMMIT",
    "; commit",
    "/* /* */ */ COMMIT AND CHAIN",
    "-- so\nROLLBACK",
    "SELECT 1; END",
    "SELECT ';' ; ABORT",
    "SELECT 1 AS a$$ ; COMMIT; SELECT 2 AS b$$",
    "SELECT 1 /* /* */ ; */; COMMIT",
    "SELECT E'\\'; ' ; PREPARE TRANSACTION 'x'",
    'SELECT 1 AS "a;" ; START\nTRANSACTION',
    "BEGIN",
)
GOING_ON = (
    "",
    "SELECT 'COMMIT'; SELECT $$; COMMIT $$; SELECT $a$; COMMIT; $b$; $a$",
    "SELECT commit FROM orders -- ; COMMIT",
    "/* ; COMMIT */ SELECT 1",
    "SAVEPOINT a; ROLLBACK TO a; ROLLBACK WORK TO SAVEPOINT a; RELEASE a",
    "SELECT E'a\\'; COMMIT'",
    'SELECT 1 AS "; COMMIT"',
    "SELECT 1 - 2 / 3",
    "SELECT 'it''s; COMMIT'",
    "PREPARE transactions AS SELECT 1",
)


@pytest.mark.quick
@pytest.mark.parametrize("text", ENDING)
def test_an_end_is_found_wherever_it_stands(text: str) -> None:
    assert ends_transaction(text)


@pytest.mark.quick
@pytest.mark.parametrize("text", GOING_ON)
def test_what_only_looks_like_one_is_none(text: str) -> None:
    assert not ends_transaction(text)


@pytest.fixture
def router(shards: Shards) -> Iterator[Router]:
    with Router.connect(shards.url, PoolSettings(size=1), samples=False) as opened:
        yield opened


def streamed(connection: Any) -> None:
    with suppress(psycopg.ProgrammingError):  # it has no rows
        list(connection.cursor().stream("COMMIT AND CHAIN"))


def by_factory(connection: Any) -> None:
    connection.cursor_factory = psycopg.ClientCursor
    try:
        connection.execute("COMMIT AND CHAIN")
    finally:
        connection.cursor_factory = psycopg.Cursor


def failing_behind_it(connection: Any) -> None:
    with suppress(psycopg.Error):
        connection.execute("COMMIT; BEGIN; SAVEPOINT a; SELECT 1/0")
    connection.execute("ROLLBACK TO a")


def copied(connection: Any) -> None:
    with connection.cursor() as cursor, cursor.copy("COPY (SELECT 1) TO STDOUT; COMMIT AND CHAIN") as copy:
        list(copy)


WAYS: dict[str, Callable[[Any], object]] = {
    "client": lambda connection: psycopg.ClientCursor(connection).execute("COMMIT AND CHAIN"),
    "psycopg's own": lambda connection: psycopg.Cursor(connection).execute("COMMIT AND CHAIN"),
    "raw": lambda connection: psycopg.RawCursor(connection).execute("COMMIT AND CHAIN"),
    "many": lambda connection: connection.cursor().executemany("COMMIT AND CHAIN", [()]),
    "composed": lambda connection: connection.execute(SQL("COMMIT AND {}").format(SQL("CHAIN"))),
    "stream": streamed,
    "factory": by_factory,
    "an error behind it": failing_behind_it,
    "copy": copied,
}


@pytest.mark.parametrize("checked", [False, True], ids=["", "checked"])
@pytest.mark.parametrize("way", WAYS)
def test_no_cursor_of_a_block_sends_it(shards: Shards, router: Router, way: str, checked: bool) -> None:
    """What followed would be committed without proof: the tablet may be on its way to another node."""
    user = user_of(shards, 1)

    def block() -> None:
        with router.transaction("orders", user, checked=checked) as connection:
            connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))
            WAYS[way](connection)
            connection.execute("INSERT INTO orders VALUES (%s, 2)", (user,))

    with pytest.raises(UserError, match="leave COMMIT and ROLLBACK to the router"):
        block()
    assert shards.count(user) == 0
    with router.transaction("orders", user) as connection:
        connection.execute("INSERT INTO orders VALUES (%s, 3)", (user,))
    assert shards.count(user) == 1


@pytest.mark.parametrize("way", ["client", "many"])
def test_no_cursor_of_a_pipelined_transaction_sends_it(shards: Shards, router: Router, way: str) -> None:
    user = user_of(shards, 1)
    with pytest.raises(UserError, match="leave COMMIT and ROLLBACK to the router"):
        router.run("orders", user, WAYS[way], pipelined=True)


@pytest.mark.parametrize("text", [one for one in ENDING if one.startswith("SELECT")])
def test_no_text_of_map_goes_on_after_it(router: Router, text: str) -> None:
    with pytest.raises(UserError, match="leave COMMIT and ROLLBACK to the router"):
        list(router.map("orders", text))
