"""What a new leader does with the migrations it finds: by rule, state by state (`machine.Recovery`).

The daemon calls `recover` once after it has become leader and before it begins anything, then runs what is returned.
The decision is journaled under the new epoch before anything is undone: from then on the predecessor cannot commit.
"""

from dataclasses import replace

from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Migration
from balancer.migration.journal import Journal
from balancer.migration.machine import Recovery, State, Track, track_of, traits
from balancer.migration.record import read_detail


def recover(directory: Directory, leadership: Leadership, clock: Clock | None = None) -> list[Migration]:
    """Decides about every unfinished migration; returns them, oldest first, for `Runner.run`."""
    now = clock or SystemClock()
    unfinished = [record for record in directory.snapshot().migrations.values() if not record.finished]
    return [_decide(record, directory, leadership, now) for record in sorted(unfinished, key=lambda r: r.created)]


def _decide(record: Migration, directory: Directory, leadership: Leadership, clock: Clock) -> Migration:
    following = decision(track_of(record.operation, record.mode), State(record.state))
    if following is None:
        return record
    detail = replace(read_detail(record), leader_epoch=leadership.epoch, retreat="its leader was lost", failed=False)
    journal = Journal(directory, leadership, clock)
    journal.load(record.id)
    error = record.error or f"interrupted in {record.state}: its leader was lost"
    changed = replace(
        record,
        state=str(following),
        attempt=record.attempt + 1,
        detail=detail.document(),
        error=error if following is State.CANCELLING else record.error,
    )
    return journal.save(changed, f"migration {record.id}: {following} after a change of leader")


def decision(track: Track, state: State) -> State | None:
    """The state a new leader goes on from; None: the one it found."""
    if state in (State.PLANNED, State.CANCELLING):
        return None
    rule = traits(track, state).recovery
    if rule is Recovery.ROLL_BACK:
        return State.CANCELLING
    return State.CATCHING_UP if rule is Recovery.RESUME else None
