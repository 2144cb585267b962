"""Checksums agree between servers of different versions and settings exactly when the rows do."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.migration.comparison import compare_bulk, rows_of
from balancer.migration.retries import Difference
from balancer.naming import Name
from balancer.nodes.catalog.shapes import read_shape
from balancer.nodes.session.connection import Address, Connection, pin_output
from balancer.nodes.tablets.checksum import Rows, digest
from tests.support.opening import connect
from tests.support.servers import Database

TYPES = """
    CREATE TYPE mood AS ENUM ('poor', 'fine');
    CREATE TYPE pair AS (one int, other mood);
    CREATE TABLE things (
        id bigint PRIMARY KEY, small smallint, word text, padded char(8), short varchar(20), price money,
        number numeric, real float8, single float4, day date, at timestamptz, lasts interval, raw bytea,
        document jsonb, plain json, how mood, couple pair, many mood[], numbers int[], flags bit(5), place point,
        net inet, key uuid, twice bigint GENERATED ALWAYS AS (id * 2) STORED
    )
"""
ROW = """
    INSERT INTO things SELECT i, i % 100, 'Straße ' || i, 'pad', 'short' || i, i::money, i / 3.0, i / 7.0, i / 11.0,
        date '2026-01-01' + (i % 365)::int, timestamptz '2026-03-29 01:30:00+01' + i * interval '1 minute',
        i * interval '1 hour', decode(md5(i::text), 'hex'), jsonb_build_object('i', i), '{"b": 1,  "a": 2}',
        CASE i % 2 WHEN 0 THEN 'poor' ELSE 'fine' END::mood, ROW(i, 'fine')::pair, '{fine,poor}', ARRAY[i, i + 1],
        (i % 32)::int::bit(5), point(i, -i), ('10.0.0.' || i % 250)::inet, md5(i::text)::uuid
    FROM generate_series(1, 500) AS row (i)
"""
SETTINGS = (
    "timezone = 'Asia/Tokyo'",
    "datestyle = 'German'",
    "intervalstyle = 'iso_8601'",
    "bytea_output = 'escape'",
    "extra_float_digits = -3",
)


@pytest.fixture
def sides(
    postgres15: PostgresServer, postgres18: PostgresServer, database: Callable[[PostgresServer], Database]
) -> Iterator[tuple[Connection, Connection]]:
    with ExitStack() as stack:
        opened = []
        for server, order in ((postgres15, "row.i"), (postgres18, "row.i DESC")):
            made = database(server)
            with made.connect() as connection:
                if server is postgres18:
                    connection.execute("CREATE TYPE other AS ENUM ('x')")  # so that no two oids are the same
                    for setting in SETTINGS:
                        connection.execute(f'ALTER DATABASE "{made.name}" SET {setting}')
                connection.execute(TYPES)
                connection.execute(f"{ROW} ORDER BY {order}")
            link = stack.enter_context(connect(Address("x", made.dsn)))
            pin_output(link)
            link.execute("SET search_path TO public")  # the test writes over it too
            opened.append(link)
        yield opened[0], opened[1]


def things(connection: Connection) -> Rows:
    with connection.cursor() as cursor:
        return rows_of(read_shape(cursor, Name("public", "things")))


def compare(sides: tuple[Connection, Connection]) -> int:
    rows = things(sides[0])
    found = [digest(side, rows, 3, lambda _: None) for side in sides]
    return compare_bulk(sides[0], sides[1], rows, found[0], found[1])


def test_equal_rows_have_equal_checksums_in_any_order_on_any_version(sides: tuple[Connection, Connection]) -> None:
    assert compare(sides) == 500


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE things SET how = 'poor' WHERE id = 77",
        "UPDATE things SET word = upper(word) WHERE id = 77",
        "UPDATE things SET number = number + 0.0000001 WHERE id = 77",
        'UPDATE things SET plain = \'{"b": 1, "a": 2}\' WHERE id = 77',
        "UPDATE things SET lasts = NULL WHERE id = 77",
        "UPDATE things SET word = short, short = word WHERE id = 77",
        "UPDATE things SET small = NULL WHERE id = 77",
        "UPDATE things SET key = NULL WHERE id = 77",
        "UPDATE things SET many = '{poor,fine}' WHERE id = 77",
        "DELETE FROM things WHERE id = 77",
    ],
)
def test_a_row_that_differs_is_named(sides: tuple[Connection, Connection], change: str) -> None:
    sides[1].execute(change)
    with pytest.raises(Difference, match=r"begin with \(77\)"):
        compare(sides)


def test_values_that_changed_places_between_rows_are_seen(sides: tuple[Connection, Connection]) -> None:
    sides[1].execute(
        "UPDATE things SET word = other.word FROM things AS other"
        " WHERE (things.id, other.id) IN (VALUES (77, 78), (78, 77))"
    )
    with pytest.raises(Difference, match=r"begin with \(77\), \(78\)"):
        compare(sides)


def test_a_row_too_many_is_named(sides: tuple[Connection, Connection]) -> None:
    sides[1].execute("INSERT INTO things (id) VALUES (9999)")
    with pytest.raises(Difference, match=r"500 rows there, 501 in the copy.*\(9999\)"):
        compare(sides)
