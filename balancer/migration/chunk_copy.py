"""The rows of a move, chunk by chunk, several at a time; after an interruption, only the chunks that are still missing.

Called by `steps_copy`. Each worker has a session on each node: it reads a chunk, and writes rows and note in one
transaction on the target (`nodes.chunks`). So an interruption costs only the chunks that were in flight.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from balancer.migration import guards
from balancer.migration.background import Background, stop_at
from balancer.migration.context import Context
from balancer.migration.copy_pace import Throttle, pace
from balancer.nodes import checksum, chunks, copy, references
from balancer.nodes.chunks import Chunk
from balancer.nodes.connection import Connection, translated
from balancer.nodes.shape import Shape


def copy_chunks(ctx: Context, shapes: Sequence[Shape]) -> None:
    """Copies what is missing."""
    source = ctx.record.source_node
    with ctx.target() as cursor:
        noted, done = chunks.settled_notes(cursor, ctx.id)
    waiting: queue.SimpleQueue[Chunk] = queue.SimpleQueue()
    wanted = 0
    with translated(source):
        for part, shape in enumerate(shapes):
            pages, page = checksum.pages_of(ctx.links.control(source), shape.name)
            mine = [chunk for chunk in noted if chunk.part == part]
            for chunk in chunks.missing(part, mine, pages, ctx.settings.chunk_size // page):
                waiting.put(chunk)
                wanted += 1
    ctx.progress.expect(max(ctx.detail.size, done), done)
    workers = max(1, min(ctx.settings.chunks_at_once, wanted))
    with ExitStack() as stack:
        rate = stack.enter_context(pace(ctx))
        throttles = [Throttle(ctx.clock, rate, 1 / workers) for _ in range(workers)]
        running = [
            stack.enter_context(Background(_worker(ctx, shapes, waiting, throttles[number]), f"chunks-{number}"))
            for number in range(workers if wanted else 0)
        ]
        for worker in running:
            worker.result()


def _worker(
    ctx: Context, shapes: Sequence[Shape], waiting: "queue.SimpleQueue[Chunk]", throttle: Throttle
) -> Callable[[threading.Event], None]:
    def work(stop: threading.Event) -> None:
        def on_block(size: int) -> None:
            stop_at(stop)
            ctx.checkpoint()
            throttle.spend(size)
            ctx.progress.done(size)

        source, target = ctx.record.source_node, ctx.record.target_node
        with ctx.links.data(target) as writer, ctx.links.data(source) as reader:
            pipe = Pipe(reader, writer, on_block)
            while True:
                on_block(0)
                try:
                    chunk = waiting.get_nowait()
                except queue.Empty:
                    return
                _copy_chunk(ctx, chunk, shapes[chunk.part], pipe)

    return work


@dataclass(frozen=True, slots=True)
class Pipe:
    """A session on each node, and the observer of what passes through."""

    reader: Connection
    writer: Connection
    on_block: Callable[[int], None]


def _copy_chunk(ctx: Context, chunk: Chunk, shape: Shape, pipe: Pipe) -> None:
    source, target = ctx.record.source_node, ctx.record.target_node
    where = checksum.pages(chunk.first, chunk.end)
    read, write = copy.statements(shape.name, shape.name, shape.copied, shape.portable, where=where)
    with ctx.long_work(pipe.writer, target, lazily=True) as cursor:
        if not chunks.claim(cursor, ctx.id, chunk):
            return
        references.without_triggers(cursor)
        guards.look_at_source(ctx, pipe.reader)
        copied = copy.copy_rows(pipe.reader, pipe.writer, read, write, pipe.on_block, source_node=source)
        chunks.note_size(cursor, ctx.id, chunk, copied.size)
    ctx.progress.counted(copied.rows)
