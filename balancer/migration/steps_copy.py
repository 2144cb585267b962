"""The first half of a move: preparing both nodes, and copying the rows. Called by the runner, state by state.

Everything made here carries the migration's id and is undone by `steps_cancel`. Whatever changes a node does so in a
transaction that has checked the leader's epoch itself, long statements too: a successor ends them before it begins.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from balancer.clock import Clock
from balancer.directory.model import MigrationKind, MigrationMode
from balancer.errors import Refused, Unavailable
from balancer.migration import comparison, guards, reference_marks, retries
from balancer.migration.background import Background, stop_at
from balancer.migration.context import Context, partitions_of
from balancer.migration.fence_renewal import FenceKeeper
from balancer.migration.machine import Event
from balancer.migration.mode_choice import choose_mode
from balancer.nodes import blockers, capture, copy, fence, partition, references, replication, schema, warming
from balancer.nodes.checksum import Digest, Rows
from balancer.nodes.connection import Connection, Cursor, full_conninfo, translated
from balancer.nodes.objects import bound_constraint
from balancer.nodes.shape import Shape, read_shape


def planned(ctx: Context) -> Event:
    """Nothing has been made yet, or nothing any more: a copy that was lost is not started over at once."""
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
    """From the transaction's commit on, changes of the sources are logged. What logs them must not be switched off."""
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
        if any(row.migration == ctx.id for row in schema.read_tablets(cursor)):
            return
        for tablet in ctx.record.targets:
            names = partitions_of(ctx.table, tablet)
            incoming = schema.OwnedTablet(tablet.id, tablet.epoch, schema.OwnState.INCOMING, names, ctx.id)
            schema.write_tablets(cursor, [incoming])
        for place, shape in zip(ctx.target_places, shapes, strict=True):
            partition.create_partition(cursor, place.root, shape, place.partition)
        # The root may have got a check since it was looked at; the partition is ours alone until it is attached.
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
    """Rows at one snapshot, compared with the source at that snapshot; then everything an owner needs but ATTACH."""
    guards.check_fingerprints(ctx)
    shapes = read_shapes(ctx)
    with ExitStack() as stack:
        if ctx.record.mode is MigrationMode.READ_ONLY:
            stack.enter_context(FenceKeeper(ctx))
        with _snapshots(ctx) as (reader, summer):
            places = zip(ctx.target_places, shapes, strict=True)
            rows = sum(_copy_one(ctx, place, shape, reader, summer) for place, shape in places)
        _complete(ctx, shapes)
        if ctx.record.mode is MigrationMode.REPLICATE:
            with ctx.target() as cursor:
                node = ctx.record.source_node
                source = full_conninfo(ctx.links.address(node), ctx.links.control(node))
                replication.create_subscription(cursor, ctx.id, source)
        ctx.note(bulk_verified=True, rows=rows)
    return Event.STEP


def read_shapes(ctx: Context) -> tuple[Shape, ...]:
    """The source's partitions as they were when this state, or one before it, began; DDL since is seen by `guards`."""
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
    reference_marks.find(ctx)
    node = ctx.record.source_node
    with translated(node), ctx.links.control(node).cursor() as cursor:
        size = guards.total_size(cursor, [shape.name for shape in shapes])
    guards.check_disk(ctx, size)
    ctx.note(size=size)
    if ctx.record.mode is MigrationMode.REPLICATE:
        guards.check_capacity(ctx)


@contextmanager
def _snapshots(ctx: Context) -> Iterator[tuple[Connection, Connection]]:
    """Two sessions on the source that see the same rows: one reads them, one sums them up."""
    node = ctx.record.source_node
    with ctx.links.data(node) as reader, ctx.links.data(node) as summer:
        both = (reader, summer)
        for connection in both:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if ctx.record.mode is MigrationMode.REPLICATE:
            with ctx.links.replication(node) as maker:
                slot = _make_slot(ctx, maker)
                for connection in both:
                    connection.execute(f"SET TRANSACTION SNAPSHOT '{slot.snapshot}'")
                    connection.execute("SELECT 1")  # the snapshot is taken by the first query, while its maker lives
        yield both


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


def _copy_one(ctx: Context, place: partition.Place, shape: Shape, reader: Connection, summer: Connection) -> int:
    """Copies a partition and builds its indexes; sums up the source meanwhile, then the target. Returns its rows."""
    rows = comparison.rows_of(shape)
    node = ctx.record.target_node
    read, write = copy.statements(shape.name, shape.name, shape.copied, shape.portable)
    ctx.progress.expect(ctx.detail.size)
    with ExitStack() as stack:
        writer = stack.enter_context(ctx.links.data(node))
        checker = stack.enter_context(ctx.links.data(node))
        source_sum = stack.enter_context(Background(_digest(ctx, summer, rows), "source-checksum"))
        with ctx.long_work(writer, node) as cursor:
            # While it is empty: looking at each row on its way in costs less than reading them all once more.
            partition.add_bound(cursor, place, bound_constraint(ctx.id))
            references.without_triggers(cursor)
            copied = copy.copy_rows(reader, writer, read, write, _on_block(ctx), source_node=ctx.record.source_node)
        ctx.progress.counted(copied.rows)
        checker.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        target_sum = stack.enter_context(Background(_digest(ctx, checker, rows), "target-checksum"))
        ctx.progress.waiting(f"indexes of {shape.name}")
        if ctx.settings.index_workers is not None:
            writer.execute(f"SET max_parallel_maintenance_workers = {int(ctx.settings.index_workers)}")
        for index in shape.indexes:
            ctx.checkpoint()
            with ctx.long_work(writer, node) as cursor:
                partition.build_index(cursor, shape, index, shape.name)
        ctx.progress.waiting(f"the checksum of {shape.name}")
        sums = source_sum.result(), target_sum.result()
        count = comparison.compare_bulk(summer, checker, rows, *sums, pages=ctx.settings.checksum_pages)
        checker.execute("COMMIT")  # what follows needs the table for itself
        with ctx.long_work(writer, node) as cursor:
            for index in shape.indexes:
                partition.finish_index(cursor, shape, index, shape.name)
        return count


def _digest(ctx: Context, connection: Connection, rows: Rows) -> Callable[[threading.Event], Digest]:
    return lambda stop: comparison.bulk_digest(ctx, connection, rows, lambda _: stop_at(stop))


def _on_block(ctx: Context) -> Callable[[int], None]:
    throttle = Throttle(ctx.clock, ctx.settings.throttle)

    def on_block(size: int) -> None:
        ctx.checkpoint()
        throttle.spend(size)
        ctx.progress.done(size)

    return on_block


def _complete(ctx: Context, shapes: tuple[Shape, ...]) -> None:
    """Statistics, warmth, and a guard against writes by name. Triggers come with ATTACH: nothing may fire before."""
    node = ctx.record.target_node
    with ctx.links.data(node) as connection:
        for place, shape in zip(ctx.target_places, shapes, strict=True):
            ctx.checkpoint()
            with ctx.long_work(connection, node) as cursor:
                partition.set_replica_identity(cursor, shape, place.partition)
                fence.guard_incoming(cursor, place.partition, guard(ctx))
                cursor.execute(partition.analyze(place.partition))
            if ctx.detail.warm:
                ctx.progress.waiting(f"the cache to be filled with {place.partition}")
                with connection.cursor() as cursor:
                    warming.warm(cursor, place.partition)
        with connection.cursor() as cursor:
            guards.check_references(ctx, cursor, ctx.settings.write_pause_budget)


def guard(ctx: Context) -> fence.Fence:
    """What refuses writes to the target's partitions until they are opened."""
    return fence.Fence(ctx.id, ctx.leadership.epoch, fence.SEALED, 0, ctx.moved.id)


class Throttle:
    """Lets so many bytes through per second, with a tenth of a second's worth at once."""

    def __init__(self, clock: Clock, rate: int | None) -> None:
        self._clock = clock
        self._rate = rate
        self._ahead = 0.0  # seconds of work that were done too early
        self._last = clock.monotonic()

    def spend(self, size: int) -> None:
        """Sleeps if more was spent than the rate allows."""
        if not self._rate:
            return
        now = self._clock.monotonic()
        self._ahead = max(0.0, self._ahead - (now - self._last)) + size / self._rate
        self._last = now
        if self._ahead > 0.1:
            self._clock.sleep(self._ahead - 0.05)
