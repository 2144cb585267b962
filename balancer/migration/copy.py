"""The first half of a move: preparing both nodes, and copying the rows. Called by the runner, state by state.

Everything made here carries the migration's id and is undone by `steps`. Whatever changes a node does so in a
transaction that has checked the leader's epoch itself, long statements too: a successor ends them before it begins.

The rows of a move, chunk by chunk, several at a time; after an interruption, only the chunks that are still missing.

Called by `copy`. Each worker has a session on each node: it reads a chunk, and writes rows and note in one
transaction on the target (`nodes.tablets.copy`). So an interruption costs only the chunks that were in flight.

How fast a migration copies: at a set rate, or, with `throttle = "auto"`, as its nodes' own commits allow.

For `auto` a thread times an empty commit on each node: it changes nothing, and waits for the disk as the application's
commits do. `balancer.policies.pacing` decides what that means for the rate. Called by the steps that copy rows.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from psycopg import sql

from balancer.clock import Clock
from balancer.directory.model import MigrationKind, MigrationMode
from balancer.errors import Refused, Unavailable
from balancer.migration import guards, replay, retries, stream
from balancer.migration.concurrency import Background, stop_at
from balancer.migration.context import Context, partitions_of
from balancer.migration.guards import FenceKeeper, choose_mode
from balancer.migration.machine import Event, Track
from balancer.nodes.catalog.shapes import Shape, read_shape
from balancer.nodes.schema import blockers, install
from balancer.nodes.session import peers
from balancer.nodes.session.connection import Connection, Cursor, run_together, translated
from balancer.nodes.tablets import capture, checksum, copy, fence, partition, references, replication
from balancer.nodes.tablets.copy import Chunk
from balancer.nodes.tablets.object_names import bound_constraint
from balancer.policies.options import AUTO
from balancer.policies.pacing import FIRST, adjusted


def planned(ctx: Context) -> Event:
    """Nothing has been made yet, or everything was undone: a lost copy is not started over at once."""
    if ctx.detail.restarts:
        pause = retries.back_off(ctx.detail.restarts, ctx.settings)
        ctx.progress.waiting(f"the next copy, in {pause:.1f} s: {ctx.detail.retreat}", at_once=True)
        ctx.sleep(pause)
    choose_mode(ctx)
    return Event.STEP


def preparing(ctx: Context) -> Event:
    """Preflight, then the target's empty partitions and, where changes will be streamed, what captures them."""
    guards.take_fingerprints(ctx)
    shapes = read_shapes(ctx)
    _preflight(ctx, shapes)
    create_incoming(ctx, shapes)
    if ctx.record.mode is MigrationMode.REPLICATE:
        try:
            _start_stream(ctx, shapes)
        except Unavailable:
            guards.name_blockers(ctx, ctx.record.source_node, [shape.name for shape in shapes], blockers.FENCE)
            raise
    return Event.STEP


def _start_stream(ctx: Context, shapes: tuple[Shape, ...]) -> None:
    with ctx.source() as cursor:
        if replication.publication_exists(cursor, ctx.id):
            return  # the answer to an earlier attempt was lost
        start_captures(ctx, cursor, shapes)
        replication.create_publication(cursor, ctx.id, [shape.name for shape in shapes])


def start_captures(ctx: Context, cursor: Cursor, shapes: tuple[Shape, ...]) -> None:
    """From the transaction's commit on, changes to the sources are logged. What logs them must not be switched off."""
    fence.lock_partitions(cursor, [shape.name for shape in shapes], ctx.settings.lock_timeout)
    guards.check_definitions(ctx, cursor, ctx.record.source_node)
    for index, shape in enumerate(shapes):
        capture.start_capture(cursor, ctx.id, index, shape.name, key=shape.key, lock_timeout=ctx.settings.lock_timeout)
    guards.take_fingerprints_again(ctx, cursor, ctx.record.source_node)


def create_incoming(ctx: Context, shapes: tuple[Shape, ...]) -> None:
    """The new partitions, empty and detached, with rows that say whose they are. Nothing if they are there already.

    `shapes` has the model of each of `ctx.target_places`.
    """
    with ctx.target() as cursor:
        if any(row.migration == ctx.id for row in install.read_tablets(cursor)):
            return
        for tablet in ctx.record.targets:
            names = partitions_of(ctx.table, tablet)
            incoming = install.OwnedTablet(tablet.id, tablet.epoch, install.OwnState.INCOMING, names, ctx.id)
            install.write_tablets(cursor, [incoming])
        for place, shape in zip(ctx.target_places, shapes, strict=True):
            partition.create_twin(cursor, place.root, shape, place.partition)
        if ctx.record.operation is MigrationKind.MOVE:
            copy.create_notes(cursor, ctx.id)
        # The root may have gained a check since we looked; the partition is ours alone until it is attached.
        made = [place.partition for place in ctx.target_places]
        guards.check_owners_code_of(ctx, cursor, ctx.record.target_node, made)
        if references.may_prepare(cursor):
            # This locks the referenced tables, which their writers use.
            partition.set_lock_timeout(cursor, ctx.settings.lock_timeout)
            but = () if ctx.record.operation is MigrationKind.MOVE else ctx.roots
            for place, shape in zip(ctx.target_places, shapes, strict=True):
                references.prepare_references(cursor, shape, place.partition, but)
        else:
            references.refuse_own(shapes)


def copying(ctx: Context) -> Event:
    """Rows, compared with the source; then everything an owner needs except ATTACH; then the stream of changes.

    What an earlier attempt, or a predecessor, has brought so far is kept (see `machine`, "The copy").
    """
    guards.check_fingerprints(ctx)
    shapes = read_shapes(ctx)
    if ctx.record.mode is MigrationMode.READ_ONLY:
        with FenceKeeper(ctx):
            _fill(ctx, shapes)
        return Event.STEP  # and both sides stand still
    node = ctx.record.target_node
    with translated(node):
        streaming = replication.subscription_exists(ctx.links.control(node), ctx.id)
    if not streaming:  # otherwise all was done, and only the journal does not say so
        _fill(ctx, shapes)
        replay.replay_until_near(ctx, shapes)
        _start_streaming(ctx, shapes)
    return Event.STEP


def _fill(ctx: Context, shapes: tuple[Shape, ...]) -> None:
    _add_bounds(ctx)
    copy_chunks(ctx, shapes)
    with replay.view_of_source(ctx) as view:
        if ctx.record.mode is MigrationMode.REPLICATE:
            # A row that changed between two chunks may be in both: no unique index could be built.
            ctx.progress.waiting("the rows that changed while they were copied")
            replay.replay_and_forget(ctx, shapes, view)
        _guard_rows(ctx, shapes)
        replay.complete_rows(ctx, shapes, view)
    _prepare_for_owner(ctx, shapes)


def _add_bounds(ctx: Context) -> None:
    """While it is empty: looking at each row on its way in costs less than reading them all once more."""
    with ctx.target() as cursor:
        for place in ctx.target_places:
            if not partition.has_constraint(cursor, place.partition, bound_constraint(ctx.id)):
                partition.add_bound(cursor, place, bound_constraint(ctx.id))


def _guard_rows(ctx: Context, shapes: tuple[Shape, ...]) -> None:
    """Stops writes by the partitions' names: earlier ones would show up in the comparison, later ones cannot happen.

    Behind a fence, the switch's number follows the rows, and the comparison follows the number: a target that has it
    when it is attached has every row that was compared.
    """
    with ctx.target() as cursor:
        if ctx.track is Track.MOVE_READ_ONLY:
            run_together(cursor, replication.switch_statements(ctx.id, ctx.detail.switch))
        for place, shape in zip(ctx.target_places, shapes, strict=True):
            fence.guard_incoming(cursor, place.partition, ctx.guard)
            partition.grant(cursor, shape, place.partition)


def _start_streaming(ctx: Context, shapes: tuple[Shape, ...]) -> None:
    """The slot; the changed keys at exactly its snapshot; then everything after it, by the stream."""
    guards.check_fingerprints(ctx)
    guards.check_capacity(ctx)
    with ctx.source() as cursor:
        replication.drop_slot(cursor, ctx.id)  # of an attempt whose snapshot is gone
    _replay_at_slot(ctx, shapes)
    with ctx.target() as cursor:
        node = ctx.record.source_node
        source = peers.for_subscription(ctx.links.address(node), ctx.links.control(node))
        replication.create_subscription(cursor, ctx.id, source)


def read_shapes(ctx: Context) -> tuple[Shape, ...]:
    """The source's partitions as they were when this state, or one before it, began; `guards` sees any DDL since."""
    if ctx.shapes is None:
        node = ctx.record.source_node
        with translated(node), ctx.links.control(node).cursor() as cursor:
            ctx.shapes = tuple(read_shape(cursor, place.partition) for place in ctx.source_places)
    return ctx.shapes


def _preflight(ctx: Context, shapes: tuple[Shape, ...]) -> None:
    refusals = [refusal for shape in shapes for refusal in shape.refusals]
    if refusals:
        raise Refused("this tablet cannot be carried: " + "; ".join(refusals))
    guards.check_owners_code(ctx)
    guards.check_roots(ctx)
    guards.check_roots_agree(ctx)
    stream.find(ctx)
    node = ctx.record.source_node
    with translated(node), ctx.links.control(node).cursor() as cursor:
        size = guards.total_size(cursor, [shape.name for shape in shapes])
    guards.check_disk(ctx, size)
    ctx.note(size=size)
    if ctx.record.mode is MigrationMode.REPLICATE:
        guards.check_capacity(ctx)


def _replay_at_slot(ctx: Context, shapes: tuple[Shape, ...]) -> None:
    """What is exchanged here stays in the log: it is compared while catching up."""
    with _view_of_slot(ctx) as view:
        replay.replay(ctx, shapes, view)


@contextmanager
def _view_of_slot(ctx: Context) -> Iterator[replay.SourceView]:
    """A session that sees the slot's snapshot: what is not in it is in the stream."""
    with ExitStack() as stack:
        with ctx.links.replication(ctx.record.source_node) as maker:
            slot = _make_slot(ctx, maker)
            view = stack.enter_context(replay.view_of_source(ctx, slot.snapshot))  # while its maker lives
        yield view


def _make_slot(ctx: Context, maker: Connection) -> replication.MadeSlot:
    """PostgreSQL waits here for every open write transaction of the server; ours are short, others' may not be."""
    until = ctx.clock.monotonic() + ctx.settings.retry_patience
    while True:
        try:
            with ctx.source_command(), translated(ctx.record.source_node):
                return replication.create_slot(maker, ctx.id)
        except Unavailable:
            if maker.closed or ctx.clock.monotonic() > until:
                raise
            ctx.progress.waiting("open transactions on the source, which a new slot must wait for")
            ctx.sleep(0.5)


def _prepare_for_owner(ctx: Context, shapes: tuple[Shape, ...]) -> None:
    """Replica identity, statistics, warmth. Triggers come with ATTACH: nothing may fire before."""
    node = ctx.record.target_node
    with ctx.links.data(node) as connection:
        for place, shape in zip(ctx.target_places, shapes, strict=True):
            ctx.checkpoint()
            with ctx.long_work(connection, node) as cursor:
                partition.set_replica_identity(cursor, shape, place.partition)
                cursor.execute(partition.analyze(place.partition))
            if ctx.detail.warm:
                ctx.progress.waiting(f"the cache to be filled with {place.partition}")
                with connection.cursor() as cursor:
                    copy.warm(cursor, place.partition)
        with connection.cursor() as cursor:
            guards.check_references(ctx, cursor, ctx.settings.write_pause_budget)


Rate = Callable[[], float | None]
"""Bytes per second, now; None: no limit; 0: nothing right now."""

LOOK = 0.1
"""Seconds between two commits on a node."""
LOOKS = 5
"""Commits by which a rate is judged."""
REST_EVERY = 30.0
"""Seconds after which the copy rests briefly, to see how long commits take without it."""
_COMMIT = sql.SQL("BEGIN; SET LOCAL synchronous_commit TO on; SELECT pg_current_xact_id(); COMMIT")


@contextmanager
def pace(ctx: Context) -> Iterator[Rate]:
    """The rate for the length of a copy."""
    fixed = ctx.settings.throttle
    if fixed != AUTO:
        yield lambda: fixed
        return
    probe = _Probe(ctx)
    with Background(probe.run, "commit-probe"):
        yield probe.rate


class _Probe:
    """Belongs to its thread, except `rate`. If it fails, the copy continues at the last good rate."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._right = FIRST
        self._resting = True  # until it is known how long commits take without the copy

    def rate(self) -> float:
        return 0.0 if self._resting else self._right

    def run(self, stop: threading.Event) -> None:
        ctx = self._ctx
        nodes = sorted({ctx.record.source_node, ctx.record.target_node})
        try:
            with ExitStack() as stack:
                sessions = {node: stack.enter_context(ctx.links.data(node)) for node in nodes}
                while not stop.is_set():
                    self._follow(sessions, stop)
        finally:
            self._resting = False

    def _follow(self, sessions: dict[str, Connection], stop: threading.Event) -> None:
        """From one rest of the copy to the next."""
        clock, share = self._ctx.clock, self._ctx.settings.throttle_share
        self._resting = True
        stop.wait(LOOK)  # what is in flight finishes
        quiet = self._look(sessions, stop, LOOK / 5)
        self._resting = False
        until = clock.monotonic() + REST_EVERY
        while not stop.is_set() and clock.monotonic() < until:
            busy = self._look(sessions, stop, LOOK)
            self._right = min(adjusted(self._right, quiet[node], busy[node], share) for node in sessions)

    def _look(self, sessions: dict[str, Connection], stop: threading.Event, interval: float) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {node: [] for node in sessions}
        for _ in range(LOOKS):
            for node, session in sessions.items():
                began = self._ctx.clock.monotonic()
                with translated(node):
                    session.execute(_COMMIT)
                found[node].append(self._ctx.clock.monotonic() - began)
            if stop.wait(interval):
                break
        return found


class Throttle:
    """Lets this many bytes through per second, in bursts of up to a tenth of a second's worth. For one thread."""

    def __init__(self, clock: Clock, rate: Rate, share: float = 1.0) -> None:
        self._clock = clock
        self._rate = rate
        self._share = share  # of the rate, where several threads copy
        self._ahead = 0.0  # seconds of work that were done too early
        self._last = clock.monotonic()

    def spend(self, size: int) -> None:
        """Sleeps if more was spent than the rate allows."""
        while (rate := self._rate()) == 0.0:
            self._clock.sleep(0.02)
        if rate is None:
            return
        now = self._clock.monotonic()
        self._ahead = max(0.0, self._ahead - (now - self._last)) + size / (rate * self._share)
        self._last = now
        if self._ahead > 0.1:
            self._clock.sleep(self._ahead - 0.05)


def copy_chunks(ctx: Context, shapes: Sequence[Shape]) -> None:
    """Copies what is missing."""
    source = ctx.record.source_node
    with ctx.target() as cursor:
        noted, done = copy.settled_notes(cursor, ctx.id)
    waiting: queue.SimpleQueue[Chunk] = queue.SimpleQueue()
    wanted = 0
    with translated(source):
        for part, shape in enumerate(shapes):
            pages, page = checksum.pages_of(ctx.links.control(source), shape.name)
            mine = [chunk for chunk in noted if chunk.part == part]
            for chunk in copy.missing(part, mine, pages, ctx.settings.chunk_size // page):
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
        if not copy.claim(cursor, ctx.id, chunk):
            return
        references.without_triggers(cursor)
        guards.look_at_source(ctx, pipe.reader)
        copied = copy.copy_rows(pipe.reader, pipe.writer, read, write, pipe.on_block, source_node=source)
        copy.note_size(cursor, ctx.id, chunk, copied.size)
    ctx.progress.counted(copied.rows)
