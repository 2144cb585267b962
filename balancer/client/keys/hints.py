"""Hints for a statement about rows of another node: it found nothing, or a row had no partition here.

On a node that does not have a key, SELECT, UPDATE and DELETE find no row, and say nothing. Noticing that no row was
found costs nothing; only then is the statement examined (`hints`), and if it names a key that by the map is on
another node, the logger `balancer.client` warns, once for each place in the application's code. Nothing is raised: it
may be intended. `checked=True` raises. Keys are not logged, they may identify people; an INSERT that PostgreSQL refuses
for lack of a partition gets the hint, with its key, as a note on its error.

The keys that a statement names in conditions on the key's column: `= 7`, `IN (7, 8)`, `= ANY(%s)`. Pure.

For checked transactions, and for hints about statements that found nothing. It goes by the text and leaves out what it
does not understand, so it may miss a key but names none that is not there. It looks only for keys of one column, and
only for columns of the given relations, as far as the text says whose they are.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import FrameType
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from balancer.client.keys.routes import Routes
from balancer.client.open_blocks import LOG
from balancer.directory.locate import AnyKey, Location, RowId
from balancer.directory.model import Table
from balancer.errors import UserError
from balancer.naming import parse_name
from balancer.policies.keyspace.keys import KeyMismatch, KeyType, parse_value
from balancer.untrusted import quoted

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


LONGEST_STATEMENT = 10_000
"""Characters: anything longer was generated by a program, and is not examined."""

_TOKEN = re.compile(
    r"""(?P<skip>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<opaque>\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|[eE]'(?:\\.|''|[^'\\])*')
    |(?P<string>'(?:''|[^'])*')
    |(?P<name>"(?:""|[^"])+"|[^\W\d][\w$]*)
    |(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
    |(?P<place>%(?:\((?P<key>[^)]+)\))?[sbt])
    |(?P<other>%%|::|.)""",
    re.VERBOSE | re.DOTALL,
)
_RELATIONS = {"FROM", "JOIN", "USING", "UPDATE", "INTO"}
"""Words that relations follow."""
_NO_RELATION = {"SET", "OF", "ONLY", "SKIP", "NOWAIT"}
_NO_ALIAS = {"WHERE", "SET", "ON", "JOIN", "LEFT", "INNER", "CROSS", "USING", "ORDER", "GROUP", "LIMIT", "FOR"}


class SqlWord(NamedTuple):
    """A word of a statement."""

    kind: str
    text: str
    place: int | str | None = None
    """For a placeholder: which of the values."""

    @property
    def word(self) -> str:
        """A keyword as SQL compares it."""
        return self.text.upper() if self.kind == "name" else self.text

    @property
    def name(self) -> str:
        """An identifier as PostgreSQL folds it."""
        quoted = self.text.startswith('"')
        return self.text[1:-1].replace('""', '"') if quoted else self.text.lower()


_NOTHING = SqlWord("end", "")


def named_keys(
    statement: str, values: Any, column: str, kind: KeyType, relations: frozenset[str] | None = None
) -> Iterator[Any]:
    """The values that the column is compared with, in the statement's order. `relations` without their schemas; None:
    whichever."""
    for token in _operands(statement, column, relations):
        yield from _value(token, values, kind)


@lru_cache(maxsize=512)
def _operands(statement: str, column: str, relations: frozenset[str] | None) -> tuple[SqlWord, ...]:
    """The tokens that the column is compared with, each a plain value or a placeholder."""
    if len(statement) > LONGEST_STATEMENT:
        return ()
    words = list(_tokens(statement))
    owners = None if relations is None else _owners(words, relations)
    found: list[SqlWord] = []
    for at, token in enumerate(words):
        if token.kind == "name" and token.name == column and _owned(words, at, owners):
            found += _compared(words, at + 1)
    return tuple(found)


def _tokens(statement: str) -> Iterator[SqlWord]:
    count = 0
    for match in _TOKEN.finditer(statement):
        kind = match.lastgroup or ""
        kind = "place" if kind == "key" else "opaque" if kind == "tag" else kind
        if kind == "place":
            yield SqlWord(kind, match.group(), match.group("key") or count)
            count += 1
        elif kind != "skip":
            yield SqlWord(kind, match.group())


def _owners(words: Sequence[SqlWord], relations: frozenset[str]) -> frozenset[str]:
    """What the relations are called in the statement; with "" if a column needs no name before it."""
    found: set[str] = set()
    others = 0
    for before, token in enumerate(words[:-1]):
        at = before + 1
        if token.word not in _RELATIONS or words[at].kind != "name" or words[at].word in _NO_RELATION:
            continue
        while _at(words, at + 1).text == "." and _at(words, at + 2).kind == "name":
            at += 2  # a schema precedes it
        if words[at].name not in relations:
            others += 1
            continue
        found.add(words[at].name)
        alias = _at(words, at + 2 if _at(words, at + 1).word == "AS" else at + 1)
        if alias.kind == "name" and alias.word not in _NO_ALIAS:
            found.add(alias.name)
    return frozenset(found | ({""} if found and not others else set()))


def _owned(words: Sequence[SqlWord], at: int, owners: frozenset[str] | None) -> bool:
    if owners is None:
        return True
    if at >= 2 and words[at - 1].text == ".":
        return words[at - 2].name in owners
    return "" in owners


def _compared(words: Sequence[SqlWord], at: int) -> Iterator[SqlWord]:
    """The operands after `=` or `IN`."""
    if _at(words, at).word not in ("=", "IN"):
        return
    at += 1
    listed = False
    while _at(words, at).word in ("ANY", "ARRAY", "(", "["):
        listed = listed or words[at].text in ("(", "[")
        at += 1
    while True:
        token = _at(words, at)
        after = _after_casts(words, at + 1)
        ends = _at(words, after)
        # After a value that is part of an expression something else follows: `= 7 + 1`.
        if ends.kind in ("end", "name") or ends.text in (",", ")", "]", ";"):
            yield token
        if not listed or ends.text != ",":
            return
        at = after + 1


def _after_casts(words: Sequence[SqlWord], at: int) -> int:
    while _at(words, at).text == "::":
        at += 2
        while _at(words, at).text in ("[", "]"):
            at += 1
    return at


def _at(words: Sequence[SqlWord], at: int) -> SqlWord:
    return words[at] if at < len(words) else _NOTHING


def _value(token: SqlWord, values: Any, kind: KeyType) -> Iterator[Any]:
    if token.kind == "place":
        if isinstance(token.place, str):
            yield from _each(values.get(token.place) if isinstance(values, Mapping) else None)
        elif isinstance(values, Sequence) and token.place is not None and token.place < len(values):
            yield from _each(values[token.place])
    elif token.kind in ("number", "string"):
        text = token.text[1:-1].replace("''", "'") if token.kind == "string" else token.text
        try:
            yield parse_value(kind, text)
        except KeyMismatch:
            return


def _each(value: Any) -> Iterator[Any]:
    """An array's members; a value itself."""
    if isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif value is not None:
        yield value
