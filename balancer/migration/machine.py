"""The transitions of a migration: one table, and the argument why no order of events loses a write. Pure values.

Called by the runner (which asks what follows), by recovery (which asks what a successor does with what it finds) and
by the command line (which asks whether `cancel` is still possible). Nothing elsewhere knows what follows what.

Theory of operation
===================

Four tracks share the states: a move or a reshard (split, merge, or n tablets into m on one node), each either
*replicate* (writers go on while rows are copied) or *read-only* (writers are held back from the start).

    move, replicate      planned preparing copying catching_up fencing draining verifying sealing committing
                         | opening retiring done
    move, read-only      planned preparing fencing copying verifying sealing committing | opening retiring done
    reshard, replicate   planned preparing copying catching_up verifying swapping committing | retiring done
    reshard, read-only   planned preparing fencing copying verifying swapping committing | retiring done

Beside them stand the ways back: `catching_up` once more (a switch that could not be made just now), `restarting` (a
copy that was lost: all is undone, then `planned` once more) and `cancelling`.

A state is *journaled* if a successor would act differently for knowing it: the record in the directory is saved before
the state's first effect. `draining`, `verifying`, `sealing` and `committing` of a replicated move are not: what a
successor does is the same as in `fencing`, and every journal entry there would lengthen the writers' pause. The commit
itself is the journal entry `opening`, together with the new owner, in one directory transaction.

The argument
============

Say a tablet moves from S to T. A write is *acknowledged* when its transaction on S or T has committed.

 1. *Only the owner is writable before the fence.* T's copy is not attached; a write through T's root finds no
    partition, a write by the partition's own name meets T's guard, a trigger that refuses everybody but the stream.
 2. *The fence is exact.* Its triggers are made under SHARE ROW EXCLUSIVE, which no writer's lock is compatible with:
    every acknowledged write is before the fence's commit in S's WAL, and later writers meet the trigger, whatever
    their snapshot, role or path. The marker row is in the same transaction, so it follows all of them in the stream.
 3. *The drain is complete and durable.* The marker is visible on T only after every change before it was applied. T
    applies without waiting for its disk, so a synchronous commit on T follows (that of ATTACH, in `sealing`), which
    makes all before it durable.
 4. *The copy is verified*: the bulk at the slot's snapshot, and each key changed since, against the fenced source. A
    difference counts only if the fence still stands: behind one that has ended S has simply gone on.
 5. *An unsealed fence may end by itself*, at its deadline, by S's own clock; the daemon may be dead. It must then
    never be sealed. Sealing takes the same lock as the fence, so no writer is half-way, and it demands: this very
    fence (migration and leader's epoch are in it), deadline not passed, and no write let through on this node since
    the fence was raised. That last count is kept in a sequence, which knows neither rollback nor snapshot, so not even
    a clock that was set back can hide a write. Nor can a fence that was switched off and on: its triggers must be those
    that our own transactions wrote, by their xmin.
 6. *A sealed fence ends only by a leader's act.* A crash of S, a pause of the daemon, an expiry cannot open S again.
    Nor can its owner switch it off before the commit: a transaction holds the partitions' lock from the seal to the
    word where the tablet went, and the commit is not sent if that transaction is lost.
 7. *Definitions are the same to the end.* The fingerprints of S's tables (and of what captures changes) are compared
    under the locks of fence and seal, which DDL on them has to wait for; those of T's roots under the lock of ATTACH.
    DDL before is seen; DDL on S after the seal concerns nobody any more; DDL on T after ATTACH reaches the new
    partition through its root.
 8. *T is attached before the commit, closed*: from ATTACH on the guard refuses the stream too. So whatever ATTACH may
    fail of fails while there is a way back; the way back detaches (`take_back`) before anything is streamed again.
 9. *The commit is one directory transaction*, after the seal and ATTACH, conditional on the leader's epoch and on the
    migration's own version: owner = T, epoch + 1, state `opening`. From 5 and 6, S refuses writes from before the
    commit on.
10. *T opens after the commit*: guard away and `owned` are one transaction on T, made by a leader who has read `opening`
    in the directory. So S closed before T opens: never two writable owners.
11. *A fence is lifted only if the commit cannot happen any more*: its leader wrote `catching_up`, `restarting` or
    `cancelling` into the journal first. A predecessor that still wants to commit holds an older epoch, and the
    directory refuses it. If it wakes up later still and wants to act on a node, the node itself has seen the newer
    epoch and refuses too: whatever changes a node does so in a transaction that has checked the epoch itself.
12. *Nothing is dropped that may be needed*: S's rows stay attached behind their fence until the grace is over, no
    reader's snapshot is older than the switch, and T's standbys have replayed it; they go only in a transaction that
    sees them detached and `moved`. T's go only while they are `incoming` under this migration; a journal record in
    `cancelling` can never become `opening`, one in `restarting` only by way of `planned`, with a new copy.

From 2 to 4, every acknowledged write of S is on T when T opens; from 5 to 11, nobody writes to S between the fence and
the end of the migration unless the migration has not committed and will not. Each write is there exactly once, since
T's rows are those of the snapshot plus each change after it once (the slot's consistent point is that very snapshot,
and T's replication origin advances in the transaction that applies the change).

A reshard has one node and therefore no second owner. Its `swapping` is one transaction on that node: old partitions
out, new ones in, `balancer.tablet` saying so. Root and keys are the same before and after, so the node is right under
both maps until the directory follows in `committing`. A successor asks the node whether the swap happened. What was
acknowledged is in the new partitions because the last replay comes after the locks on roots *and* old partitions (who
writes by a partition's name does not lock its root), and the definitions are compared under them. What a reader by one
snapshot sees is not cut short, because the last replay is committed, and older snapshots are gone, before the swap.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from balancer.directory.model import MigrationKind, MigrationMode


class State(StrEnum):
    """Where a migration stands."""

    PLANNED = "planned"
    PREPARING = "preparing"
    COPYING = "copying"
    CATCHING_UP = "catching_up"
    FENCING = "fencing"
    DRAINING = "draining"
    VERIFYING = "verifying"
    SEALING = "sealing"
    SWAPPING = "swapping"
    COMMITTING = "committing"
    OPENING = "opening"
    RETIRING = "retiring"
    DONE = "done"
    RESTARTING = "restarting"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Event(StrEnum):
    """What may happen to a migration."""

    STEP = "step"  # the state's work is finished
    RETREAT = "retreat"  # the pause would exceed its budget, or a server was lost: let writers on, try again later
    RESTART = "restart"  # likewise where there is nothing to go back to: undo everything, begin anew later
    CANCEL = "cancel"  # an operator's wish, or an error that trying again does not cure
    CLEANED = "cleaned"  # everything a cancelled migration made is gone
    BROKEN = "broken"  # likewise, and the reason was an error


class Recovery(StrEnum):
    """What a new leader does with a migration that it finds in a state."""

    ROLL_BACK = "roll back"
    RESUME = "let writers on and go on from the catching up"
    RESTART = "undo everything and begin anew"
    ASK_NODE = "ask the node whether the swap happened"
    ROLL_FORWARD = "roll forward"


class Track(StrEnum):
    """The four ways through the states."""

    MOVE_REPLICATE = "move, replicate"
    MOVE_READ_ONLY = "move, read-only"
    RESHARD_REPLICATE = "reshard, replicate"
    RESHARD_READ_ONLY = "reshard, read-only"


class IllegalEvent(Exception):
    """The event has no meaning in this state: a defect of the caller. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What is true of a state on a track."""

    journaled: bool
    cancellable: bool
    writers_held: bool
    recovery: Recovery


_S = State
_PATHS: Mapping[Track, tuple[State, ...]] = {
    Track.MOVE_REPLICATE: (
        *(_S.PLANNED, _S.PREPARING, _S.COPYING, _S.CATCHING_UP, _S.FENCING, _S.DRAINING, _S.VERIFYING),
        *(_S.SEALING, _S.COMMITTING, _S.OPENING, _S.RETIRING, _S.DONE),
    ),
    Track.MOVE_READ_ONLY: (
        *(_S.PLANNED, _S.PREPARING, _S.FENCING, _S.COPYING, _S.VERIFYING),
        *(_S.SEALING, _S.COMMITTING, _S.OPENING, _S.RETIRING, _S.DONE),
    ),
    Track.RESHARD_REPLICATE: (
        *(_S.PLANNED, _S.PREPARING, _S.COPYING, _S.CATCHING_UP, _S.VERIFYING),
        *(_S.SWAPPING, _S.COMMITTING, _S.RETIRING, _S.DONE),
    ),
    Track.RESHARD_READ_ONLY: (
        *(_S.PLANNED, _S.PREPARING, _S.FENCING, _S.COPYING, _S.VERIFYING),
        *(_S.SWAPPING, _S.COMMITTING, _S.RETIRING, _S.DONE),
    ),
}

_UNJOURNALED: Mapping[Track, frozenset[State]] = {
    Track.MOVE_REPLICATE: frozenset({_S.DRAINING, _S.VERIFYING, _S.SEALING, _S.COMMITTING}),
    Track.MOVE_READ_ONLY: frozenset({_S.VERIFYING, _S.SEALING, _S.COMMITTING}),
    Track.RESHARD_REPLICATE: frozenset({_S.VERIFYING, _S.COMMITTING}),
    Track.RESHARD_READ_ONLY: frozenset({_S.VERIFYING, _S.COMMITTING}),
}

_TOO_LATE = frozenset({_S.SWAPPING, _S.COMMITTING, _S.OPENING, _S.RETIRING})
_FINAL = frozenset({_S.DONE, _S.CANCELLED, _S.FAILED})
_RETREATS = frozenset({_S.FENCING, _S.DRAINING, _S.VERIFYING, _S.SEALING, _S.SWAPPING})
_RESTARTS = frozenset({_S.COPYING, _S.VERIFYING, _S.SEALING, _S.SWAPPING})


def track_of(kind: MigrationKind, mode: MigrationMode) -> Track:
    """The way a migration goes."""
    what = "move" if kind is MigrationKind.MOVE else "reshard"
    return Track(f"{what}, {mode}")


def path(track: Track) -> tuple[State, ...]:
    """The states of a migration that meets no obstacle, in order."""
    return _PATHS[track]


def _table(track: Track) -> dict[tuple[State, Event], State]:
    states = _PATHS[track]
    table = {(here, Event.STEP): after for here, after in itertools.pairwise(states)}
    for state in states:
        if state not in _TOO_LATE and state not in _FINAL:
            table[state, Event.CANCEL] = _S.CANCELLING
        if state in _RETREATS and _S.CATCHING_UP in states:
            table[state, Event.RETREAT] = _S.CATCHING_UP
        elif state in _RESTARTS:
            table[state, Event.RESTART] = _S.RESTARTING
    table[_S.RESTARTING, Event.STEP] = _S.PLANNED
    table[_S.RESTARTING, Event.CANCEL] = _S.CANCELLING
    # A swap that did not happen may still be given up; whether it did is known to the node, and asked first.
    table[_S.SWAPPING, Event.CANCEL] = _S.CANCELLING
    # A refused commit (the tablet's record was changed by somebody) cannot be repeated: the fence must be lifted.
    if _S.SEALING in states:
        table[_S.COMMITTING, Event.CANCEL] = _S.CANCELLING
        # One that was not sent, because the fence was left alone for a moment, is as good as none.
        if _S.CATCHING_UP in states:
            table[_S.COMMITTING, Event.RETREAT] = _S.CATCHING_UP
        else:
            table[_S.COMMITTING, Event.RESTART] = _S.RESTARTING
    table[_S.CANCELLING, Event.CLEANED] = _S.CANCELLED
    table[_S.CANCELLING, Event.BROKEN] = _S.FAILED
    return table


TRANSITIONS: Mapping[Track, Mapping[tuple[State, Event], State]] = {track: _table(track) for track in Track}


def after(track: Track, state: State, event: Event) -> State:
    """The state that follows. Raises `IllegalEvent`, and nothing has changed."""
    following = TRANSITIONS[track].get((state, event))
    if following is None:
        raise IllegalEvent(f"a migration ({track}) in state {state} knows no event {event}")
    return following


def traits(track: Track, state: State) -> Traits:
    """What is true of a state."""
    return Traits(
        journaled=state not in _UNJOURNALED[track],
        cancellable=state not in _TOO_LATE and state not in _FINAL and state is not _S.CANCELLING,
        writers_held=_writers_held(track, state),
        recovery=_recovery(track, state),
    )


def is_final(state: State) -> bool:
    """Whether nothing follows."""
    return state in _FINAL


def _writers_held(track: Track, state: State) -> bool:
    states = _PATHS[track]
    if _S.FENCING not in states or state not in states:
        return False
    last = _S.OPENING if _S.OPENING in states else _S.SWAPPING
    return states.index(_S.FENCING) <= states.index(state) <= states.index(last)


def _recovery(track: Track, state: State) -> Recovery:
    """By the journaled state: a successor never finds another."""
    states = _PATHS[track]
    if state is _S.RESTARTING:
        return Recovery.RESTART
    if state is _S.CANCELLING or state not in states:
        return Recovery.ROLL_BACK
    if state in (_S.OPENING, _S.RETIRING):
        return Recovery.ROLL_FORWARD
    if _S.SWAPPING in states and state in (_S.SWAPPING, _S.COMMITTING):
        return Recovery.ASK_NODE
    if _S.CATCHING_UP in states and states.index(state) >= states.index(_S.CATCHING_UP):
        return Recovery.RESUME
    return Recovery.ROLL_BACK
