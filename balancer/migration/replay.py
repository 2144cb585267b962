"""Makes the target's copy equal to one snapshot of the source by exchanging the rows of every key that has changed.

Called by the copy of a replicated move once all chunks are there, as often as it takes to get close; the last time at
the snapshot of the slot, from which the stream continues. `machine` says why that order is right.

A replay reads the log of changes and the rows in one snapshot. On the target it is one durable transaction, compared
with the source before its commit. Then the entries that this snapshot has are forgotten, if there are many, and later
ones stay. It may be repeated at any point: what was put in is taken out again.

A target that is taken back in time afterwards (a failover to a standby that was behind) lacks what nobody remembers
any more. So each replay has a number, which the target gets with the rows and the source when the entries are
forgotten: like the markers of the stream, whose numbers continue from these, none may be missing.

What a filled partition of the target needs to match its original: indexes, several at once, and a comparison.

Called by `copy` when the rows are there; everything may be repeated, and whatever exists is left alone. The
comparison covers all rows of both sides: the source as a view sees it, and the target, which the last replay made the
same and which does not change until the next. Both are read while the indexes are built.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from psycopg import sql

from balancer.errors import Refused
from balancer.migration import comparison, guards
from balancer.migration.concurrency import Background, stop_at
from balancer.migration.context import Context
from balancer.migration.retries import Difference
from balancer.nodes.catalog.shapes import Index, Shape
from balancer.nodes.session.connection import Connection, Cursor, run_together, translated
from balancer.nodes.tablets import checksum, copy, fence, partition, references, replication
from balancer.nodes.tablets.checksum import Digest, KeyLog, Rows, Sum

FEW = 20_000
"""Log entries that may be left for the last replay, during which the source keeps its WAL for the slot, and for the
comparison afterwards."""
MOST = 20
"""Replays before the last: a tablet that changes faster than it is replayed is left to the stream, which says so."""
PATIENCE = 6 * 3600.0
"""Seconds for which either side may be silent: a join over a large tablet returns its first row late."""


@dataclass(frozen=True, slots=True)
class SourceView:
    """A session on the source that sees one snapshot, and the name by which others may see the same."""

    connection: Connection
    snapshot: str


@contextmanager
def view_of_source(ctx: Context, snapshot: str = "") -> Iterator[SourceView]:
    """One snapshot of the source: the current one, or one that another session has exported and still holds."""
    node = ctx.record.source_node
    with ctx.links.data(node) as reader:
        reader.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, false)", (f"{PATIENCE:.0f}s",))
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if snapshot:
            reader.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        row = reader.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        yield SourceView(reader, str(row[0]))


def replay_until_near(ctx: Context, shapes: Sequence[Shape]) -> None:
    """Replays until few keys are left for the last one, or until that gets no closer."""
    for _ in range(MOST):
        ctx.checkpoint()
        waiting = _waiting(ctx, shapes)
        if waiting <= FEW:
            return
        ctx.progress.waiting(f"some {waiting} changed keys to be replayed", at_once=True)
        with view_of_source(ctx) as view:
            replay_and_forget(ctx, shapes, view)


def replay_and_forget(ctx: Context, shapes: Sequence[Shape], view: SourceView) -> None:
    """Replays what the view has; its entries are not needed afterwards.

    If there are few they stay anyway: they are then compared once more, while catching up, by rows that the stream
    carries.
    """
    with translated(ctx.record.source_node):
        many = sum(checksum.entries(view.connection, ctx.id, index) for index in range(len(shapes))) > FEW
    number = replay(ctx, shapes, view, numbered=many)
    if number is None or not many:
        return
    with ctx.source_at(view.snapshot) as cursor:
        forgotten = [checksum.forget_statement(ctx.id, index) for index in range(len(shapes))]
        run_together(cursor, [*forgotten, replication.number_statement(ctx.id, number)])


def replay(ctx: Context, shapes: Sequence[Shape], view: SourceView, *, numbered: bool = False) -> int | None:
    """Exchanges the rows of the keys that the view's log has; None: there are none. Returns the replay's number.

    Afterwards the copy equals the view, until the next replay.
    """
    node = ctx.record.target_node
    guards.look_at_source(ctx, ctx.links.control(ctx.record.source_node))
    logs = [_log(ctx, index, shape) for index, shape in enumerate(shapes)]
    with translated(ctx.record.source_node):
        changed = [one for one in logs if checksum.has_entries(view.connection, one)]
        known = replication.newest_marker(view.connection, ctx.id)  # of the last replay whose entries were forgotten
    with ctx.links.data(node) as writer, ctx.durable_work(writer, node) as cursor:
        copy.begin_replay(cursor, ctx.id, len(shapes))
        number = _check_numbers(cursor, ctx.id, node, known)
        if not changed:
            return None
        with _past_the_guard(ctx, cursor, changed):
            exchange = _Exchange(ctx, view.connection, writer, cursor)
            for one in changed:
                exchange.take_out(one)
            for one in changed:
                ctx.checkpoint()
                exchange.put_in(one)
        if numbered:
            run_together(cursor, [replication.number_statement(ctx.id, number)])
    return number


@contextmanager
def _past_the_guard(ctx: Context, cursor: Cursor, changed: Sequence[KeyLog]) -> Iterator[None]:
    """Only our own writes get through: past all triggers or, without that right, behind a lock."""
    if references.may_prepare(cursor):
        references.without_triggers(cursor)
        yield
        return
    names = [one.rows.partition for one in changed]
    guarded = [name for name in names if fence.let_through(cursor, name)]
    yield
    for name in guarded:
        fence.guard_incoming(cursor, name, ctx.guard)


def _log(ctx: Context, index: int, shape: Shape) -> KeyLog:
    return KeyLog(ctx.id, index, comparison.rows_of(shape), shape.copied, shape.portable)


class _Exchange:
    """Changed keys on their way from a view of the source into a transaction of the target."""

    def __init__(self, ctx: Context, reader: Connection, writer: Connection, cursor: Cursor) -> None:
        self._ctx = ctx
        self._reader, self._writer, self._cursor = reader, writer, cursor

    def take_out(self, one: KeyLog) -> None:
        checksum.make_room(self._cursor, one)
        self._carry(checksum.copy_keys(one))
        checksum.take_out(self._cursor, one)

    def put_in(self, one: KeyLog) -> None:
        """Raises `Difference` if what the source has is not what has arrived."""
        self._carry(checksum.copy_changed(one))
        with translated(self._ctx.record.source_node):
            wanted = checksum.sum_at_source(self._reader, one)
        _compare(one, wanted, checksum.sum_at_target(self._cursor, one))

    def _carry(self, statements: checksum.CopyPair) -> None:
        copy.copy_rows(
            self._reader,
            self._writer,
            *statements,
            lambda _: self._ctx.check(),
            source_node=self._ctx.record.source_node,
            patience=PATIENCE,
        )


def _compare(one: KeyLog, wanted: Sum, found: Sum) -> None:
    if found != wanted:
        raise Difference(
            f"rows of {one.rows.partition} that changed during the copy differ on the target"
            f" ({wanted[0]} on the source, {found[0]} in the copy)"
        )


def _check_numbers(cursor: Cursor, migration: str, node: str, known: int) -> int:
    """The number of the next replay. Raises `Refused` if the target lacks one whose entries were forgotten."""
    newest = replication.newest_marker(cursor, migration)
    if newest < known or replication.missing_markers(cursor, migration):
        raise Refused(f"node {node} has lost changes that it had applied: did it go back in time?")
    return newest + 1


def _waiting(ctx: Context, shapes: Sequence[Shape]) -> int:
    """Roughly how many keys are waiting, after ANALYZE has told the planner."""
    indexes = range(len(shapes))
    with ctx.source([checksum.analyze_statement(ctx.id, index) for index in indexes]) as cursor:
        return sum(checksum.entries(cursor, ctx.id, index) for index in indexes)


_Job = tuple[Shape, Index]

LOOK = 1.0
"""Seconds between two checks of what the owner has added to the source meanwhile."""


def complete_rows(ctx: Context, shapes: Sequence[Shape], view: SourceView) -> None:
    """Builds the indexes that are missing, and compares every row with what the view of the source sees."""
    node = ctx.record.target_node
    with translated(node), ctx.links.control(node).cursor() as cursor:
        missing = [
            (shape, index)
            for shape in shapes
            for index in shape.indexes
            if not partition.index_exists(cursor, shape, index, shape.name)
        ]
    waiting: queue.SimpleQueue[_Job] = queue.SimpleQueue()
    for job in missing:
        waiting.put(job)
    builders = max(1, min(ctx.settings.indexes_at_once, len(missing)))
    with ExitStack() as stack:
        comparing = stack.enter_context(Background(_compare_all(ctx, shapes, view), "checksums"))
        building = [
            stack.enter_context(Background(_build(ctx, waiting, builders + 1), f"indexes-{number}"))
            for number in range(builders if missing else 0)
        ]
        for builder in building:
            builder.result()
        ctx.progress.waiting("the checksum of the copy")
        rows = comparing.result()
    ctx.note(bulk_verified=True, rows=rows)
    with ctx.links.data(node) as connection:
        for shape in shapes:
            with ctx.long_work(connection, node) as cursor:
                for index in shape.indexes:
                    partition.finish_index(cursor, shape, index, shape.name)


def _build(ctx: Context, waiting: "queue.SimpleQueue[_Job]", sessions: int) -> Callable[[threading.Event], None]:
    """Takes from the queue, alongside the other `sessions` at work on the target."""

    def work(stop: threading.Event) -> None:
        node = ctx.record.target_node
        with ctx.links.data(node) as connection:
            partition.share_workers(connection, ctx.settings.index_workers, sessions)
            while True:
                stop_at(stop)
                ctx.checkpoint()
                try:
                    shape, index = waiting.get_nowait()
                except queue.Empty:
                    return
                ctx.progress.waiting(f"index {index.name} of {shape.name}")
                with ctx.long_work(connection, node) as cursor:
                    partition.build_index(cursor, shape, index, shape.name)

    return work


def _compare_all(ctx: Context, shapes: Sequence[Shape], view: SourceView) -> Callable[[threading.Event], int]:
    """Compares every partition. Returns the number of rows."""

    def work(stop: threading.Event) -> int:
        node = ctx.record.target_node
        with ctx.links.data(node) as checker:
            checker.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return sum(_compare_one(ctx, comparison.rows_of(shape), view, checker, stop) for shape in shapes)

    return work


def _compare_one(ctx: Context, rows: Rows, view: SourceView, checker: Connection, stop: threading.Event) -> int:
    source = ctx.record.source_node
    with Background(_digest(ctx, view.connection, rows, source), "source-checksum") as summing:
        found = comparison.bulk_digest(ctx, checker, rows, lambda _: stop_at(stop))
        wanted = summing.result()
    return comparison.compare_bulk(view.connection, checker, rows, wanted, found, pages=ctx.settings.checksum_pages)


def _digest(ctx: Context, connection: Connection, rows: Rows, node: str) -> Callable[[threading.Event], Digest]:
    def work(stop: threading.Event) -> Digest:
        with translated(node), ctx.links.data(node) as looking:
            seen = -LOOK

            def on_chunk(_: int) -> None:
                nonlocal seen
                stop_at(stop)
                if ctx.clock.monotonic() - seen >= LOOK:  # each chunk is planned again
                    guards.look_at_source(ctx, looking)
                    seen = ctx.clock.monotonic()

            on_chunk(0)
            return comparison.bulk_digest(ctx, connection, rows, on_chunk)

    return work
