"""The keys that a statement names in conditions on the key's column: `= 7`, `IN (7, 8)`, `= ANY(%s)`. Pure.

For checked transactions, and for hints about statements that found nothing. It goes by the text: what it does not
understand it leaves out, so that it may miss a key but names none that is not there. Only keys of one column are looked
for, and only columns of the given relations, as far as the text tells whose they are.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from balancer.policies.key_text import parse_value
from balancer.policies.keys import KeyMismatch, KeyType

LONGEST_STATEMENT = 10_000
"""Characters: what is longer was made by a program, and is not looked at."""

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
"""Words that relations stand behind."""
_NO_RELATION = {"SET", "OF", "ONLY", "SKIP", "NOWAIT"}
_NO_ALIAS = {"WHERE", "SET", "ON", "JOIN", "LEFT", "INNER", "CROSS", "USING", "ORDER", "GROUP", "LIMIT", "FOR"}


class SqlWord(NamedTuple):
    """A word of a statement."""

    kind: str
    text: str
    place: int | str | None = None
    """Of a placeholder: which of the values."""

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
    """What the relations are called in the statement; with "" where a column needs no name before it."""
    found: set[str] = set()
    others = 0
    for before, token in enumerate(words[:-1]):
        at = before + 1
        if token.word not in _RELATIONS or words[at].kind != "name" or words[at].word in _NO_RELATION:
            continue
        while _at(words, at + 1).text == "." and _at(words, at + 2).kind == "name":
            at += 2  # a schema stands before it
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
    """The operands behind `=` or `IN`."""
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
        # Behind a value that is part of an expression something else follows: `= 7 + 1`.
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
