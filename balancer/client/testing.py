"""For an application's unit tests: a router on one database, without a directory, a daemon or tablets.

    tables = tomllib.loads(Path("bundles/shop.toml").read_text())["tables"]
    with one_database("postgresql:///test", tables) as router:
        place_order(router, user_id=7)

It is the same router: the tables are those of the bundle's file, keys are checked as always, and `map`, `atomic` or
`copy_into` work. Only the proof of ownership is left out, because the database lacks our schema; its tables
may be plain ones. What happens while tablets move is tested on `PracticeCluster`, two real nodes, which comes with
the daemon's distribution (the pytest fixture `balancer_cluster`).
"""

import importlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from balancer.client.async_router import AsyncRouter
from balancer.client.keys.routes import Routes
from balancer.client.router import Router
from balancer.client.transaction.pools import PoolSettings
from balancer.directory.contract import Directory
from balancer.directory.invariants import TABLET_COUNTER
from balancer.directory.model import (
    Bundle,
    Counter,
    KeyColumn,
    Layout,
    Node,
    Put,
    RangeBounds,
    Record,
    Table,
    Tablet,
    Transaction,
)
from balancer.directory.open import open_directory
from balancer.errors import UserError
from balancer.naming import parse_name
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import KeyType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from balancer.testing.practice import PracticeCluster as PracticeCluster

NODE = "the-one-database"
_TYPES = """
    SELECT a.attname, format_type(a.atttypid, NULL) FROM pg_attribute a
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
"""


def __getattr__(name: str) -> Any:
    if name == "PracticeCluster":
        try:
            return importlib.import_module("balancer.testing.practice").PracticeCluster
        except ModuleNotFoundError as error:
            raise UserError(
                f"a practice cluster needs the daemon: pip install 'tablet-balancer[embedded]' ({error})"
            ) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@contextmanager
def one_database(
    dsn: str, tables: Mapping[str, Mapping[str, Any]], pools: PoolSettings | None = None
) -> Iterator[Router]:
    """A router whose one node is this database and owns every key.

    `tables`: what a bundle's file has under `[tables]`; `roots`, `layout` and `key` are read, the types of the keys
    come from the database.
    """
    with _routes(dsn, tables) as routes, Router(routes, pools, samples=False) as router:
        yield router


@asynccontextmanager
async def one_database_async(
    dsn: str, tables: Mapping[str, Mapping[str, Any]], pools: PoolSettings | None = None
) -> "AsyncIterator[AsyncRouter]":
    """The same for asyncio."""
    with _routes(dsn, tables) as routes:
        async with AsyncRouter(routes, pools, samples=False) as router:
            yield router


class _Unproven(Routes):
    proof = False


@contextmanager
def _routes(dsn: str, tables: Mapping[str, Mapping[str, Any]]) -> Iterator[Routes]:
    """The router closes the directory; its file is removed here."""
    records: list[Record] = [Bundle("testing"), Node(NODE, "testing", dsn), Counter(TABLET_COUNTER, len(tables) + 1)]
    with psycopg.connect(dsn, autocommit=True) as connection:
        for number, (name, words) in enumerate(tables.items(), 1):
            records += _records(connection, number, name, words)
    with tempfile.TemporaryDirectory(prefix="balancer-testing-") as folder:
        directory = open_directory(f"sqlite://{Path(folder).absolute()}/directory.db")
        _fill(directory, records)
        yield _Unproven(directory)


def _fill(directory: Directory, records: list[Record]) -> None:
    version = directory.snapshot().version
    directory.commit(Transaction(tuple(map(Put, records)), version, "one database", "testing"))


def _records(connection: psycopg.Connection[Any], number: int, name: str, words: Mapping[str, Any]) -> list[Record]:
    """A table and its one tablet, whose partitions are the roots themselves."""
    roots = tuple(words.get("roots") or [name])
    layout = _layout(name, words)
    whole = layout in (Layout.WHOLE, Layout.EVERYWHERE)
    types = [dict(connection.execute(_TYPES, (str(parse_name(root)),)).fetchall()) for root in roots]
    for root, found in zip(roots, types, strict=True):
        if not found:
            raise UserError(f"table {name}: the database has no table {root}")
    if whole:  # PostgreSQL's partition columns: any will do, nobody is routed by them
        columns = tuple(KeyColumn(next(iter(found)), KeyType.BIGINT) for found in types)
    else:
        columns = tuple(_key_column(name, roots[0], types[0], column) for column in words.get("key", ()))
    if not columns:
        raise UserError(f"table {name} has no key: give the names of its columns, as the bundle's file does")
    bounds = RangeBounds() if layout is Layout.RANGE else Leaf(1, 0)
    leaves = tuple(parse_name(root).name for root in roots)
    return [
        Table(number, name, "testing", layout, columns, tuple(str(parse_name(root)) for root in roots)),
        Tablet(number, number, bounds, NODE, partitions=leaves),
    ]


def _layout(name: str, words: Mapping[str, Any]) -> Layout:
    word = words.get("layout", "hash")
    if word not in tuple(Layout):
        raise UserError(f"table {name}: layout {word!r} is not known; allowed are {', '.join(Layout)}")
    return Layout(word)


def _key_column(table: str, root: str, types: Mapping[str, str], column: str) -> KeyColumn:
    found = types.get(column)
    if found is None:
        raise UserError(f"table {table}: {root} has no column {column}; it has {', '.join(sorted(types))}")
    if found not in tuple(KeyType):
        raise UserError(f"table {table}: a key cannot be of type {found}; allowed are {', '.join(KeyType)}")
    return KeyColumn(column, KeyType(found))
