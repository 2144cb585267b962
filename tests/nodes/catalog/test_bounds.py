"""Bounds survive the way into PostgreSQL's catalog and back, and the CHECK is what ATTACH looks for."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from uuid import UUID

import pytest
from psycopg import sql

from balancer.errors import Refused
from balancer.nodes.catalog.bounds import KeyColumn, KeyRange, Part, check_expression, for_values, parse_bound
from balancer.nodes.session.connection import Connection
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import HIGHEST, KeyType, KeyValue, encode_key

VALUES: dict[KeyType, tuple[KeyValue, KeyValue]] = {
    KeyType.SMALLINT: (-32768, 7),
    KeyType.INTEGER: (-5, 2_000_000_000),
    KeyType.BIGINT: (-(2**63), 2**63 - 1),
    KeyType.TEXT: ("", "it's, (odd) \\ ünï MAXVALUE"),
    KeyType.UUID: (UUID(int=0), UUID(int=2**127 + 9)),
    KeyType.TIMESTAMPTZ: (datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)),
    KeyType.DATE: (date(1, 1, 1), float("inf")),
    KeyType.NUMERIC: (Decimal("-1.5E+20"), Decimal("0.000001")),
}


def round_trip(connection: Connection, columns: Sequence[KeyColumn], part: Part, how: str = "RANGE") -> Part:
    """Makes a root, builds the partition beside it, attaches it, and reads the bound back."""
    with connection.transaction(force_rollback=True):
        declared = sql.SQL(", ").join(
            sql.SQL("{} {} {}").format(
                sql.Identifier(c.name), sql.SQL(c.type), sql.SQL('COLLATE "C"' if c.type is KeyType.TEXT else "")
            )
            for c in columns
        )
        names = sql.SQL(", ").join(sql.Identifier(c.name) for c in columns)
        connection.execute(sql.SQL("CREATE TABLE r ({}) PARTITION BY {} ({})").format(declared, sql.SQL(how), names))
        connection.execute(sql.SQL("CREATE TABLE p ({})").format(declared))
        row = connection.execute("SELECT 'r'::regclass::oid").fetchone()
        assert row is not None
        check = check_expression(columns, part, row[0])
        connection.execute(sql.SQL("ALTER TABLE p ADD CONSTRAINT c CHECK ({})").format(check))
        notices: list[str] = []
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        connection.execute("SET LOCAL client_min_messages = debug1")
        connection.execute(sql.SQL("ALTER TABLE r ATTACH PARTITION p {}").format(for_values(columns, part)))
        connection.execute("SET LOCAL client_min_messages = notice")
        implied = any('constraint for table "p" is implied by existing constraints' in notice for notice in notices)
        # The server compares a hash test with one of its own that has no input collation; a text column gives ours one.
        assert implied != (isinstance(part, Leaf) and any(column.type is KeyType.TEXT for column in columns))
        shown = connection.execute("SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = 'p'").fetchone()
        assert shown is not None
        return parse_bound([c.type for c in columns], shown[0])


@pytest.mark.parametrize("kind", list(KeyType))
def test_every_type_comes_back_and_attaches_without_a_scan(connection: Connection, kind: KeyType) -> None:
    columns = [KeyColumn("Key", kind)]
    low, high = (encode_key([kind], [value]) for value in VALUES[kind])
    for part in (KeyRange(low, high), KeyRange(b"", low), KeyRange(high, HIGHEST), KeyRange()):
        if part.upper != encode_key([kind], [VALUES[kind][0]]) or part.lower:
            assert round_trip(connection, columns, part) == part


def test_bounds_that_stop_early_come_back(connection: Connection) -> None:
    types = [KeyType.INTEGER, KeyType.TEXT, KeyType.DATE]
    columns = [KeyColumn(name, kind) for name, kind in zip("abc", types, strict=True)]
    whole = encode_key(types, (5, "x", date(2024, 2, 29)))
    one, two = encode_key(types, (7,), prefix=True), encode_key(types, (7, "y"), prefix=True)
    bounds = [b"", whole, one, two, two + HIGHEST, one + HIGHEST, HIGHEST]
    assert bounds == sorted(bounds)
    for lower, upper in pairwise(bounds):
        assert round_trip(connection, columns, KeyRange(lower, upper)) == KeyRange(lower, upper)
    assert round_trip(connection, columns, KeyRange(whole, two)) == KeyRange(whole, two)


def test_leaves_come_back_and_attach_without_a_scan_unless_the_key_is_text(connection: Connection) -> None:
    for kind in KeyType:
        columns = [KeyColumn("a", KeyType.BIGINT), KeyColumn("b", kind)]
        assert round_trip(connection, columns, Leaf(8, 3), "HASH") == Leaf(8, 3)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("DEFAULT", "DEFAULT partition"),
        ("FOR VALUES IN (1, 2)", "only RANGE and HASH"),
        ("FOR VALUES WITH (modulus 3, remainder 0)", "not a power of two .*`balancer table convert`"),
        ("FOR VALUES FROM ('abc') TO (MAXVALUE)", "cannot be used as a key"),
    ],
)
def test_other_bounds_are_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        parse_bound([KeyType.INTEGER], text)
