"""Checksums of partitions that do not depend on the order of rows, and are the same on every version of the server.

A row's hash is PostgreSQL's own hash of a record: the one behind hash partitions, which therefore cannot change between
versions. A column whose type has none that means the same elsewhere (an enum's is its oid) is hashed as text, with all
output settings pinned (`pin_output`). A partition's checksum is the sum over its rows, kept apart in buckets, so that a
difference says where. Called by `balancer.migration.verify`; reading only.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from psycopg import sql

from balancer.nodes.capture import SEQ
from balancer.nodes.connection import Connection, Cursor
from balancer.nodes.names import Name
from balancer.nodes.objects import log_name

BUCKETS = 64

PINNED: Mapping[str, str] = {
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmlbinary": "base64",
    "search_path": "public",
    "quote_all_identifiers": "off",
}

Digest = Mapping[int, tuple[int, int]]
"""Bucket → rows and sum of their hashes."""

Key = tuple[str, ...]
"""A key as text, one part per column."""


class Compared(NamedTuple):
    """A column as it is compared: as it is, or as text."""

    name: str
    as_text: bool


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a partition as they are compared."""

    partition: Name
    columns: tuple["Compared", ...]
    key: tuple[str, ...]
    key_types: tuple[str, ...]


def pin_output(connection: Connection) -> None:
    """Makes equal values equal text on every server."""
    for name, value in PINNED.items():
        connection.execute("SELECT set_config(%s, %s, false)", (name, value))


def digest(connection: Connection, rows: Rows, pages: int, on_chunk: Callable[[int], None]) -> Digest:
    """The partition's checksum as the connection's transaction sees it, so many pages at a time.

    `on_chunk` is called with the bytes of each chunk: it may sleep, or raise.
    """
    size, page = _size(connection, rows.partition)
    found: dict[int, tuple[int, int]] = {}
    for first in range(0, max(1, -(-size // page)), pages):
        last = (first + pages) * page >= size
        for bucket, count, total in connection.execute(_chunk(rows, first, None if last else first + pages)):
            before = found.get(bucket, (0, 0))
            found[bucket] = (before[0] + count, before[1] + int(total))
        on_chunk(min(pages * page, max(0, size - first * page)))
    return found


def differing_keys(one: Connection, other: Connection, rows: Rows, buckets: Sequence[int], limit: int) -> list[str]:
    """Some keys (or row hashes, without a key) in these buckets whose rows differ between the two sides."""
    key = sql.SQL("ROW({})::text").format(_columns(rows.key)) if rows.key else sql.SQL("NULL::text")
    statement = sql.SQL(
        "SELECT coalesce(key, hash::text), hash FROM"
        " (SELECT {} AS key, {} AS hash FROM ONLY {} AS t OFFSET 0) AS hashed WHERE (hash & {})::int = ANY(%s)"
    ).format(key, row_hash(rows.columns), rows.partition.identifier, sql.Literal(BUCKETS - 1))
    wanted = (list(buckets),)
    mine = set(one.execute(statement, wanted).fetchall())
    theirs = set(other.execute(statement, wanted).fetchall())
    return sorted({str(key) for key, _ in mine ^ theirs})[:limit]


def changed_rows(
    cursor: Cursor, rows: Rows, migration: str, index: int, limit: int
) -> Iterator[tuple[int, Key | None, int | None]]:
    """Entries of the log of changes with the present hash of their rows: seq, key, hash; no key: truncated."""
    key = [sql.SQL("l.{}::text").format(sql.Identifier(name)) for name in rows.key]
    join = sql.SQL(" AND ").join(sql.SQL("t.{0} = l.{0}").format(sql.Identifier(name)) for name in rows.key)
    statement = sql.SQL(
        "SELECT l.{seq}, {key}, CASE WHEN t.{first} IS NOT NULL THEN {hash} END"
        " FROM (SELECT * FROM {log} ORDER BY {seq} LIMIT {limit}) AS l LEFT JOIN ONLY {table} AS t ON {join}"
    ).format(
        seq=sql.Identifier(SEQ),
        key=sql.SQL(", ").join(key),
        first=sql.Identifier(rows.key[0]),
        hash=row_hash(rows.columns),
        log=log_name(migration, index),
        limit=sql.Literal(limit),
        table=rows.partition.identifier,
        join=join,
    )
    for seq, *values, hashed in cursor.execute(statement):
        yield seq, None if values[0] is None else tuple(values), hashed


def hashes_of(cursor: Cursor, rows: Rows, keys: Sequence[Key]) -> dict[Key, int | None]:
    """The hash of each key's row; None where there is no row."""
    if not keys:
        return {}
    names = [sql.Identifier(f"k{place}") for place in range(len(rows.key))]
    casts = [
        sql.SQL("CAST(u.{} AS {}) AS {}").format(name, sql.SQL(kind), sql.Identifier(column))
        for name, kind, column in zip(names, rows.key_types, rows.key, strict=True)
    ]
    join = sql.SQL(" AND ").join(sql.SQL("t.{0} = k.{0}").format(sql.Identifier(name)) for name in rows.key)
    statement = sql.SQL(
        "SELECT {given}, CASE WHEN t.{first} IS NOT NULL THEN {hash} END FROM"
        " (SELECT {given}, {casts} FROM unnest({arrays}) AS u ({given})) AS k LEFT JOIN ONLY {table} AS t ON {join}"
    ).format(
        given=sql.SQL(", ").join(names),
        first=sql.Identifier(rows.key[0]),
        hash=row_hash(rows.columns),
        casts=sql.SQL(", ").join(casts),
        arrays=sql.SQL(", ").join([sql.SQL("%s::text[]")] * len(names)),
        table=rows.partition.identifier,
        join=join,
    )
    arrays = [list(values) for values in zip(*keys, strict=True)]
    return {tuple(values): hashed for *values, hashed in cursor.execute(statement, arrays)}


def _size(connection: Connection, partition: Name) -> tuple[int, int]:
    row = connection.execute(
        "SELECT pg_relation_size(to_regclass(%s)), current_setting('block_size')::int", (str(partition),)
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def _chunk(rows: Rows, first: int, end: int | None) -> sql.Composed:
    return summed(rows.columns, rows.partition, pages(first, end))


def pages(first: int, end: int | None) -> sql.Composable:
    """The condition for rows (of `t`) in a range of pages."""
    where = sql.SQL("t.ctid >= {}::tid").format(sql.Literal(f"({first},0)"))
    return where if end is None else where + sql.SQL(" AND t.ctid < {}::tid").format(sql.Literal(f"({end},0)"))


def summed(columns: Sequence[Compared], partition: Name, where: sql.Composable) -> sql.Composed:
    """Bucket, rows and sum of hashes of those rows (of `t`) for which the condition holds."""
    # OFFSET 0 keeps the hash from being computed twice.
    return sql.SQL(
        "SELECT (hash & {})::int, count(*), sum(hash) FROM"
        " (SELECT {} AS hash FROM ONLY {} AS t WHERE {} OFFSET 0) AS hashed GROUP BY 1"
    ).format(sql.Literal(BUCKETS - 1), row_hash(columns), partition.identifier, where)


def row_hash(columns: Sequence[Compared]) -> sql.Composable:
    """The hash of a row of `t`."""
    values = [
        sql.SQL('t.{}::text COLLATE "C"' if column.as_text else "t.{}").format(sql.Identifier(column.name))
        for column in columns
    ]
    return sql.SQL("hash_record_extended(ROW({}), 0)").format(sql.SQL(", ").join(values))


def _columns(names: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join(sql.SQL("t.{}").format(sql.Identifier(name)) for name in names)
