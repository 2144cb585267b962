"""Which function is the step of which state, track by track. The runner looks it up here; nothing is decided here.

The way back: everything a migration made is undone, writers first. Called by the runner until it succeeds.

The journal says `cancelling` or `restarting`, so what was made can no longer be committed. Lifting the fence comes
first and needs only the source; each later part may fail and be repeated without the earlier ones.
"""

from collections.abc import Callable, Mapping

from balancer.directory.model import Migration, MigrationKind, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.migration import copy, expire, finish, mirroring, reference_home, reshard, swap, switch
from balancer.migration.context import Context
from balancer.migration.journal import read_detail, unpack_tablet
from balancer.migration.machine import Event, State, Track
from balancer.migration.switch import detach_incoming, let_writers_on
from balancer.nodes.schema import install
from balancer.nodes.session.connection import Cursor
from balancer.nodes.tablets import capture, fence, mirror, partition, replication
from balancer.nodes.tablets import copy as tablet_copy


def cancelling(ctx: Context) -> Event:
    """Lifts the fence, removes the incoming partitions and the stream."""
    let_writers_on(ctx, capturing=False)
    _take_away(ctx)
    return Event.BROKEN if ctx.detail.failed else Event.CLEANED


def restarting(ctx: Context) -> Event:
    """The same, and forgets everything known about the copy: it is started over."""
    let_writers_on(ctx, capturing=False)
    ctx.checkpoint()
    _take_away(ctx)
    ctx.forget_copy()
    return Event.STEP


def _take_away(ctx: Context) -> None:
    if ctx.record.operation is MigrationKind.MOVE:
        with ctx.target() as cursor:
            replication.drop_subscription(cursor, ctx.id)
        with ctx.target() as cursor:
            detach_incoming(ctx, cursor, undone=True)
    _drop_incoming(ctx)
    if ctx.record.operation is MigrationKind.MOVE:
        with ctx.source() as cursor:
            replication.drop_slot(cursor, ctx.id)
    _clean_source(ctx)


def _drop_incoming(ctx: Context) -> None:
    """Removes only what is `incoming` under this very migration."""
    with ctx.target() as cursor:
        for name in (name for row in _incoming(ctx, cursor) for name in row.partitions):
            if partition.exists(cursor, name):
                partition.release_references(cursor, name, ctx.settings.lock_timeout)
    with ctx.target() as cursor:
        mine = _incoming(ctx, cursor)
        for row in mine:
            for name in reversed(row.partitions):
                partition.drop_partition(cursor, name)
        install.forget_tablets(cursor, [row.id for row in mine])
        replication.delete_markers(cursor, ctx.id)
        replication.forget_switch(cursor, ctx.id)
        tablet_copy.drop_notes(cursor, ctx.id)


def _incoming(ctx: Context, cursor: Cursor) -> list[install.OwnedTablet]:
    rows = install.read_tablets(cursor)
    return [row for row in rows if row.migration == ctx.id and row.state is install.OwnState.INCOMING]


def _clean_source(ctx: Context) -> None:
    with ctx.source() as cursor:
        replication.drop_publication(cursor, ctx.id)
        replication.delete_markers(cursor, ctx.id)
    # Dropping a trigger waits for readers, and makes others wait behind it: briefly, partition by partition.
    for index, place in enumerate(ctx.source_places):
        with ctx.source() as cursor:
            fence.drop_fence(cursor, [place.partition], ctx.settings.lock_timeout)
            mirror.drop(cursor, ctx.id, index, place.partition)
            capture.drop_capture(cursor, ctx.id, index, place.partition)


Step = Callable[[Context], Event]

_MOVE: Mapping[State, Step] = {
    State.PLANNED: copy.planned,
    State.PREPARING: copy.preparing,
    State.COPYING: copy.copying,
    State.CATCHING_UP: switch.catching_up,
    State.FENCING: switch.fencing,
    State.DRAINING: switch.draining,
    State.VERIFYING: switch.verifying,
    State.SEALING: switch.sealing,
    State.OPENING: finish.opening,
    State.RETIRING: finish.retiring,
    State.RESTARTING: restarting,
    State.CANCELLING: cancelling,
}

_RESHARD: Mapping[State, Step] = {
    State.PLANNED: copy.planned,
    State.PREPARING: reshard.preparing,
    State.FENCING: switch.fencing,
    State.COPYING: reshard.copying,
    State.CATCHING_UP: mirroring.catching_up,
    State.MIRRORING: mirroring.mirroring,
    State.VERIFYING: swap.verifying,
    State.SWAPPING: swap.swapping,
    State.RETIRING: swap.retiring,
    State.RESTARTING: restarting,
    State.CANCELLING: cancelling,
}


_EXPIRE: Mapping[State, Step] = {
    State.PLANNED: expire.planned,
    State.FENCING: expire.fencing,
    State.VERIFYING: expire.verifying,
    State.COPYING: expire.copying,
    State.SWAPPING: expire.swapping,
    State.RETIRING: expire.retiring,
    State.CANCELLING: expire.cancelling,
}


_HOME: Mapping[State, Step] = {
    State.PLANNED: reference_home.planned,
    State.PREPARING: reference_home.preparing,
    State.COPYING: reference_home.copying,
    State.CATCHING_UP: reference_home.catching_up,
    State.FENCING: switch.fencing,
    State.DRAINING: reference_home.draining,
    State.VERIFYING: reference_home.verifying,
    State.SEALING: reference_home.sealing,
    State.OPENING: reference_home.opening,
    State.RETIRING: reference_home.retiring,
    State.RESTARTING: reference_home.restarting,
    State.CANCELLING: reference_home.cancelling,
}


def step_of(track: Track, state: State, *, everywhere: bool = False) -> Step:
    """The work of a state. `everywhere`: the home of a reference table is moving."""
    if everywhere:
        return _HOME[state]
    if track is Track.EXPIRE:
        return _EXPIRE[state]
    steps = _MOVE if track in (Track.MOVE_REPLICATE, Track.MOVE_READ_ONLY) else _RESHARD
    return steps[state]


def source_tablets(record: Migration, snapshot: Snapshot) -> tuple[Tablet, ...]:
    """The tablets that a migration began with, in the order of the record."""
    before = read_detail(record).before
    if before:  # a reshard: after its commit the directory has them no more
        return tuple(unpack_tablet(document, record.table) for document in before)
    return tuple(snapshot.tablet(tablet) for tablet in record.sources)
