"""What a filled partition of the target needs to match its original: indexes, several at once, and a comparison.

Called by `steps_copy` when the rows are there; everything may be repeated, and whatever exists is left alone. The
comparison covers all rows of both sides: the source as a view sees it, and the target, which the last replay made the
same and which does not change until the next. Both are read while the indexes are built.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from balancer.migration import comparison, guards
from balancer.migration.background import Background, stop_at
from balancer.migration.context import Context
from balancer.migration.key_replay import SourceView
from balancer.nodes import partition
from balancer.nodes.checksum import Digest, Rows
from balancer.nodes.connection import Connection, translated
from balancer.nodes.shape import Index, Shape

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
        comparing = stack.enter_context(Background(_compare(ctx, shapes, view), "checksums"))
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


def _compare(ctx: Context, shapes: Sequence[Shape], view: SourceView) -> Callable[[threading.Event], int]:
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
