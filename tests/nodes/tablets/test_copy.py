"""Rows travel from server to server whole, and whatever ends a copy early leaves nothing on the target."""

from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg import sql

from balancer.embedded.postgres import PostgresServer
from balancer.naming import Name
from balancer.nodes.session.connection import Address, Connection
from balancer.nodes.tablets.copy import BLOCK, Copied, copy_rows, statements
from tests.support.opening import connect
from tests.support.servers import Database

ROWS = "CREATE TABLE rows (id bigint PRIMARY KEY, note text)"
PLACE = Name("public", "rows")


@pytest.fixture
def sides(
    postgres15: PostgresServer, postgres18: PostgresServer, database: Callable[[PostgresServer], Database]
) -> Iterator[tuple[Connection, Connection]]:
    first, second = (Address("a", database(postgres15).dsn), Address("b", database(postgres18).dsn))
    with closing(connect(first)) as a, closing(connect(second)) as b:
        a.execute(ROWS)
        b.execute(ROWS)
        yield a, b


def fill(connection: Connection, rows: int, width: int) -> None:
    connection.execute("INSERT INTO rows SELECT i, repeat('x', %s) FROM generate_series(1, %s) AS i", (width, rows))


def run(sides: tuple[Connection, Connection], on_block: Callable[[int], None], binary: bool = True) -> Copied:
    read, write = statements(PLACE, PLACE, ["id", "note"], binary)
    return copy_rows(sides[0], sides[1], read, write, on_block)


def summary(connection: Connection) -> object:
    return connection.execute("SELECT count(*), sum(id), sum(length(note)) FROM rows").fetchone()


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(0, 0), (1, 0), (30_000, 200), (3, 3 * BLOCK)])
def test_all_rows_arrive(sides: tuple[Connection, Connection], rows: int, width: int, binary: bool) -> None:
    fill(sides[0], rows, width)
    blocks: list[int] = []
    copied = run(sides, blocks.append, binary)
    assert copied == Copied(rows, sum(blocks))
    assert summary(sides[0]) == summary(sides[1])  # and both connections can be used again


def test_what_the_target_refuses_is_raised_as_it_is(sides: tuple[Connection, Connection]) -> None:
    fill(sides[0], 10_000, 100)
    sides[1].execute("INSERT INTO rows VALUES (9999, '')")
    with pytest.raises(psycopg.errors.UniqueViolation, match="target"):
        run(sides, lambda _: None)
    assert sides[1].execute("SELECT count(*) FROM rows").fetchone() == (1,)


def test_what_the_source_refuses_leaves_nothing_on_the_target(sides: tuple[Connection, Connection]) -> None:
    fill(sides[0], 10_000, 100)
    _, write = statements(PLACE, PLACE, ["id", "note"], True)
    broken = sql.SQL("COPY (SELECT 1 / (id - 9000), note FROM rows) TO STDOUT (FORMAT binary)").format()
    with pytest.raises(psycopg.errors.DivisionByZero, match="source"):
        copy_rows(sides[0], sides[1], broken, write, lambda _: None)
    assert sides[1].execute("SELECT count(*) FROM rows").fetchone() == (0,)


def test_a_cancel_leaves_nothing_on_the_target(sides: tuple[Connection, Connection]) -> None:
    fill(sides[0], 30_000, 200)
    seen: list[int] = []

    def stop_at_the_third(size: int) -> None:
        seen.append(size)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(sides, stop_at_the_third)
    assert sides[1].execute("SELECT count(*) FROM rows").fetchone() == (0,)


def test_a_lost_source_ends_it(sides: tuple[Connection, Connection], postgres15: PostgresServer) -> None:
    fill(sides[0], 200_000, 200)
    pid = sides[0].info.backend_pid

    def kill(_: int) -> None:
        with psycopg.connect(postgres15.dsn(), autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (pid,))

    with pytest.raises(psycopg.OperationalError):
        run(sides, kill)
    assert sides[1].execute("SELECT count(*) FROM rows").fetchone() == (0,)
