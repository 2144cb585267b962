"""An import follows changes by their keys. Of an extension's type two keys may be equal that are not the same."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from balancer.directory.contract import Directory
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from tests.support.self_sharded import TABLETS, importer
from tests.support.servers import Database

# Each the same by its type's own equality, or equal and not the same as text.
KINDS = {
    "citext": ("'Ann'", "'ANN'"),
    "mail": ("'Ann'", "'ANN'"),
    "hstore": ("'a=>1'", "'a=>2'"),
    "ltree": ("'a.b'", "'a.c'"),
    'text COLLATE "insensitive"': ("'Ann'", "'ANN'"),
    "numeric": ("1.0", "1.00"),
}


@pytest.fixture
def dsns(postgres15: PostgresServer, database: Callable[[PostgresServer], Database]) -> dict[str, str]:
    """Extensions are where the system's own server is."""
    return {node: database(postgres15).dsn for node in "ab"}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as opened:
        yield opened


def rows(dsns: dict[str, str]) -> list[tuple[object, ...]]:
    found = []
    for dsn in dsns.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            found += connection.execute("SELECT id, k::text, n FROM orders").fetchall()
    return sorted(found)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_key_that_changes_into_one_like_it_is_followed(directory: Directory, dsns: dict[str, str], kind: str) -> None:
    before, after = KINDS[kind]
    for number, dsn in enumerate(dsns.values()):
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE EXTENSION ltree;"
                "CREATE DOMAIN mail AS citext;"
                "CREATE COLLATION insensitive (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
            )
            connection.execute(f"CREATE TABLE orders (id bigint, k {kind}, n int, PRIMARY KEY (id, k))".encode())
            connection.execute(
                f"INSERT INTO orders SELECT i, {before}, 0 FROM generate_series({number}, 60, 2) i".encode()
            )

    def observe(step: str) -> None:
        if step == "follow":
            for dsn in dsns.values():
                with psycopg.connect(dsn, autocommit=True) as connection:
                    connection.execute(f"UPDATE orders SET k = {after} WHERE id % 3 = 0".encode())
                    connection.execute("UPDATE orders SET n = 7 WHERE id % 3 = 1")
                    connection.execute(f"UPDATE orders SET k = {after}, n = 8 WHERE id % 15 = 5".encode())

    with importer(directory, dsns, observe) as work:
        work.run(TABLETS, ())
    with psycopg.connect(dsns["a"], autocommit=True) as connection:
        shown = [connection.execute(f"SELECT ({one}::{kind})::text".encode()).fetchone() for one in (before, after)]
    (was,), (became,) = [one for one in shown if one is not None]
    wanted = []
    for number in range(61):
        changed = number % 3 == 0 or number % 15 == 5
        n = 8 if number % 15 == 5 else 7 if number % 3 == 1 else 0
        wanted.append((number, became if changed else was, n))
    assert rows(dsns) == wanted
