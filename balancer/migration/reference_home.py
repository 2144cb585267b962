"""Moves the home of a reference table to a node that has a copy. Called by the runner, in the states of any move.

The target already has the copy, which follows the home by its own stream; so nothing is copied. The rest is a move's
switch: the fence on the home, a marker behind the last write, the comparison, the seal, the commit; the argument of
`machine` holds. Afterwards the former home is a copy without a stream: the leader's keeper fills it, and all others,
from the new home, whose epoch is in the names of their streams.
"""

from balancer.errors import Refused
from balancer.migration import finish, guards, switch
from balancer.migration.concurrency import Background
from balancer.migration.context import Context, partitions_of
from balancer.migration.machine import Event
from balancer.migration.retries import Difference
from balancer.migration.stream import await_marker, next_marker
from balancer.migration.switch import (
    FIXED_COST,
    PING_INTERVAL,
    PING_PATIENCE,
    back_off,
    let_writers_on,
    read_sequences,
    seal,
)
from balancer.nodes.catalog import sequences
from balancer.nodes.schema import install
from balancer.nodes.session.connection import Cursor, rows_that_follow, run_together, translated
from balancer.nodes.tablets import fence, leftovers, replication
from balancer.nodes.tablets.reference_copies import content, copied_columns, guard_copy, guard_home, read_streams


def planned(ctx: Context) -> Event:
    """Nothing has to be chosen."""
    return Event.STEP


def preparing(ctx: Context) -> Event:
    """The target's copy must be there and follow."""
    guards.take_fingerprints(ctx)
    guards.check_owners_code(ctx)
    _find_stream(ctx)
    return Event.STEP


def copying(ctx: Context) -> Event:
    """The copy is there."""
    return Event.STEP


def catching_up(ctx: Context) -> Event:
    """Lets writers continue if they were held back; then waits until a switch would fit into the budget."""
    let_writers_on(ctx)
    _find_stream(ctx)
    with ctx.target() as cursor:
        replication.enable_subscription(cursor, ctx.stream)
    back_off(ctx)
    while True:
        ctx.checkpoint()
        guards.check_fingerprints(ctx)
        with ctx.source() as cursor:
            number = next_marker(ctx, cursor)
            replication.delete_markers_before(cursor, ctx.stream, number)
        sent = ctx.clock.monotonic()
        await_marker(ctx, number, PING_PATIENCE)
        pause = 1.5 * (ctx.clock.monotonic() - sent) + FIXED_COST
        if pause <= ctx.settings.write_pause_budget:
            ctx.note(predicted_pause=pause)
            return Event.STEP
        ctx.progress.waiting(f"the copy: a switch would take {pause * 1000:.0f} ms")
        ctx.sleep(PING_INTERVAL)


def draining(ctx: Context) -> Event:
    """Waits until the copy has everything up to the fence."""
    read_sequences(ctx)
    await_marker(ctx, ctx.detail.marker, ctx.settings.write_pause_budget * 2)
    return Event.STEP


def verifying(ctx: Context) -> Event:
    """Compares all rows of both sides, which stand still. A reference table is small."""
    source, target = ctx.record.source_node, ctx.record.target_node
    with translated(source), ctx.links.control(source).cursor() as cursor:  # in the transaction that closes it
        mine = _contents(ctx, cursor)
    with ctx.target() as cursor:
        guards.check_owners_code_of(ctx, cursor, target, ctx.roots)  # the source's definitions were compared
        theirs = _contents(ctx, cursor)
    for root, here, there in zip(ctx.roots, mine, theirs, strict=True):
        if here != there:
            raise Difference(f"{root} has {here[0]} rows on its home {source} and {there[0]} on {target}, or others")
    return Event.STEP


def _contents(ctx: Context, cursor: Cursor) -> list[tuple[int, int]]:
    cursor.execute("SET LOCAL TimeZone TO 'UTC'")
    cursor.execute("SET LOCAL DateStyle TO 'ISO'")
    return [content(cursor, copied_columns(cursor, root)) for root in ctx.roots]


def sealing(ctx: Context) -> Event:
    """Seals; in parallel the copy stops following, and all that it has applied is made durable."""

    def stop_following() -> None:
        with ctx.target() as cursor:
            ready = [replication.disable_statement(ctx.stream), *switch.made_ready(ctx)]
            run_together(cursor, ready)
            *_, arrived = rows_that_follow(cursor)
            switch.check_arrived(ctx, arrived)

    return seal(ctx, stop_following)


def opening(ctx: Context) -> Event:
    """The new home takes writes, and the former one says where it is."""
    straight, ctx.fence = ctx.closed is not None, None
    tell = finish.tell_source if straight else finish.mark_moved
    with Background(lambda _: tell(ctx), "mark-moved") as marking:
        _open(ctx)
        marking.wait(ctx.settings.write_pause_budget)
    if ctx.fenced_at is not None:
        ctx.note(pause=ctx.clock.monotonic() - ctx.fenced_at)
        ctx.fenced_at = None
    return Event.STEP


def _open(ctx: Context) -> None:
    moved = ctx.moved
    owned = install.OwnedTablet(moved.id, moved.epoch, install.OwnState.OWNED, partitions_of(ctx.table, moved))
    with ctx.target() as cursor:
        finish.check_ready(ctx, cursor)
        for stream in sorted(read_streams(cursor).of(moved.id)):
            replication.drop_subscription(cursor, stream)
        fence.lock_partitions(cursor, ctx.roots, ctx.settings.lock_timeout)
        guard_home(cursor, ctx.roots, moved.id)
        run_together(cursor, sequences.raise_statements(ctx.detail.sequences))
        install.write_tablets(cursor, [owned])


def retiring(ctx: Context) -> Event:
    """The former home becomes a copy: closed as copies are, and no longer an owner. What it may have taken as an owner
    after the switch is copied aside first: as a copy, it is filled from the new home."""
    moved, names = ctx.moved, [place.partition for place in ctx.source_places]
    with ctx.target() as cursor:
        replication.forget_switch(cursor, ctx.id)
    with ctx.source() as cursor:
        fence.lock_partitions(cursor, names, ctx.settings.lock_timeout)
        row = cursor.execute("SELECT epoch FROM balancer.tablet WHERE id = %s", (moved.id,)).fetchone()
        if row is not None and row[0] > moved.epoch:
            raise Refused(f"node {ctx.record.source_node} has tablet {moved.id} again, with epoch {row[0]}")
        if row is not None and (kept := leftovers.copy_aside(cursor, [moved.id], names, ctx.id)):
            ctx.note(kept=kept)
        guard_copy(cursor, names, moved.id, moved.node, moved.epoch)
        fence.lift_fence(cursor, names, ctx.settings.lock_timeout, closed=True)  # it is no longer an owner
        install.forget_tablets(cursor, [moved.id])
    with ctx.source() as cursor:
        fence.drop_fence(cursor, names, ctx.settings.lock_timeout)
    return Event.STEP


def cancelling(ctx: Context) -> Event:
    """Lifts the fence; the copy keeps following."""
    _undo(ctx)
    return Event.BROKEN if ctx.detail.failed else Event.CLEANED


def restarting(ctx: Context) -> Event:
    """The same, and then starts from the beginning."""
    _undo(ctx)
    return Event.STEP


def _undo(ctx: Context) -> None:
    let_writers_on(ctx, capturing=True)
    with ctx.target() as cursor:
        replication.forget_switch(cursor, ctx.id)
        for stream in sorted(read_streams(cursor).of(ctx.moved.id)):
            replication.enable_subscription(cursor, stream)
    with ctx.source() as cursor:
        fence.drop_fence(cursor, [place.partition for place in ctx.source_places], ctx.settings.lock_timeout)


def _find_stream(ctx: Context) -> None:
    """By which the target follows the home."""
    source, target = ctx.record.source_node, ctx.record.target_node
    with translated(target):
        followed = read_streams(ctx.links.control(target)).of(ctx.moved.id)
    with translated(source):
        sent = read_streams(ctx.links.control(source))
    streams = sorted(stream for stream in followed if sent.slots.get(stream))
    if not streams:
        raise Refused(f"node {target} has no copy of {ctx.table.name} that follows its home {source} yet")
    ctx.stream = streams[-1]
