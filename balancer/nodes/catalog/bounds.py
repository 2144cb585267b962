"""A tablet's part of the key space in PostgreSQL's syntax, and back.

`for_values` gives the clause of CREATE/ATTACH PARTITION, `check_expression` the CHECK constraint from which PostgreSQL
proves that clause without scanning (so ATTACH takes a moment), `parse_bound` reads what the catalog prints. Bounds are
the bytes of `policies.keyspace.keys`, leaves are those of `policies.keyspace.hash_leaves`.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from psycopg import sql

from balancer.errors import Refused
from balancer.policies.keyspace.hash_leaves import Leaf, check_leaf
from balancer.policies.keyspace.keys import (
    HIGHEST,
    LOWEST,
    Key,
    KeyMismatch,
    KeyType,
    KeyValue,
    decode_bound,
    encode_key,
    parse_value,
    show_value,
)


class KeyRange(NamedTuple):
    """`lower <= key < upper`, both encoded by `policies.keyspace.keys`."""

    lower: bytes = LOWEST
    upper: bytes = HIGHEST


Part = KeyRange | Leaf
"""A tablet's part of its table's key space."""


class KeyColumn(NamedTuple):
    """A column of a root's partition key."""

    name: str
    type: KeyType
    collation: str = ""
    """Of a text column in the partition key, by name; empty: C."""
    record: str = ""
    """In a trigger's function: the record that has it, `new` or `old`."""

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.record, self.name) if self.record else sql.Identifier(self.name)


def for_values(columns: Sequence[KeyColumn], part: Part) -> sql.Composable:
    """`FOR VALUES …` of the partition that holds this part."""
    if isinstance(part, Leaf):
        return sql.SQL("FOR VALUES WITH (MODULUS {}, REMAINDER {})").format(
            sql.Literal(part.modulus), sql.Literal(part.remainder)
        )
    return sql.SQL("FOR VALUES FROM ({}) TO ({})").format(_bound(columns, part.lower), _bound(columns, part.upper))


def show_part(columns: Sequence[KeyColumn], part: Part) -> str:
    """The clause as text, for people."""
    return for_values(columns, part).as_string(None)


def check_expression(columns: Sequence[KeyColumn], part: Part, root_oid: int) -> sql.Composable:
    """The CHECK that implies the partition's constraint, in the form that PostgreSQL looks for."""
    if isinstance(part, Leaf):
        return sql.SQL("pg_catalog.satisfies_hash_partition({}::pg_catalog.oid, {}, {}, {})").format(
            sql.Literal(str(root_oid)),
            sql.Literal(part.modulus),
            sql.Literal(part.remainder),
            sql.SQL(", ").join(column.identifier for column in columns),
        )
    clauses: list[sql.Composable] = [sql.SQL("{} IS NOT NULL").format(column.identifier) for column in columns]
    (lower, lower_max), (upper, upper_max) = _decoded(columns, part.lower), _decoded(columns, part.upper)
    # Columns on which both bounds agree are spelled as equalities, as PostgreSQL does.
    same = next((i for i, (low, high) in enumerate(zip(lower, upper, strict=False)) if low != high), None)
    shared = min(len(lower), len(upper)) if same is None else same
    clauses += [_test(column, "=", value) for column, value in zip(columns, lower[:shared], strict=False)]
    rest = columns[shared:]
    clauses += _side(rest, lower[shared:], ">", ">" if lower_max and len(lower) < len(columns) else ">=")
    clauses += _side(rest, upper[shared:], "<", "<=" if upper_max and len(upper) < len(columns) else "<")
    return sql.SQL(" AND ").join(sql.SQL("({})").format(clause) for clause in clauses)


def literal(kind: KeyType, value: KeyValue) -> sql.Composable:
    """A constant of the column's own type: a wider one would not match the partition's constraint."""
    return sql.SQL("{}::{}").format(sql.Literal(show_value(value)), sql.SQL(kind.value))


def parse_bound(types: Sequence[KeyType], text: str) -> Part:
    """The part that the catalog's text of a partition bound names. Raises `Refused` for DEFAULT and LIST."""
    if match := _HASH.fullmatch(text):
        try:
            return check_leaf(int(match[1]), int(match[2]))
        except ValueError as error:
            way = "copy the rows into a plain table and run `balancer table convert`"
            raise Refused(f"{text}: {error}; {way}") from error
    if text.startswith("FOR VALUES FROM "):
        lower, upper = _split_range(text)
        return KeyRange(_parse_side(types, lower), _parse_side(types, upper))
    what = "it is the DEFAULT partition" if text == "DEFAULT" else f"its bound is {text}"
    raise Refused(f"{what}; only RANGE and HASH bounds are known")


def _bound(columns: Sequence[KeyColumn], data: bytes) -> sql.Composable:
    values, rest_is_max = _decoded(columns, data)
    shown = [literal(column.type, value) for column, value in zip(columns, values, strict=False)]
    fill = sql.SQL("MAXVALUE" if rest_is_max else "MINVALUE")
    return sql.SQL(", ").join([*shown, *[fill] * (len(columns) - len(values))])


def _side(columns: Sequence[KeyColumn], values: Key, strict: str, last: str) -> Iterator[sql.Composable]:
    """One side of a range as PostgreSQL spells it: `a > 1 OR (a = 1 AND b >= 2)`; nothing if it is unbounded.

    `last` is for the last value: (5, MINVALUE) as lower is a >= 5 and as upper a < 5; (5, MAXVALUE) is a > 5, a <= 5.
    """
    alternatives = []
    for depth in range(len(values)):
        operators = ["="] * depth + [last if depth == len(values) - 1 else strict]
        tests = [
            sql.SQL("({})").format(_test(column, operator, value))
            for column, value, operator in zip(columns, values, operators, strict=False)
        ]
        alternatives.append(sql.SQL(" AND ").join(tests))
    if alternatives:
        yield sql.SQL(" OR ").join(sql.SQL("({})").format(alternative) for alternative in alternatives)


def _test(column: KeyColumn, operator: str, value: KeyValue) -> sql.Composable:
    constant = literal(column.type, value)
    if column.type is KeyType.TEXT:
        # The partition key may have a collation other than its column's; the comparison must use the key's.
        constant = sql.SQL("{} COLLATE {}").format(constant, sql.Identifier("pg_catalog", column.collation or "C"))
    return sql.SQL("{} {} {}").format(column.identifier, sql.SQL(operator), constant)


def _decoded(columns: Sequence[KeyColumn], data: bytes) -> tuple[Key, bool]:
    return decode_bound([column.type for column in columns], data)


_HASH = re.compile(r"FOR VALUES WITH \(modulus (\d+), remainder (\d+)\)")
_TOKEN = re.compile(r"\s*('(?:[^']|'')*'|[^',()]+)\s*")


def _split_range(text: str) -> tuple[list[str], list[str]]:
    tokens: list[list[str]] = []
    at = len("FOR VALUES FROM ")
    for word in ("", " TO "):
        at += len(word)
        side, at = _tokens(text, at)
        tokens.append(side)
    return tokens[0], tokens[1]


def _tokens(text: str, at: int) -> tuple[list[str], int]:
    """The values between the parentheses that open at `at`, and where the text continues after them."""
    found: list[str] = []
    while text[at] in "(,":
        match = _TOKEN.match(text, at + 1)
        assert match is not None, text
        found.append(match[1])
        at = match.end()
    return found, at + 1


def _parse_side(types: Sequence[KeyType], tokens: Sequence[str]) -> bytes:
    values: list[KeyValue] = []
    for kind, token in zip(types, tokens, strict=True):
        if token in ("MINVALUE", "MAXVALUE"):
            tail = HIGHEST if token == "MAXVALUE" else b""  # noqa: S105 - a token of SQL
            return _encode(types, values) + tail
        values.append(_parsed(kind, token[1:-1].replace("''", "'") if token.startswith("'") else token))
    return _encode(types, values)


def _parsed(kind: KeyType, text: str) -> KeyValue:
    try:
        return parse_value(kind, text)
    except KeyMismatch as error:  # PostgreSQL printed it, so it is one; but ours are fewer
        raise Refused(f"{text!r} cannot be used as a key of type {kind}: it is outside the supported range") from error


def _encode(types: Sequence[KeyType], values: Sequence[KeyValue]) -> bytes:
    try:
        return encode_key(types, values, prefix=True)
    except KeyMismatch as error:
        raise Refused(f"a bound cannot be used as a key: {error}") from error
