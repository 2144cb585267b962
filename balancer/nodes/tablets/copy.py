"""COPY from one node to another through this process, by one thread: rows are read as they come and sent on in blocks.

Both servers work at once, because the sockets between them hold more than a block. One thread and not two, because two
would hand the interpreter to each other with every block, which costs more than the copying.

Migrations call `copy_rows` with a connection on each side that they have prepared (the snapshot, the transaction).
`on_block` is called with every block's size, and with 0 now and then while nothing moves: a throttle sleeps in it, a
cancel raises from it.

Chunks of a copy, and the notes that the target keeps of them: a chunk is there exactly if its note is.

A chunk is a range of pages of the source's partition. Its note is written in the transaction that writes its rows, so
an interrupted copy continues with the chunks that have none. Statements only, called by migrations inside their
transactions on the target; `balancer.migration.machine` says why the order is right.

Reads a partition into its server's cache before its first query comes: called by moves of in-memory tables.

pg_prewarm does it where it is installed. Without it, a plain scan would not be enough: for a table larger than a
quarter of the shared buffers it reuses a few of them over and over. A scan by row addresses goes through the cache in
the ordinary way, and so does a walk along an index; indexes that cannot be walked in the order of columns stay as they
are.
"""

import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass

import psycopg
from psycopg import pq, sql

from balancer.errors import Unavailable
from balancer.naming import Name
from balancer.nodes.session.connection import Connection, Cursor, translate, translated
from balancer.nodes.tablets.object_names import notes_name

BLOCK = 128 * 1024
PATIENCE = 60.0
"""Seconds for which either side may be silent."""
_LOOK = 0.2  # seconds between two checks for a cancel while nothing moves


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy carried."""

    rows: int
    size: int


def copy_rows(
    source: Connection,
    target: Connection,
    read: sql.Composed,
    write: sql.Composed,
    on_block: Callable[[int], None],
    *,
    source_node: str = "",
    patience: float = PATIENCE,
) -> Copied:
    """Pipes `COPY … TO STDOUT` into `COPY … FROM STDIN`. Raises what either side raises.

    The source's errors are translated with the name of its node, if that is given: the caller has the target's.
    `patience`: seconds for which either side may be silent.

    After an error there is nothing on the target; the source's connection may be in the middle of a COPY and must be
    closed.
    """
    reading, writing = _Side(source, "source", on_block, patience), _Side(target, "target", on_block, patience)
    with translated(source_node) if source_node else nullcontext():
        reading.begin(read, pq.ExecStatus.COPY_OUT)
    writing.begin(write, pq.ExecStatus.COPY_IN)
    try:
        size = _pump(reading, writing, on_block, source_node)
        with translated(source_node) if source_node else nullcontext():
            reading.end()
    except BaseException:
        writing.discard()
        raise
    writing.finish()
    return Copied(writing.end(), size)


def statements(
    source: Name, target: Name, columns: Sequence[str], binary: bool, *, where: sql.Composable | None = None
) -> tuple[sql.Composed, sql.Composed]:
    """The two COPY statements for the same columns of a partition and its twin; `where` refers to rows of `t`."""
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    form = sql.SQL("(FORMAT binary)" if binary else "(FORMAT text)")
    read = sql.SQL("COPY {} ({}) TO STDOUT {}").format(source.identifier, names, form)
    if where is not None:
        read = sql.SQL("COPY (SELECT {} FROM ONLY {} AS t WHERE {}) TO STDOUT {}").format(
            names, source.identifier, where, form
        )
    return read, sql.SQL("COPY {} ({}) FROM STDIN {}").format(target.identifier, names, form)


def _pump(reading: "_Side", writing: "_Side", on_block: Callable[[int], None], source_node: str) -> int:
    """Joins rows into blocks: the only cost per row is this loop. Returns the bytes."""
    take = reading.raw.get_copy_data
    block = bytearray()
    total = 0
    while True:
        try:
            size, row = take(1)
            if size > 0:
                block += row
                if len(block) < BLOCK:
                    continue
            elif size == 0:
                reading.wait(select.POLLIN)
                reading.raw.consume_input()
                continue
        except psycopg.Error as error:
            raise (translate(source_node, error) if source_node else error) from error
        if block:
            writing.put(block)
            total += len(block)
            on_block(len(block))
            block.clear()
        if size < 0:
            return total


class _Side:
    """One connection in the middle of a COPY; the driver's own loop costs more per row than the server does."""

    def __init__(
        self, connection: Connection, name: str, on_block: Callable[[int], None], patience: float = PATIENCE
    ) -> None:
        self.raw = connection.pgconn
        self._patience = patience
        self._connection = connection
        self._name = name
        self._on_block = on_block

    def begin(self, statement: sql.Composed, wanted: pq.ExecStatus) -> None:
        self.raw.send_query(statement.as_bytes(self._connection))
        self._flush()
        result = self._result()
        if result is None or result.status != wanted:
            self._drain()
            raise self._error(result)

    def put(self, block: bytearray) -> None:
        while self.raw.put_copy_data(block) == 0:
            self.wait(select.POLLOUT)
        self._flush()

    def finish(self) -> None:
        """Tells the target that the rows are complete."""
        while self.raw.put_copy_end() == 0:
            self.wait(select.POLLOUT)
        self._flush()

    def discard(self) -> None:
        """Makes the target discard what it has received and release its lock, if it still can."""
        with suppress(psycopg.Error, Unavailable):
            self._on_block = _ignore
            self.raw.put_copy_end(b"the copy is not wanted any more")
            self._flush()
            self._drain()

    def end(self) -> int:
        """The rows that the server counted, once it has ended the command. Raises the server's error, if any."""
        result = self._result()
        self._drain()
        if result is None or result.status != pq.ExecStatus.COMMAND_OK:
            raise self._error(result)
        return result.command_tuples or 0

    def wait(self, events: int) -> None:
        poller = select.poll()
        poller.register(self.raw.socket, events)
        waited = 0.0
        while not poller.poll(_LOOK * 1000):
            self._on_block(0)
            waited += _LOOK
            if waited > self._patience:
                raise Unavailable(f"the {self._name} of a copy has stood still for {self._patience:.0f} s")

    def _flush(self) -> None:
        while self.raw.flush():
            self.wait(select.POLLOUT)

    def _result(self) -> "pq.abc.PGresult | None":
        while self.raw.is_busy():
            self.wait(select.POLLIN)
            self.raw.consume_input()
        return self.raw.get_result()

    def _drain(self) -> None:
        while self._result() is not None:
            pass

    def _error(self, result: "pq.abc.PGresult | None") -> psycopg.Error:
        if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
            text = self.raw.error_message.decode(errors="replace").strip()
            return psycopg.OperationalError(text or "the copy ended early")
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
        try:
            return psycopg.errors.lookup(state)(f"{self._name}: {text}")
        except KeyError:
            return psycopg.OperationalError(f"{self._name}: {state} {text}")


def _ignore(_: int) -> None:
    """A copy that was told to stop is not told again."""


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


_INDEXES = """
    SELECT array_agg(a.attname::text ORDER BY o.place), array_agg(o.option::int ORDER BY o.place)
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam AND m.amname = 'btree'
    CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indoption::int2[]) WITH ORDINALITY AS o (attnum, option, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = o.attnum
    WHERE i.indrelid = %s::regclass AND i.indisvalid AND i.indexprs IS NULL AND i.indpred IS NULL
      AND o.place <= i.indnkeyatts
    GROUP BY i.indexrelid
"""
_ONE_WAY = ("enable_seqscan", "enable_bitmapscan", "enable_tidscan", "enable_sort", "enable_incremental_sort")


def warm(cursor: Cursor, partition: Name) -> None:
    """Rows, their TOAST where that may be read, and indexes."""
    row = cursor.execute(
        "SELECT e.extnamespace::regnamespace::text FROM pg_extension e WHERE extname = 'pg_prewarm'"
    ).fetchone()
    if row is not None:
        _prewarm(cursor, row[0], partition)
        return
    for table in (partition, *_aside(cursor, partition)):
        cursor.execute(sql.SQL("SELECT count(*) FROM ONLY {} WHERE ctid >= '(0,0)'").format(table.identifier))
    _walk_indexes(cursor, partition)


def _prewarm(cursor: Cursor, schema: str, partition: Name) -> None:
    cursor.execute(
        sql.SQL(
            """
            SELECT {}.pg_prewarm(r) FROM (
                SELECT oid::regclass FROM pg_class WHERE oid = %(name)s::regclass
                UNION ALL SELECT reltoastrelid::regclass FROM pg_class
                    WHERE oid = %(name)s::regclass AND reltoastrelid <> 0
                UNION ALL SELECT indexrelid::regclass FROM pg_index WHERE indrelid = %(name)s::regclass
            ) AS all_of_it (r)
            """
        ).format(sql.Identifier(schema)),
        {"name": str(partition)},
    )


def _aside(cursor: Cursor, partition: Name) -> Iterator[Name]:
    row = cursor.execute(
        """
        SELECT n.nspname, t.relname FROM pg_class c JOIN pg_class t ON t.oid = c.reltoastrelid
        JOIN pg_namespace n ON n.oid = t.relnamespace
        WHERE c.oid = %s::regclass AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(t.oid, 'SELECT')
        """,
        (str(partition),),
    ).fetchone()
    if row is not None:
        yield Name(*row)


def _walk_indexes(cursor: Cursor, partition: Name) -> None:
    orders = cursor.execute(_INDEXES, (str(partition),)).fetchall()
    before = {name: _setting(cursor, name) for name in _ONE_WAY}
    try:
        for name in _ONE_WAY:
            _set(cursor, name, "off")
        for names, options in orders:
            columns = sql.SQL(", ").join(map(_order, names, options))
            statement = sql.SQL("SELECT count(*) FROM (SELECT FROM ONLY {} ORDER BY {} OFFSET 0) AS walked")
            cursor.execute(statement.format(partition.identifier, columns))
    finally:
        for name, value in before.items():
            _set(cursor, name, value)


def _order(name: str, option: int) -> sql.Composable:
    """A column as an index has it: bit 0 of `indoption` is DESC, bit 1 NULLS FIRST."""
    direction = sql.SQL(" DESC" if option & 1 else " ASC")
    return sql.Identifier(name) + direction + sql.SQL(" NULLS FIRST" if option & 2 else " NULLS LAST")


def _setting(cursor: Cursor, name: str) -> str:
    row = cursor.execute("SELECT current_setting(%s)", (name,)).fetchone()
    assert row is not None
    return str(row[0])


def _set(cursor: Cursor, name: str, value: str) -> None:
    cursor.execute("SELECT set_config(%s, %s, false)", (name, value))
