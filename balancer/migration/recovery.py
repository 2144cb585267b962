"""What a leader does with a migration that it finds half-way: a rule for each state (`machine.Recovery`).

The daemon calls `recover` once after it has become leader and before it begins anything, then runs what is returned.
`Runner.run` applies the same rule to whatever it is given (`take_over`), so that an interrupted run of the same leader
also resumes where that is safe. The decision is journaled under the leader's epoch before anything is undone: from then
on a predecessor cannot commit.
"""

from dataclasses import replace

from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Migration
from balancer.errors import Refused
from balancer.migration.journal import Journal
from balancer.migration.machine import Recovery, State, Track, row_of, track_of
from balancer.migration.record import read_detail


def recover(directory: Directory, leadership: Leadership, clock: Clock | None = None) -> list[Migration]:
    """Decides about every unfinished migration; returns them, oldest first, for `Runner.run`.

    One that cannot be decided about (a newer version wrote it) is left as it is, and does not hold up the others.
    """
    journal = Journal(directory, leadership, clock or SystemClock())
    unfinished = [record for record in directory.snapshot().migrations.values() if not record.finished]
    found = []
    for record in sorted(unfinished, key=lambda record: record.created):
        try:
            found.append(take_over(journal, journal.load(record.id), leadership))
        except Refused:
            continue
    return found


def take_over(journal: Journal, record: Migration, leadership: Leadership) -> Migration:
    """Journals where a migration resumes, if that is not where its record stands."""
    state = State(record.state)
    following = decision(track_of(record.operation, record.mode), state)
    detail = read_detail(record)
    if following is None or (following is state and detail.leader_epoch == leadership.epoch):
        return record
    changed = replace(
        record,
        state=str(following),
        attempt=record.attempt + 1,
        detail=replace(detail, leader_epoch=leadership.epoch, retreat="it was interrupted").document(),
        error=(record.error or f"interrupted in {state}") if following is State.CANCELLING else record.error,
    )
    return journal.save(changed, f"migration {record.id}: {following} after an interruption in {state}")


def decision(track: Track, state: State) -> State | None:
    """The state a leader resumes from; None: the one it found."""
    rule = row_of(track, state).successor
    if rule is Recovery.ROLL_BACK:
        return State.CANCELLING
    return State.CATCHING_UP if rule is Recovery.RESUME else None
