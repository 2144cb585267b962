"""Chunks of a copy, and the notes that the target keeps of them: a chunk is there exactly if its note is.

A chunk is a range of pages of the source's partition. Its note is written in the transaction that writes its rows, so
an interrupted copy continues with the chunks that have none. Statements only, called by migrations inside their
transactions on the target; `balancer.migration.machine` says why the order is right.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.errors import Unavailable
from balancer.nodes.connection import Connection, Cursor
from balancer.nodes.objects import notes_name


@dataclass(frozen=True, slots=True, order=True)
class Chunk:
    """Pages `[first, end)` of the partition number `part`; without an end up to the partition's own."""

    part: int
    first: int
    end: int | None

    def __str__(self) -> str:
        return f"pages {self.first} to {'the end' if self.end is None else self.end - 1}"


def missing(part: int, noted: Sequence[Chunk], pages: int, size: int) -> Iterator[Chunk]:
    """What is left of a partition of this many pages, in chunks of at most `size` pages; the last has no end. Pure.

    The chunks that are there may have other sizes: a setting may have changed since.
    """
    begin = 0
    for chunk in sorted(noted, key=lambda one: one.first):
        yield from _cut(part, begin, chunk.first, size)
        if chunk.end is None:
            return
        begin = chunk.end
    for chunk in _cut(part, begin, max(pages, begin + 1), size):
        yield Chunk(part, chunk.first, None) if chunk.end == max(pages, begin + 1) else chunk


def _cut(part: int, begin: int, end: int, size: int) -> Iterator[Chunk]:
    for first in range(begin, end, max(1, size)):
        yield Chunk(part, first, min(end, first + max(1, size)))


def create_notes(cursor: Cursor, migration: str) -> None:
    """With the empty partitions."""
    cursor.execute(
        sql.SQL(
            "CREATE TABLE {} (part int, first bigint, until bigint, size bigint NOT NULL DEFAULT 0,"
            " PRIMARY KEY (part, first))"
        ).format(notes_name(migration))
    )


def drop_notes(cursor: Cursor, migration: str) -> None:
    """When the copy is no longer needed, or complete for good. Idempotent."""
    cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(notes_name(migration)))


def read_notes(cursor: Connection | Cursor, migration: str) -> tuple[list[Chunk], int]:
    """The chunks that are there, and their bytes."""
    statement = sql.SQL("SELECT part, first, until, size FROM {}").format(notes_name(migration))
    rows = cursor.execute(statement).fetchall()
    return [Chunk(part, first, end) for part, first, end, _ in rows], sum(row[3] for row in rows)


def settled_notes(cursor: Cursor, migration: str) -> tuple[list[Chunk], int]:
    """The same, once no session is writing a chunk any more: one of another size would overlap those that seem to be
    missing, and only chunks that begin at the same page wait for each other (`claim`)."""
    cursor.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(notes_name(migration)))
    return read_notes(cursor, migration)


def claim(cursor: Cursor, migration: str, chunk: Chunk) -> bool:
    """Before its rows: False if the chunk is there already. Waits for a session that may be writing it."""
    cursor.execute(
        sql.SQL("INSERT INTO {} (part, first, until) VALUES ({}, {}, {}) ON CONFLICT DO NOTHING").format(
            notes_name(migration), *map(sql.Literal, (chunk.part, chunk.first, chunk.end))
        )
    )
    return cursor.rowcount == 1


def note_size(cursor: Cursor, migration: str, chunk: Chunk, size: int) -> None:
    """The bytes of a chunk, in the transaction that has claimed it and written its rows: only for people."""
    cursor.execute(
        sql.SQL("UPDATE {} SET size = {} WHERE part = {} AND first = {}").format(
            notes_name(migration), *map(sql.Literal, (size, chunk.part, chunk.first))
        )
    )


def begin_replay(cursor: Cursor, migration: str, parts: int) -> None:
    """From here to the end of the transaction no chunk and no other replay is in flight, and all chunks are there.

    Raises `Unavailable` if one is not: its chunk would put in again a row that the replay puts in.
    """
    cursor.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(notes_name(migration)))
    noted, _ = read_notes(cursor, migration)
    for part in range(parts):
        if list(missing(part, [chunk for chunk in noted if chunk.part == part], 0, 1)):
            raise Unavailable(f"chunks of partition {part} are missing on the target")
