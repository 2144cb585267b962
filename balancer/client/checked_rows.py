"""Notices statements about keys of other tablets: transactions with `checked=True`, as in an application's tests.

A statement on a node sees that node's rows and says nothing about the others. Two things reveal its keys. Keys that it
names in its conditions are looked up before it is sent (`named_keys`). And of the rows that come back, those columns
that PostgreSQL says are the key of one of the table's roots, or of their partitions, are looked up as well. What
neither shows is not noticed: a condition on other columns, a write without RETURNING, a key of several columns in a
condition.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.adapt import Transformer
from psycopg.rows import tuple_row

from balancer.client.key_hints import elsewhere, relation_names, text_of
from balancer.client.locate import AnyKey, Location
from balancer.client.named_keys import named_keys
from balancer.client.routing import Routes
from balancer.client.transaction_steps import Held
from balancer.directory.model import Table
from balancer.errors import UserError

COLUMNS = sql.SQL(
    """
SELECT a.attrelid::int8, a.attnum::int4, a.attname FROM pg_catalog.pg_attribute a
JOIN pg_catalog.unnest({roots}::text[]) AS root (name) ON true
JOIN pg_catalog.pg_partition_tree(pg_catalog.to_regclass(root.name)) AS part ON part.relid = a.attrelid
WHERE a.attname = ANY({columns}::text[]) AND NOT a.attisdropped
"""
)
"""Where the key's columns are, in the roots and the partitions of this node."""


class WrongKey(UserError):
    """A statement is about a key that this block is not for."""


class KeyGuard:
    """What one block is for, and what its statements are about."""

    def __init__(self, routes: Routes, table: str, key: AnyKey, held: Held) -> None:
        self._routes = routes
        self._table: Table = routes.snapshot.table(table)
        self._key = key
        self._location: Location = held.location
        self.connection: Any = held.loan.connection
        self._columns: dict[tuple[int, int], int] = {}

    @property
    def question(self) -> sql.Composed:
        """The first question to the node; `learn` takes the answer."""
        names = [column.name for column in self._table.key_columns]
        return COLUMNS.format(roots=sql.Literal(list(self._table.roots)), columns=sql.Literal(names))

    def learn(self, rows: Iterable[Sequence[Any]]) -> None:
        """Which columns of which relations are the key."""
        names = [column.name for column in self._table.key_columns]
        self._columns = {(int(relation), int(number)): names.index(name) for relation, number, name in rows}

    def check_statement(self, statement: str, values: Any) -> None:
        """Raises `WrongKey` if a statement names a key of another tablet."""
        columns = self._table.key_columns
        if len(columns) == 1:
            relations = relation_names(self._table.roots)
            for key in named_keys(statement, values, columns[0].name, columns[0].type, relations):
                self._check(key)

    def check_result(self, cursor: Any) -> None:
        """Raises `WrongKey` if a returned row belongs to another tablet."""
        result = cursor.pgresult
        if result is None or not result.ntuples or not self._columns:
            return
        places: dict[int, int] = {}
        for column in range(result.nfields):
            place = self._columns.get((result.ftable(column), result.ftablecol(column)))
            if place is not None:
                places.setdefault(place, column)
        if len(places) < len(self._table.key_columns):
            return
        loaders = Transformer(cursor.connection)
        read = [
            loaders.get_loader(result.ftype(places[place]), result.fformat(places[place])).load
            for place in range(len(places))
        ]
        seen = set()
        for row in range(result.ntuples):
            raw = tuple(result.get_value(row, places[place]) for place in range(len(places)))
            if raw not in seen and None not in raw:
                seen.add(raw)
                self._check(tuple(load(part) for load, part in zip(read, raw, strict=True)))

    def _check(self, key: Any) -> None:
        try:
            found = self._routes.locate(self._table.name, key)
        except UserError:
            return  # not a key of this table: PostgreSQL says what is wrong with it
        if found.tablet == self._location.tablet:
            return
        raise WrongKey(elsewhere(key, found, self._key, self._location))


class CheckedCursor(psycopg.Cursor[Any]):
    """A cursor whose statements are checked."""

    guard: KeyGuard

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        self.guard.check_statement(text_of(query, self.connection), params)
        super().execute(query, params, **options)
        self.guard.check_result(self)
        return self

    def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
        all_params = list(params_seq)
        text = text_of(query, self.connection)
        for params in all_params:
            self.guard.check_statement(text, params)
        super().executemany(query, all_params, **options)


class AsyncCheckedCursor(psycopg.AsyncCursor[Any]):
    """The same for asyncio."""

    guard: KeyGuard

    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        self.guard.check_statement(text_of(query, self.connection), params)
        await super().execute(query, params, **options)
        self.guard.check_result(self)
        return self

    async def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
        all_params = list(params_seq)
        text = text_of(query, self.connection)
        for params in all_params:
            self.guard.check_statement(text, params)
        await super().executemany(query, all_params, **options)


@contextmanager
def guarded(guard: KeyGuard) -> Iterator[None]:
    """Checks the block's statements, but not those of the connection's next user."""
    guard.learn(guard.connection.cursor(row_factory=tuple_row).execute(guard.question).fetchall())
    with _cursors(guard, CheckedCursor):
        yield


@asynccontextmanager
async def guarded_async(guard: KeyGuard) -> AsyncIterator[None]:
    """The same for asyncio."""
    guard.learn(await (await guard.connection.cursor(row_factory=tuple_row).execute(guard.question)).fetchall())
    with _cursors(guard, AsyncCheckedCursor):
        yield


@contextmanager
def _cursors(guard: KeyGuard, kind: type[Any]) -> Iterator[None]:
    connection = guard.connection
    before, connection.cursor_factory = connection.cursor_factory, type(kind.__name__, (kind,), {"guard": guard})
    try:
        yield
    finally:
        connection.cursor_factory = before
