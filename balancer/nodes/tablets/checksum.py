"""Checksums of partitions that do not depend on the order of rows, and are the same on every version of the server.

A row's hash is made of PostgreSQL's own hashes of its columns, the ones that hash partitioning uses, which therefore
cannot change between versions. Each column's hash seeds the next one's, so that swapped values are noticed. A column
whose type has none that means the same elsewhere (an enum's is its oid) is hashed as text, with all output settings
pinned (`pin_output`). A partition's checksum is the sum over its rows; where two differ, both are computed once more in
buckets, which locates the difference. Called by `balancer.migration.comparison`; only reads.

Rows of changed keys, carried to another node: taken out there, and put in as one snapshot of the source has them.

Statements only, called by `balancer.migration.replay`. The keys are those that a capture has logged (`capture`).
All keys are taken out before any is put in: rows may have swapped values that must be unique.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from psycopg import sql
from psycopg.rows import TupleRow

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.session.connection import Connection, Cursor
from balancer.nodes.tablets.capture import SEQ
from balancer.nodes.tablets.object_names import log_name

BUCKETS = 64


Digest = Mapping[int, tuple[int, int]]
"""Bucket → rows and sum of their hashes; everything is in bucket 0 unless buckets were asked for."""

Key = tuple[str, ...]
"""A key as text, one part per column."""


class Compared(NamedTuple):
    """A column as it is compared: as it is, or as text. One of an unknown type is hashed as part of a record."""

    name: str
    as_text: bool
    type: str = ""
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a partition as they are compared."""

    partition: Name
    columns: tuple["Compared", ...]
    key: tuple[str, ...]
    key_types: tuple[str, ...]


def digest(
    connection: Connection, rows: Rows, pages: int, on_chunk: Callable[[int], None], *, buckets: int = 1
) -> Digest:
    """The partition's checksum as the connection's transaction sees it, this many pages at a time.

    `on_chunk` is called with the bytes of each chunk: it may sleep, or raise. One bucket costs half of many.
    """
    count_of_pages, page = pages_of(connection, rows.partition)
    size = count_of_pages * page
    found: dict[int, tuple[int, int]] = {}
    for first in range(0, max(1, count_of_pages), pages):
        last = (first + pages) * page >= size
        for bucket, count, total in connection.execute(
            summed(rows.columns, rows.partition, _pages(first, None if last else first + pages), buckets)
        ):
            before = found.get(bucket, (0, 0))
            found[bucket] = (before[0] + count, before[1] + int(total))
        on_chunk(min(pages * page, max(0, size - first * page)))
    return found


def differing_keys(one: Connection, other: Connection, rows: Rows, buckets: Sequence[int], limit: int) -> list[str]:
    """Some keys (or row hashes, without a key) in these buckets whose rows differ between the two sides."""
    key = sql.SQL("ROW({})::text").format(_columns(rows.key)) if rows.key else sql.SQL("NULL::text")
    statement = sql.SQL(
        "SELECT coalesce(key, hash::text), hash FROM"
        " (SELECT {} AS key, {} AS hash FROM ONLY {} AS t OFFSET 0) AS hashed WHERE (hash & {})::int = ANY({})"
    ).format(
        key, row_hash(rows.columns), rows.partition.identifier, sql.Literal(BUCKETS - 1), sql.Literal(list(buckets))
    )
    mine = set(one.execute(statement).fetchall())
    theirs = set(other.execute(statement).fetchall())
    return sorted({str(key) for key, _ in mine ^ theirs})[:limit]


def changed_statement(rows: Rows, migration: str, index: int, limit: int) -> sql.Composed:
    """Asks for entries of the log of changes with the current hash of their rows; `changed_entries` reads it."""
    key = [sql.SQL("l.{}::text").format(sql.Identifier(name)) for name in rows.key]
    join = sql.SQL(" AND ").join(sql.SQL("t.{0} = l.{0}").format(sql.Identifier(name)) for name in rows.key)
    return sql.SQL(
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


def changed_entries(found: Iterable[TupleRow]) -> Iterator[tuple[int, Key | None, int | None]]:
    """For each entry: seq, key, hash; no key: truncated."""
    for seq, *values, hashed in found:
        yield seq, None if values[0] is None else tuple(values), hashed


def hashes_of(cursor: Cursor, rows: Rows, keys: Sequence[Key]) -> dict[Key, int | None]:
    """The hash of each key's row; None if there is no row."""
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
        arrays=sql.SQL(", ").join(
            [sql.SQL("{}::text[]").format(sql.Literal(list(values))) for values in zip(*keys, strict=True)]
        ),
        table=rows.partition.identifier,
        join=join,
    )
    # Values are part of the statement: next to parameters, a percent sign in a column's name would be taken for one.
    return {tuple(values): hashed for *values, hashed in cursor.execute(statement)}


def pages_of(connection: Connection, partition: Name) -> tuple[int, int]:
    """How many pages a partition has, and the bytes of one."""
    row = connection.execute(
        "SELECT pg_relation_size(to_regclass(%s)), current_setting('block_size')::int", (str(partition),)
    ).fetchone()
    assert row is not None
    return -(-int(row[0] or 0) // int(row[1])), int(row[1])


def pages(first: int, end: int | None) -> sql.Composable:
    """The condition for rows (of `t`) in a range of pages."""
    where = sql.SQL("t.ctid >= {}::tid").format(sql.Literal(f"({first},0)"))
    return where if end is None else where + sql.SQL(" AND t.ctid < {}::tid").format(sql.Literal(f"({end},0)"))


_pages = pages


def summed(columns: Sequence[Compared], partition: Name, where: sql.Composable, buckets: int = BUCKETS) -> sql.Composed:
    """Bucket, rows and sum of hashes of those rows (of `t`) for which the condition holds."""
    if buckets == 1:
        return sql.SQL("SELECT 0, count(*), coalesce(sum({}), 0) FROM ONLY {} AS t WHERE {}").format(
            row_hash(columns), partition.identifier, where
        )
    # OFFSET 0 keeps the hash from being computed twice.
    return sql.SQL(
        "SELECT (hash & {})::int, count(*), sum(hash) FROM"
        " (SELECT {} AS hash FROM ONLY {} AS t WHERE {} OFFSET 0) AS hashed GROUP BY 1"
    ).format(sql.Literal(buckets - 1), row_hash(columns), partition.identifier, where)


# Called by name they cost half of what a record made for the purpose does. All are strict: NULL gives NULL.
_HASHES: Mapping[str, str] = {
    "smallint": "hashint2extended",
    "integer": "hashint4extended",
    "bigint": "hashint8extended",
    "numeric": "hash_numeric_extended",
    "uuid": "uuid_hash_extended",
    "timestamp without time zone": "timestamp_hash_extended",
}


def row_hash(columns: Sequence[Compared]) -> sql.Composable:
    """The hash of a row of `t`: a chain over the columns that have a value, starting from those that may have none."""
    known = [column for column in columns if _hash_function(column)]
    others = [column for column in columns if not _hash_function(column)]
    seeds = [
        sql.SQL("coalesce({}, {})").format(_hash(column, sql.Literal(place)), sql.Literal(-place))
        for place, column in enumerate(known, 1)
        if column.nullable
    ]
    if others or not known:
        seeds.append(sql.SQL("pg_catalog.hash_record_extended(ROW({}), 0)").format(_columns([c.name for c in others])))
    found: sql.Composable = sql.SQL(" # ").join(seeds) if seeds else sql.Literal(0)
    for column in known:
        if not column.nullable:
            found = _hash(column, found)
    return found


def _hash_function(column: Compared) -> str | None:
    return "hashtextextended" if column.as_text else _HASHES.get(column.type)


def _hash(column: Compared, seed: sql.Composable) -> sql.Composable:
    value = sql.SQL('t.{}::text COLLATE "C"' if column.as_text else "t.{}").format(sql.Identifier(column.name))
    return sql.SQL("pg_catalog.{}({}, {})").format(sql.Identifier(_hash_function(column) or ""), value, seed)


def _columns(names: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join(sql.SQL("t.{}").format(sql.Identifier(name)) for name in names)


Sum = tuple[int, int]
"""Rows, and the sum of their hashes."""
CopyPair = tuple[sql.Composed, sql.Composed]
"""COPY … TO STDOUT for the source, COPY … FROM STDIN for the target."""


@dataclass(frozen=True, slots=True)
class KeyLog:
    """A partition, its twin on the target, and the log of its changed keys."""

    migration: str
    index: int
    rows: Rows
    copied: tuple[str, ...]  # columns that travel
    binary: bool

    @property
    def log(self) -> sql.Identifier:
        return log_name(self.migration, self.index)

    @property
    def keys(self) -> sql.Composed:
        """Where the target keeps the keys during a transaction."""
        return sql.SQL("pg_temp.{}").format(sql.Identifier(f"balancer_keys_{self.index}"))

    @property
    def form(self) -> sql.SQL:
        return sql.SQL("(FORMAT binary)" if self.binary else "(FORMAT text)")


def has_entries(source: Connection, one: KeyLog) -> bool:
    """Whether this snapshot has entries. Raises `Refused` for the one that says: the partition was truncated."""
    statement = sql.SQL("SELECT EXISTS (SELECT FROM {0}), EXISTS (SELECT FROM {0} WHERE {1} IS NULL)")
    row = source.execute(statement.format(one.log, sql.Identifier(one.rows.key[0]))).fetchone()
    assert row is not None
    if row[1]:
        raise Refused(f"{one.rows.partition} was truncated, or got another key, while it was copied")
    return bool(row[0])


def analyze_statement(migration: str, index: int) -> sql.Composed:
    """For a log that may grow by millions of entries within minutes: the planner must not take it for empty."""
    return sql.SQL("ANALYZE {}").format(log_name(migration, index))


def entries(source: Connection | Cursor, migration: str, index: int) -> int:
    """Roughly how many entries are waiting, by the numbers of the oldest and the newest."""
    statement = sql.SQL("SELECT coalesce(max({0}) - min({0}) + 1, 0) FROM {1}")
    row = source.execute(statement.format(sql.Identifier(SEQ), log_name(migration, index))).fetchone()
    return int(row[0]) if row else 0


def make_room(target: Cursor, one: KeyLog) -> None:
    """An empty table for the keys, until the transaction ends."""
    target.execute(
        sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM ONLY {} WITH NO DATA").format(
            one.keys, _plain_columns(one.rows.key), one.rows.partition.identifier
        )
    )


def copy_keys(one: KeyLog) -> CopyPair:
    """Carry the logged keys, each once, into that table."""
    names = _plain_columns(one.rows.key)
    read = sql.SQL("COPY (SELECT DISTINCT {} FROM {}) TO STDOUT {}").format(names, one.log, one.form)
    return read, sql.SQL("COPY {} ({}) FROM STDIN {}").format(one.keys, names, one.form)


def take_out(target: Cursor, one: KeyLog) -> None:
    """Deletes the rows of these keys, however often they are there."""
    target.execute(sql.SQL("ANALYZE {}").format(one.keys))
    statement = sql.SQL("DELETE FROM ONLY {} AS t USING {} AS k WHERE {}")
    target.execute(statement.format(one.rows.partition.identifier, one.keys, _same(one.rows.key)))


def copy_changed(one: KeyLog) -> CopyPair:
    """Carry the rows of the logged keys."""
    table = one.rows.partition.identifier
    read = sql.SQL("COPY (SELECT {} FROM ONLY {} AS t WHERE {}) TO STDOUT {}").format(
        _plain_columns(one.copied), table, _in(one.log, one.rows.key), one.form
    )
    return read, sql.SQL("COPY {} ({}) FROM STDIN {}").format(table, _plain_columns(one.copied), one.form)


def sum_at_source(source: Connection, one: KeyLog) -> Sum:
    """The rows of the logged keys, as the source has them."""
    return _sum(source, _summed(one.rows, one.log))


def sum_at_target(target: Cursor, one: KeyLog) -> Sum:
    """The rows of the same keys on the target."""
    return _sum(target, _summed(one.rows, one.keys))


def forget_statement(migration: str, index: int) -> sql.Composed:
    """Removes the entries that the transaction's snapshot has: it does not see those that came later."""
    return sql.SQL("DELETE FROM {}").format(log_name(migration, index))


def _summed(rows: Rows, keys: sql.Composable) -> sql.Composed:
    return sql.SQL("SELECT count(*), coalesce(sum({}), 0) FROM ONLY {} AS t WHERE {}").format(
        row_hash(rows.columns), rows.partition.identifier, _in(keys, rows.key)
    )


def _in(keys: sql.Composable, key: Sequence[str]) -> sql.Composed:
    return sql.SQL("EXISTS (SELECT FROM {} AS k WHERE {})").format(keys, _same(key))


def _sum(cursor: Connection | Cursor, statement: sql.Composed) -> Sum:
    row = cursor.execute(statement).fetchone()
    assert row is not None, "an aggregate has one row"
    return int(row[0]), int(row[1])


def _plain_columns(names: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _same(key: Sequence[str]) -> sql.Composable:
    return sql.SQL(" AND ").join(sql.SQL("t.{0} = k.{0}").format(sql.Identifier(name)) for name in key)
