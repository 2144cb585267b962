"""The keys that a statement names in conditions on the key's column: `= 7`, `IN (7, 8)`, `= ANY(%s)`. Pure.

For transactions that are checked. It goes by the text: what it does not understand it leaves out, so that it may miss a
key but names none that is not there. Only keys of one column are looked for.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from balancer.policies.key_text import parse_value
from balancer.policies.keys import KeyMismatch, KeyType

_OPEN, _CLOSE = ("(", "["), (")", "]")
_WORDS = ("ANY", "ARRAY")


def named_keys(statement: str, values: Any, column: str, kind: KeyType) -> Iterator[Any]:
    """The values that the column is compared with, in the statement's order."""
    import sqlparse  # noqa: PLC0415 - only those who check pay for it
    from sqlparse import tokens as t  # noqa: PLC0415

    words = [
        token
        for parsed in sqlparse.parse(statement)
        for token in parsed.flatten()  # type: ignore[no-untyped-call]
        if not token.is_whitespace and token.ttype not in t.Comment
    ]
    places = _placeholders(words, t)
    for at, token in enumerate(words):
        if token.ttype in (t.Name, t.Literal.String.Symbol) and _unquoted(token.value) == column:
            for found in _operands(words, at + 1):
                yield from _value(found, places, values, kind, t)


def _unquoted(word: str) -> str:
    return word[1:-1].replace('""', '"') if word.startswith('"') else word.lower()


def _placeholders(words: Sequence[Any], t: Any) -> Mapping[int, int]:
    """Of `%s`, which value each stands for, by the token's identity."""
    return {id(token): number for number, token in enumerate(w for w in words if w.value == "%s" and w.ttype in t.Name)}


def _operands(words: Sequence[Any], at: int) -> Iterator[Any]:
    """The tokens behind `=` or `IN`, as far as they are plain values."""
    if at >= len(words) or words[at].value.upper() not in ("=", "IN"):
        return
    at += 1
    depth = 0
    while at < len(words):
        word = words[at].value
        if word.upper() in _WORDS:
            pass
        elif word in _OPEN:
            depth += 1
        elif word in _CLOSE:
            depth -= 1
        elif word != ",":
            yield words[at]
        at += 1
        if depth <= 0 and word.upper() not in _WORDS:
            return


def _value(token: Any, places: Mapping[int, int], values: Any, kind: KeyType, t: Any) -> Iterator[Any]:
    if id(token) in places and isinstance(values, Sequence) and places[id(token)] < len(values):
        yield from _each(values[places[id(token)]])
    elif token.ttype in t.Name.Placeholder and isinstance(values, Mapping) and token.value.startswith("%("):
        yield from _each(values.get(token.value[2:-2]))
    elif token.ttype in t.Literal.Number or token.ttype in t.Literal.String.Single:
        text = token.value[1:-1].replace("''", "'") if token.value.startswith("'") else token.value
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
