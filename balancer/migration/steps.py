"""Which function is the step of which state, track by track. The runner looks it up here; nothing is decided here."""

from collections.abc import Callable, Mapping

from balancer.directory.model import Migration, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.migration import (
    steps_cancel,
    steps_copy,
    steps_expiry,
    steps_finish,
    steps_home,
    steps_mirror,
    steps_reshard,
    steps_swap,
    steps_switch,
)
from balancer.migration.context import Context
from balancer.migration.machine import Event, State, Track
from balancer.migration.record import read_detail, unpack_tablet

Step = Callable[[Context], Event]

_MOVE: Mapping[State, Step] = {
    State.PLANNED: steps_copy.planned,
    State.PREPARING: steps_copy.preparing,
    State.COPYING: steps_copy.copying,
    State.CATCHING_UP: steps_switch.catching_up,
    State.FENCING: steps_switch.fencing,
    State.DRAINING: steps_switch.draining,
    State.VERIFYING: steps_switch.verifying,
    State.SEALING: steps_switch.sealing,
    State.OPENING: steps_finish.opening,
    State.RETIRING: steps_finish.retiring,
    State.RESTARTING: steps_cancel.restarting,
    State.CANCELLING: steps_cancel.cancelling,
}

_RESHARD: Mapping[State, Step] = {
    State.PLANNED: steps_copy.planned,
    State.PREPARING: steps_reshard.preparing,
    State.FENCING: steps_switch.fencing,
    State.COPYING: steps_reshard.copying,
    State.CATCHING_UP: steps_mirror.catching_up,
    State.MIRRORING: steps_mirror.mirroring,
    State.VERIFYING: steps_swap.verifying,
    State.SWAPPING: steps_swap.swapping,
    State.RETIRING: steps_swap.retiring,
    State.RESTARTING: steps_cancel.restarting,
    State.CANCELLING: steps_cancel.cancelling,
}


_EXPIRE: Mapping[State, Step] = {
    State.PLANNED: steps_expiry.planned,
    State.FENCING: steps_expiry.fencing,
    State.VERIFYING: steps_expiry.verifying,
    State.COPYING: steps_expiry.copying,
    State.SWAPPING: steps_expiry.swapping,
    State.RETIRING: steps_expiry.retiring,
    State.CANCELLING: steps_expiry.cancelling,
}


_HOME: Mapping[State, Step] = {
    State.PLANNED: steps_home.planned,
    State.PREPARING: steps_home.preparing,
    State.COPYING: steps_home.copying,
    State.CATCHING_UP: steps_home.catching_up,
    State.FENCING: steps_switch.fencing,
    State.DRAINING: steps_home.draining,
    State.VERIFYING: steps_home.verifying,
    State.SEALING: steps_home.sealing,
    State.OPENING: steps_home.opening,
    State.RETIRING: steps_home.retiring,
    State.RESTARTING: steps_home.restarting,
    State.CANCELLING: steps_home.cancelling,
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
