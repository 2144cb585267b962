"""Every migration is verified before it commits: how, and why so little of that happens during the writers' pause.

A replicated move is verified in three parts that together cover every row:

1. *The bulk*, whole, at the snapshot of the first replay: whatever chunks and replay have done, the target must now
   equal that snapshot. Both sides are checksummed while the target's indexes are built. A later replay is compared, in
   its own transaction, with the snapshot that it was read from. All this happens before anything is streamed.
2. *What changed since*, while catching up: a trigger on the source has logged the key of every changed row from before
   the first chunk on. A round reads logged keys and their rows' hashes in one snapshot of the source, sends a marker,
   waits until the target has applied it, and reads the target's hashes of the same keys. Equal means: the target has
   had this row as the source had it, with every change up to then applied; a later change has a later log entry. These
   entries are forgotten. Unequal may only mean that the row changed meanwhile: the entry stays.
3. *The rest*, under the fence, when neither side moves any more: the entries that are left, the last fraction of a
   second's writes. Here unequal means a real difference, and the migration is given up.

Entries are forgotten by their own number, never by "up to": a transaction may commit later than its numbers suggest.
For a key that was not equal, one entry stays. The log belongs to the source and knows nothing of replication, so it
reveals a change that was lost on the way.

In read-only mode both sides stand still: the bulk is all there is. Splits and merges compare on one server in one
snapshot (see `reshard`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from psycopg.rows import TupleRow

from balancer.migration.context import Context
from balancer.migration.retries import Difference
from balancer.nodes.catalog.shapes import Shape
from balancer.nodes.session.connection import Connection, Cursor
from balancer.nodes.tablets import capture, checksum
from balancer.nodes.tablets.checksum import Compared, Digest, Key, Rows

SHOWN = 5
_TEXTS = ("text", "character varying")
ROUND = 5000


@dataclass(frozen=True, slots=True)
class Changed:
    """Logged keys of one partition: the entries behind each, and the source's hash of its row."""

    entries: Mapping[Key, tuple[int, ...]]
    hashes: Mapping[Key, int | None]

    def __len__(self) -> int:
        return len(self.hashes)


def rows_of(shape: Shape) -> Rows:
    """The rows of a partition as both sides compare them."""
    types = {column.name: column.type for column in shape.columns}
    return Rows(shape.name, compared(shape), shape.key, tuple(types[name] for name in shape.key))


def compared(shape: Shape) -> tuple[Compared, ...]:
    """Every column, generated ones too; text with a collation of its own is compared byte by byte."""
    return tuple(
        Compared(column.name, not column.hashable or column.type.startswith(_TEXTS), column.type, not column.not_null)
        for column in shape.columns
    )


def bulk_digest(ctx: Context, connection: Connection, rows: Rows, on_chunk: Callable[[int], None]) -> Digest:
    """A partition's checksum, in chunks."""
    return checksum.digest(connection, rows, ctx.settings.checksum_pages, on_chunk)


def compare_bulk(
    source: Connection, target: Connection, rows: Rows, mine: Digest, theirs: Digest, *, pages: int = 4096
) -> int:
    """Raises `Difference` with some of the keys; returns the number of rows.

    Both connections must still see what was checksummed: if the sums differ, it is read again to say where.
    """
    counts = tuple(sum(count for count, _ in side.values()) for side in (mine, theirs))
    if mine == theirs:
        return counts[0]
    fine = [checksum.digest(side, rows, pages, lambda _: None, buckets=checksum.BUCKETS) for side in (source, target)]
    buckets = [bucket for bucket in {**fine[0], **fine[1]} if fine[0].get(bucket) != fine[1].get(bucket)]
    keys = checksum.differing_keys(source, target, rows, buckets, SHOWN)
    raise Difference(
        f"the copy of {rows.partition} differs from the source ({counts[0]} rows there, {counts[1]} in the copy);"
        f" rows that differ begin with {', '.join(keys) or 'none any more'}"
    )


def read_changed(cursor: Cursor, rows: Rows, migration: str, index: int, limit: int = ROUND) -> Changed:
    """Logged keys and the hashes of their rows. Raises `Difference` if the partition was truncated."""
    return gather(rows, cursor.execute(checksum.changed_statement(rows, migration, index, limit)))


def gather(rows: Rows, found: Iterable[TupleRow]) -> Changed:
    """The same, from the answer to `nodes/tablets/checksum.changed_statement`."""
    entries: dict[Key, tuple[int, ...]] = {}
    hashes: dict[Key, int | None] = {}
    for seq, key, hashed in checksum.changed_entries(found):
        if key is None:
            raise Difference(f"{rows.partition} was truncated, or got another key, while it was copied")
        entries[key] = (*entries.get(key, ()), seq)
        hashes[key] = hashed
    return Changed(entries, hashes)


def equal_keys(cursor: Cursor, rows: Rows, changed: Changed) -> list[Key]:
    """The keys whose rows are the same here."""
    here = checksum.hashes_of(cursor, rows, list(changed.hashes))
    return [key for key, hashed in changed.hashes.items() if here.get(key) == hashed]


def forget(ctx: Context, index: int, changed: Changed, keys: list[Key]) -> None:
    """Drops the log entries of keys that have been compared; of the others one is enough.

    Otherwise a row that keeps changing would have more entries after each round, and the rest would never get short.
    """
    equal = set(keys)
    done = [seq for key, entries in changed.entries.items() for seq in (entries if key in equal else entries[:-1])]
    if done:
        with ctx.source() as cursor:
            capture.forget(cursor, ctx.id, index, done)


def compare_rest(cursor: Cursor, rows: Rows, changed: Changed) -> None:
    """Under the fence: every key that is left must be equal on the target. Raises `Difference`."""
    equal = set(equal_keys(cursor, rows, changed))
    different = [key for key in changed.hashes if key not in equal]
    if different:
        shown = ", ".join("(" + ", ".join(key) + ")" for key in different[:SHOWN])
        raise Difference(
            f"{len(different)} rows of {rows.partition} that changed during the copy differ on the target: {shown}"
        )
