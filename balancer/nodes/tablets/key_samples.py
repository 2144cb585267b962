"""Keys in use on a node, without help from applications: where rows are, and which were written lately.

`split_keys` cuts a range tablet by size: exactly if the tablet is small, otherwise from PostgreSQL's own histogram, or
from a sample of its blocks. `row_age_samples` finds hot keys by the age of rows (`xmin`). Both are bounded in time, run
only for tablets under suspicion, and say how reliable they are.

Cuts through weighted keys. Pure arithmetic on what `key_samples` has read.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import log, sqrt
from typing import NamedTuple

from psycopg import sql

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.catalog.bounds import KeyColumn
from balancer.nodes.catalog.owners_code import check_readable
from balancer.nodes.session.connection import Connection, Cursor
from balancer.policies.keyspace.hash_leaves import position
from balancer.policies.keyspace.hashing import partition_hash
from balancer.policies.keyspace.keys import Key, KeyMismatch, KeyType, encode_key, parse_value
from balancer.policies.view import KeySamples, SampleSource


class Point(NamedTuple):
    """An encoded key and how much of the tablet it stands for."""

    key: bytes
    weight: float


def cuts(points: Sequence[Point], parts: int) -> tuple[bytes, ...]:
    """Keys that cut sorted points into parts of equal weight; never the first key, never the same one twice."""
    total = sum(point.weight for point in points)
    found: list[bytes] = []
    reached = 0.0
    wanted = 1
    for point in points:
        # A cut is the first key of the part above it, so it comes before its own weight is counted.
        while wanted < parts and reached >= total * wanted / parts:
            wanted += 1
            if point.key > points[0].key and (not found or point.key > found[-1]):
                found.append(point.key)
        reached += point.weight
    return tuple(found)


EXACT_ROWS = 200_000  # sorting this many keys takes some tenths of a second
MAX_BLOCKS = 2_000  # a sample reads at most 16 MB
SECONDS = 2.0
BUCKETS_PER_PART = 4  # with fewer of the histogram's buckets per part, parts would be too uneven


@dataclass(frozen=True, slots=True)
class SplitKeys:
    """Where to cut: encoded keys in order, how they were found, and how certain it is that the parts are equal."""

    keys: tuple[bytes, ...]
    method: str  # exact, statistics, sample, or the last two
    confidence: float  # 0 to 1


@dataclass(frozen=True, slots=True)
class _Size:
    rows: float
    blocks: int
    changed: int
    """Rows changed since the last ANALYZE."""


def split_keys(
    connection: Connection,
    partitions: Sequence[Name],
    columns: Sequence[KeyColumn],
    parts: int,
    seconds: float = SECONDS,
    *,
    trusted: bool = False,
) -> SplitKeys:
    """Keys that cut neighbouring range partitions, taken together, into parts of equal size.

    `parts − 1` of them, fewer if keys repeat. Raises `Refused` if no key can be found: there are no rows, or all of
    them have one key; or if the partitions would run their owners' code, unless those are `trusted`.
    """
    with _bounded(connection, seconds) as cursor:
        check_readable(cursor, partitions, trusted=trusted)
        sizes = {partition: _size(cursor, partition) for partition in partitions}
        if sum(size.rows for size in sizes.values()) <= EXACT_ROWS:
            found = _exact(cursor, partitions, columns, parts)
        else:
            found = _estimated(cursor, sizes, columns, parts)
    if not found.keys:
        raise Refused(f"{', '.join(map(str, partitions))} has no two different keys to cut between")
    return found


def current_xid(cursor: Cursor) -> int:
    """The newest transaction now: a baseline for `row_age_samples`."""
    row = cursor.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()
    assert row is not None
    return int(row[0])


def row_age_samples(
    connection: Connection,
    partition: Name,
    columns: Sequence[KeyColumn],
    newer_than: int,
    *,
    hashed: bool = False,
    seconds: float = SECONDS,
    trusted: bool = False,
) -> KeySamples:
    """Keys of rows written after a baseline transaction, from a sample of the partition's blocks.

    After a move all rows carry the mover's transaction: take the baseline then. Deletions and reads leave no trace.
    """
    types = [column.type for column in columns]
    with _bounded(connection, seconds) as cursor:
        check_readable(cursor, [partition], trusted=trusted)
        share = _share(_size(cursor, partition))
        cursor.execute(
            sql.SQL(
                "SELECT {key} FROM ONLY {table} TABLESAMPLE SYSTEM ({share}) WHERE age(xmin) BETWEEN 0 AND"
                " pg_snapshot_xmax(pg_current_snapshot())::text::bigint - {baseline}"
            ).format(
                key=_key(columns),
                table=partition.identifier,
                share=sql.Literal(share),
                baseline=sql.Literal(newer_than),
            )
        )
        keys = [_position(types, key) if hashed else encode_key(types, key) for key in _keys(cursor, types)]
    confidence = 0.9 * max(0.0, 1 - 1 / sqrt(len(keys))) if keys else 0.0
    return KeySamples(SampleSource.ROW_AGES, tuple(keys), (100 / share,) * len(keys), confidence=confidence)


def statistics_samples(connection: Connection, partition: Name, column: KeyColumn) -> KeySamples:
    """Where rows are, by PostgreSQL's histogram of the key's first column: the poorest source of heat."""
    with _bounded(connection, SECONDS) as cursor:
        size = _size(cursor, partition)
        points = _statistics(cursor, partition, column)
    keys = tuple(point.key for point in points)
    weights = tuple(point.weight for point in points)
    return KeySamples(SampleSource.STATISTICS, keys, weights, confidence=0.3 * _freshness(size) if keys else 0.0)


_SETTINGS = """
SELECT set_config('statement_timeout', %s, true),
       CASE WHEN has_parameter_privilege('track_counts', 'SET') THEN set_config('track_counts', 'off', true) END
"""


@contextmanager
def _bounded(connection: Connection, seconds: float) -> Iterator[Cursor]:
    """A transaction with a time limit, whose reads PostgreSQL does not count where it gives us the choice.

    Counted, they would look like load: a hot tablet would be kept hot by the very questions about its heat.
    """
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(_SETTINGS, (f"{round(seconds * 1000)}ms",))
        yield cursor


def _size(cursor: Cursor, partition: Name) -> _Size:
    row = cursor.execute(
        """
        SELECT greatest(c.reltuples, 0), greatest(pg_stat_get_live_tuples(c.oid), 0),
               pg_relation_size(c.oid) / 8192, pg_stat_get_mod_since_analyze(c.oid)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relname = %s
        """,
        partition,
    ).fetchone()
    if row is None:
        raise Refused(f"there is no partition {partition}")
    analysed, live, blocks, changed = row
    # Neither count may exist yet; the blocks then say how many rows there can be at most.
    return _Size(max(analysed, live) or blocks * 200.0, blocks, changed)


def _exact(cursor: Cursor, partitions: Sequence[Name], columns: Sequence[KeyColumn], parts: int) -> SplitKeys:
    """The keys at exactly these ranks, in one pass over the sorted keys."""
    # Part number of a row: (place − 1) · parts / total in whole numbers; a row that begins a new one is a cut.
    cursor.execute(
        sql.SQL(
            """
            SELECT {key} FROM (
                SELECT {names}, row_number() OVER (ORDER BY {order}) AS place, count(*) OVER () AS total
                FROM ({rows}) united
            ) ranked
            WHERE place = 1 OR (place - 1) * {parts} / total <> (place - 2) * {parts} / total
            ORDER BY place
            """
        ).format(
            key=_key(columns),
            names=_names(columns),
            order=_order(columns),
            rows=sql.SQL(" UNION ALL ").join(
                sql.SQL("SELECT {} FROM ONLY {}").format(_names(columns), partition.identifier)
                for partition in partitions
            ),
            parts=sql.Literal(parts),
        )
    )
    types = [column.type for column in columns]
    # The first existing key comes first; a cut at it would leave an empty part below.
    lowest, *found = [encode_key(types, key) for key in _keys(cursor, types)] or [b""]
    return SplitKeys(tuple(sorted({key for key in found if key != lowest})), "exact", 1.0)


def _estimated(cursor: Cursor, sizes: Mapping[Name, _Size], columns: Sequence[KeyColumn], parts: int) -> SplitKeys:
    """From each partition's histogram, or from its blocks where that is too coarse or too old."""
    total = sum(size.rows for size in sizes.values())
    points: list[Point] = []
    confidence = 0.0
    methods = set()
    for partition, size in sizes.items():
        share = size.rows / total
        wanted = max(1.0, parts * share)
        found = _histogram(cursor, partition, columns[0], size, wanted) or _blocks(cursor, partition, columns, size)
        weight = sum(point.weight for point in found.points) or 1.0
        points += [Point(point.key, point.weight / weight * share) for point in found.points]
        confidence += share * max(0.0, found.freshness * (1 - wanted * found.error))
        methods.add(found.method)
    return SplitKeys(cuts(sorted(points), parts), " and ".join(sorted(methods)), confidence)


@dataclass(frozen=True, slots=True)
class _Picture:
    """How the keys of one partition are spread: points, how they were found, and how far a rank may be off."""

    points: list[Point]
    method: str
    error: float
    freshness: float = 1.0


def _histogram(cursor: Cursor, partition: Name, column: KeyColumn, size: _Size, parts: float) -> _Picture | None:
    points = _statistics(cursor, partition, column)
    freshness = _freshness(size)
    if len(points) < BUCKETS_PER_PART * parts or freshness < 0.5 or len(cuts(points, 2)) == 0:
        return None
    return _Picture(points, "statistics", 1 / len(points), freshness)


def _statistics(cursor: Cursor, partition: Name, column: KeyColumn) -> list[Point]:
    """The histogram's bounds, each standing for one bucket, and the most common values with their shares."""
    row = cursor.execute(
        """
        SELECT histogram_bounds::text::text[], most_common_vals::text::text[], most_common_freqs
        FROM pg_stats WHERE schemaname = %s AND tablename = %s AND attname = %s
        """,
        (*partition, column.name),
    ).fetchone()
    if row is None:
        return []
    bounds, common, shares = (value or [] for value in row)
    rest = max(0.0, 1 - sum(shares)) / len(bounds) if bounds else 0.0
    texts = [(text, rest) for text in bounds] + list(zip(common, shares, strict=True))
    points = [
        Point(encode_key([column.type], [value]), share) for text, share in texts for value in _value(column, text)
    ]
    return sorted(points)


def _value(column: KeyColumn, text: str) -> Key:
    """The value, or nothing if a key cannot represent it."""
    try:
        return (parse_value(column.type, text),)
    except KeyMismatch:
        return ()


def _freshness(size: _Size) -> float:
    return max(0.0, 1 - size.changed / max(size.rows, 1.0))


def _blocks(cursor: Cursor, partition: Name, columns: Sequence[KeyColumn], size: _Size) -> _Picture:
    types = [column.type for column in columns]
    share = _share(size)
    cursor.execute(
        sql.SQL("SELECT {} FROM ONLY {} TABLESAMPLE SYSTEM ({})").format(
            _key(columns), partition.identifier, sql.Literal(share)
        )
    )
    points = sorted(Point(encode_key(types, key), 1.0) for key in _keys(cursor, types))
    # Rows of one block resemble each other, so the blocks count, not the rows (Dvoretzky–Kiefer–Wolfowitz, 95 %).
    blocks = max(1.0, size.blocks * share / 100)
    return _Picture(points, "sample", sqrt(log(40) / (2 * blocks)))


def _share(size: _Size) -> float:
    """Per cent of the blocks that may be read."""
    return min(100.0, 100.0 * MAX_BLOCKS / max(size.blocks, 1))


def _key(columns: Sequence[KeyColumn]) -> sql.Composable:
    return sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(column.name)) for column in columns)


def _names(columns: Sequence[KeyColumn]) -> sql.Composable:
    return sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)


def _order(columns: Sequence[KeyColumn]) -> sql.Composable:
    """As the partition key compares, which may have another collation than the column."""
    return sql.SQL(", ").join(
        sql.SQL("{} COLLATE {}").format(
            sql.Identifier(column.name), sql.Identifier("pg_catalog", column.collation or "C")
        )
        if column.type is KeyType.TEXT
        else sql.Identifier(column.name)
        for column in columns
    )


def _keys(cursor: Cursor, types: Sequence[KeyType]) -> Iterator[Key]:
    """The rows as keys; those with NULL, or with a value that a key cannot represent, are left out."""
    for row in cursor:
        if None in row:
            continue
        try:
            yield tuple(parse_value(kind, text) for kind, text in zip(types, row, strict=True))
        except KeyMismatch:
            continue


def _position(types: Sequence[KeyType], key: Key) -> bytes:
    return position(partition_hash(types, key)).to_bytes(8, "big")
