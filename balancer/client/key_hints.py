"""Hints for a statement about rows of another node: it found nothing, or a row had no partition here.

On a node that does not have a key, SELECT, UPDATE and DELETE find no row, and say nothing. Noticing that no row was
found costs nothing; only then is the statement examined (`named_keys`), and if it names a key that by the map is on
another node, the logger `balancer.client` warns, once for each place in the application's code. Nothing is raised: it
may be intended. `checked=True` raises. Keys are not logged, they may identify people; an INSERT that PostgreSQL refuses
for lack of a partition gets the hint, with its key, as a note on its error.
"""

import re
import sys
from functools import lru_cache
from types import FrameType
from typing import Any

import psycopg
from psycopg import sql

from balancer.client.locate import AnyKey, Location, RowId
from balancer.client.named_keys import named_keys
from balancer.client.open_blocks import LOG
from balancer.client.routing import Routes
from balancer.directory.model import Table
from balancer.errors import UserError
from balancer.outside import quoted
from balancer.policies.key_text import parse_value
from balancer.policies.keys import KeyMismatch
from balancer.relation_names import parse_name

_LIBRARIES = ("balancer.client", "contextlib", "psycopg", "sqlalchemy", "django", "asyncio", "greenlet")
_FAILING_ROW = re.compile(r"\((?P<columns>.+?)\) = \((?P<values>.+)\)")


class BlockHints:
    """What the statements of one block are about. May be asked after each of them."""

    __slots__ = ("_key", "_location", "_routes", "_said", "_table")

    def __init__(self, routes: Routes, table: str, key: AnyKey, location: Location, said: set[tuple[str, int]]) -> None:
        self._routes = routes
        self._table = table
        self._key = key
        self._location = location
        self._said = said

    def found_nothing(self, query: Any, values: Any, connection: Any) -> None:
        """For a statement that touched no row: warns if its key is elsewhere."""
        table = self._routes.snapshot.table(self._table)
        if len(table.key_columns) != 1:
            return
        node = next((node for _, node in self._elsewhere(table, text_of(query, connection), values)), None)
        if node is None:
            return
        frame = _caller(sys._getframe(1))
        place = (frame.f_code.co_filename, frame.f_lineno)
        if place in self._said:
            return
        self._said.add(place)
        LOG.warning(
            "a statement on table %s found no row, and names a key that is on node %s: this block is for tablet %s on"
            " node %s, and sees no rows of other nodes. It was run here (this place is named once): %s, line %s",
            table.name,
            node,
            self._location.tablet,
            self._location.node,
            *place,
        )

    def no_partition(self, error: psycopg.Error) -> None:
        """For a row that has no partition here: adds whose it is."""
        found = _FAILING_ROW.search(error.diag.message_detail or "")
        table = self._routes.snapshot.table(self._table)
        if error.diag.constraint_name or found is None or len(table.key_columns) != 1:
            return
        column = table.key_columns[0]
        if found["columns"] != column.name:
            return
        try:
            key = parse_value(column.type, found["values"])
            there = self._routes.locate(table.name, key)
        except (KeyMismatch, UserError):
            return
        if there.node != self._location.node:
            error.add_note(elsewhere(key, there, self._key, self._location))

    def _elsewhere(self, table: Table, statement: str, values: Any) -> Any:
        relations = relation_names(table.roots)
        column = table.key_columns[0]
        for key in named_keys(statement, values, column.name, column.type, relations):
            try:
                node = self._routes.locate(table.name, key).node
            except UserError:
                continue  # not a key of this table: PostgreSQL says what is wrong with it
            if node != self._location.node:
                yield key, node


@lru_cache(maxsize=256)
def relation_names(roots: tuple[str, ...]) -> frozenset[str]:
    """Roots without their schemas."""
    return frozenset(parse_name(root).name for root in roots)


def elsewhere(key: Any, there: Location, own: AnyKey, here: Location) -> str:
    """The hint for a key of another tablet."""
    where = f"on {there.node}" if there.node != here.node else f"in tablet {there.tablet}"
    return (
        f"key {_words(key)} is {where}, this block is for key {_words(own)} (tablet {here.tablet} on {here.node}):"
        " group keys first (router.group), use atomic, or map"
    )


def text_of(query: Any, connection: Any) -> str:
    """A statement's text as psycopg takes it."""
    if isinstance(query, bytes):
        return query.decode(errors="replace")
    return query.as_string(connection) if isinstance(query, sql.Composable) else str(query)


def _caller(frame: FrameType) -> FrameType:
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_LIBRARIES):
        frame = frame.f_back
    return frame


def _words(key: Any) -> str:
    if isinstance(key, RowId):
        return f"of id {key.id}"
    return quoted(key[0] if isinstance(key, tuple) and len(key) == 1 else key)
