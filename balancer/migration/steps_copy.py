"""The first half of a move: preparing both nodes, and copying the rows. Called by the runner, state by state.

Everything made here carries the migration's id and is undone by `steps_cancel`. Whatever changes a node does so in a
transaction that has checked the leader's epoch itself, long statements too: a successor ends them before it begins.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from balancer.directory.model import MigrationKind, MigrationMode
from balancer.errors import Refused, Unavailable
from balancer.migration import chunk_copy, completion, guards, key_replay, reference_marks, retries
from balancer.migration.context import Context, partitions_of
from balancer.migration.fence_renewal import FenceKeeper
from balancer.migration.machine import Event, Track
from balancer.migration.mode_choice import choose_mode
from balancer.nodes import blockers, capture, chunks, fence, partition, references, replication, schema, warming
from balancer.nodes.connection import Connection, Cursor, full_conninfo, run_together, translated
from balancer.nodes.objects import bound_constraint
from balancer.nodes.shape import Shape, read_shape


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
        if any(row.migration == ctx.id for row in schema.read_tablets(cursor)):
            return
        for tablet in ctx.record.targets:
            names = partitions_of(ctx.table, tablet)
            incoming = schema.OwnedTablet(tablet.id, tablet.epoch, schema.OwnState.INCOMING, names, ctx.id)
            schema.write_tablets(cursor, [incoming])
        for place, shape in zip(ctx.target_places, shapes, strict=True):
            partition.create_partition(cursor, place.root, shape, place.partition)
        if ctx.record.operation is MigrationKind.MOVE:
            chunks.create_notes(cursor, ctx.id)
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
        key_replay.replay_until_near(ctx, shapes)
        _start_streaming(ctx, shapes)
    return Event.STEP


def _fill(ctx: Context, shapes: tuple[Shape, ...]) -> None:
    _add_bounds(ctx)
    chunk_copy.copy_chunks(ctx, shapes)
    with key_replay.view_of_source(ctx) as view:
        if ctx.record.mode is MigrationMode.REPLICATE:
            # A row that changed between two chunks may be in both: no unique index could be built.
            ctx.progress.waiting("the rows that changed while they were copied")
            key_replay.replay_and_forget(ctx, shapes, view)
        _guard_rows(ctx, shapes)
        completion.complete_rows(ctx, shapes, view)
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
        source = full_conninfo(ctx.links.address(node), ctx.links.control(node))
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
    reference_marks.find(ctx)
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
        key_replay.replay(ctx, shapes, view)


@contextmanager
def _view_of_slot(ctx: Context) -> Iterator[key_replay.SourceView]:
    """A session that sees the slot's snapshot: what is not in it is in the stream."""
    with ExitStack() as stack:
        with ctx.links.replication(ctx.record.source_node) as maker:
            slot = _make_slot(ctx, maker)
            view = stack.enter_context(key_replay.view_of_source(ctx, slot.snapshot))  # while its maker lives
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
                    warming.warm(cursor, place.partition)
        with connection.cursor() as cursor:
            guards.check_references(ctx, cursor, ctx.settings.write_pause_budget)
