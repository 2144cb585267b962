"""The transitions of a migration: one table, and the argument why no order of events loses a write. Pure values.

Called by the runner (which asks what follows), by recovery (which asks what a successor does with what it finds) and
by the command line (which asks whether `cancel` is still possible). Nothing elsewhere knows what follows what. The
tables at the end are the transitions themselves; everything else here only reads them.

Theory of operation
===================

Four tracks share the states: a move or a reshard (split, merge, or n tablets into m on one node), each either
*replicate* (writers go on while rows are copied) or *read-only* (writers are held back from the start). A fifth,
*expire*, retires tablets whose keys are too old.

    move, replicate      planned preparing copying catching_up fencing draining verifying sealing committing
                         | opening retiring done
    move, read-only      planned preparing fencing copying verifying sealing committing | opening retiring done
    reshard, replicate   planned preparing copying catching_up mirroring verifying swapping committing
                         | retiring done
    reshard, read-only   planned preparing fencing copying verifying swapping committing | retiring done
    expire               planned fencing verifying copying swapping committing | retiring done

In addition there are the ways back: `catching_up` once more (a switch that could not be made right then), `restarting`
(a lost copy: everything is undone, then `planned` once more) and `cancelling`.

A state is *journaled* if a successor would act differently for knowing it: the record in the directory is saved before
the state's first effect. `draining`, `verifying`, `sealing` and `committing` of a replicated move are not: there a
successor does the same as in `fencing`, and every journal entry there would lengthen the writers' pause. The commit
itself is the journal entry `opening`, together with the new owner, in one directory transaction.

The argument
============

Say a tablet moves from S to T. A write is *acknowledged* when its transaction on S or T has committed.

 1. *Only the owner is writable before the fence.* T's copy is not attached; a write through T's root finds no
    partition; a write by the partition's own name meets T's guard, a trigger that refuses everybody but the stream.
 2. *The fence is exact.* Its triggers are made under EXCLUSIVE, which no writer's lock is compatible with:
    every acknowledged write is before the fence's commit in S's WAL, and later writers meet the trigger, whatever
    their snapshot, role or path. The marker row is in the same transaction, so it follows all of them in the stream.
 3. *The drain is complete and durable.* The marker is visible on T only after every change before it was applied. T
    applies without waiting for its disk, so a synchronous commit on T follows (that of ATTACH, in `sealing`), which
    makes everything before it durable. The transaction that attaches sees the marker itself: a T that has crashed since
    the drain may have forgotten it, and what was before it, whichever session attaches. And it writes the number that
    was drawn for this switch: wherever that number is, everything that this switch has brought to T is there too. In
    read-only mode there is no marker: the number is written behind the copied rows and before they are compared, and
    the transaction that attaches must find it.
 4. *The copy is verified*: all rows at one snapshot, each replay at its own (see "The copy"), and each key changed
    since, against the fenced source. A difference counts only if the fence still stands: behind one that has ended, S
    has simply moved on.
 5. *An unsealed fence may end by itself*, at its deadline, by S's own clock; the daemon may be dead. It must then
    never be sealed. Sealing takes the same lock as the fence, so no writer is half-way, and it requires: this very
    fence (migration and leader's epoch are in it), deadline not passed, and that no write was let through on this node
    since the fence was raised. That last count is kept in a sequence, which knows neither rollback nor snapshot, so not
    even a clock that was set back can hide a write. Nor can switching the fence off and on again: by their xmin, its
    triggers must be the ones that our own transactions wrote.
 6. *A sealed fence ends only by a leader's act.* No crash of S, pause of the daemon or expiry can open S again. Nor can
    its owner switch it off before the commit: a transaction holds the partitions' lock from the seal until S says where
    the tablet went, and the commit is not sent, the first time or again, if that transaction is lost. (At the seal's
    own commit it releases the lock, and takes it again in the same message; the triggers must then be the seal's own.)
 7. *Definitions are the same to the end.* The fingerprints of S's tables (and of what captures changes) are compared
    under the locks of fence and seal, which DDL on them has to wait for; those of T's roots under the lock of ATTACH.
    Earlier DDL is seen; DDL on S after the seal no longer concerns anybody; DDL on T after ATTACH reaches the new
    partition through its root.
 8. *T is attached before the commit, closed*: from ATTACH on the guard refuses the stream too. So whatever may make
    ATTACH fail does so while there is a way back; the way back detaches (`take_back`) before anything is streamed
    again.
 9. *The commit is one directory transaction*, after the seal and ATTACH, conditional on the leader's epoch and on the
    migration's own version: owner = T, epoch + 1, state `opening`, and the switch's number. From 5 and 6, S refuses
    writes from before the commit on. Right before each sending both nodes are asked: S for the lock of 6, T for the
    session that has attached (or for the number), because a T that was replaced since would leave the tablet nowhere.
    If it is not to be sent again, or the answer is anything but yes, the journal says whether an earlier sending was
    applied: if it has `opening` with this number, it was, and nothing else is believed. If it has not, the way back is
    journaled on the version that was read, so that a sending still on its way conflicts.
10. *T opens after the commit*: removing the guard and setting `owned` are one transaction on T, committed by a leader
    who has read `opening` in the directory, or has just written it. So S closed before T opens: never two writable
    owners. Its statements, and those by which S says where the tablet went, are sent before the directory's commit, so
    that nobody waits for them; until they are committed nobody sees them, and if their session ends they are gone:
    on T it is the session that attached, so nothing can have been lost between. A step that does not find them ready
    opens in a transaction that sees the partition attached and the switch's number; a T without them (a standby that
    lagged has taken over) is not opened, though an earlier switch of the same move may have attached the partition
    there. Neither commit need wait for the disk: S is sealed, and any write acknowledged on T afterwards has flushed
    the opening with it; the step makes sure of it before it ends, in a transaction that sees T open.
11. *A fence is lifted only if the commit cannot happen any more*: its leader wrote `catching_up`, `restarting` or
    `cancelling` into the journal first. A predecessor that still wants to commit holds an older epoch, and the
    directory refuses it. If it wakes up later still and wants to act on a node, the node itself has seen the newer
    epoch and refuses too: whatever changes a node does so in a transaction that has checked the epoch itself.
12. *Nothing is dropped that may be needed*: S's rows stay attached behind their fence until the grace is over, no
    reader's snapshot is older than the switch, T's standbys have replayed it (one at least, if T ever had any), and T,
    asked once more, leads and has the tablet; they go only in a transaction that sees them detached and `moved`. Rows
    behind a fence that somebody switched off after the switch may have been acknowledged, and so may those of an S that
    is found without its seal (a standby that lagged has taken over, and was an open owner until we came): they are set
    aside and named (`nodes.tablets.leftovers`), not dropped; those of a home, which becomes a copy, are copied aside.
    T's rows go only
    while they are `incoming` under this migration; a journal record in `cancelling` can never become `opening`, one in
    `restarting` only by way of `planned`, with a new copy.

From 2 to 4, every acknowledged write of S is on T when T opens; from 5 to 11, nobody writes to S between the fence and
the end of the migration unless the migration has not committed and will not, or S has gone back in time, which is
noticed (12). Each write is there exactly once, since
T's rows are those of one snapshot plus each change after it once (the slot's consistent point is that very snapshot,
and T's replication origin advances in the transaction that applies the change). That T's rows are those of the slot's
snapshot, though they were copied long before the slot was made, and though the copy was interrupted, is shown next.

The copy of a replicated move
=============================

A large tablet takes hours. No snapshot lives that long through restarts, so its rows come in chunks, each from a
snapshot of its own, and what changed meanwhile is exchanged by key. The slot is made last: S retains no WAL for hours,
and no old snapshot keeps it from vacuuming. Below, s is a snapshot of S, and log(s) its keys in the log of changes.

1. *The log is complete.* It is started under a lock that waits for writers in flight. From then on (call it 0) every
   change writes its old and new key in its own transaction: a snapshot has a change exactly if it has its entry.
2. *A row that has not changed since 0 does not change its place* either: an UPDATE makes a new version, VACUUM moves
   none, and anything that rewrites the whole table gives it a new file, which ends the migration (7: the file is part
   of the fingerprint). So it is in exactly one chunk, the same at every snapshot, and the chunks together have it once.
   Of a row that has changed, the chunks may have any versions, or none.
3. *A replay at s* takes every key in log(s) out of T, however often it is there, and puts in the rows that s has of
   these keys; one transaction on T. Keys outside of log(s) have not changed between 0 and s, so by 2 T has them as s
   has them. After it T is S at s. A change that s does not have has an entry that s does not have.
4. *Entries are forgotten only by the snapshot whose replay has committed, durably*: the transaction that deletes them
   sees s, and so deletes what s has. A later s' finds in the log what changed after s, and T was S at s: 3 holds again,
   with s for 0. If the delete is not reached, the next replay takes out and puts in the same keys once more.
5. *No chunk follows a replay*: it would bring rows of replayed keys a second time. A replay locks the notes against
   chunks in flight and checks, under this lock, that all chunks are there; a chunk begins with its note.
6. *A chunk is there exactly if its note is*: they are one transaction on T. After an interruption the chunks without a
   note are copied, from newer snapshots, which 2 allows. A lost session that is still writing a chunk holds its note:
   the notes are read only after waiting for it, whatever pages it has, since the size of a chunk may have changed.
7. *Indexes are built after the first replay*, over the rows of one snapshot: before it two versions of a row, or two
   rows that held one value in turn, might stand in the way of a unique one. Meanwhile all rows of T are compared with S
   at that very snapshot, regardless of this argument.
8. *The last replay is at the slot's snapshot F.* After it T is S at F, and the stream has exactly what F lacks. If it
   is interrupted before the subscription is there, the slot is dropped, and the next one's snapshot is replayed; if the
   subscription is there, all of this was done.
9. *What T has forgotten is noticed.* A T that is taken back in time loses a chunk with its note (it is copied again,
   but never after a replay, 5), a replay with its number: S has the number in the transaction that forgot the entries,
   and neither another replay nor a drain passes without it.

*Wrong orders*, each seen to lose or double rows: a replay before its chunk (5); a note in a different transaction from
its rows (6); entries forgotten by their age and not by the snapshot (4); the last replay at a snapshot older than the
slot's (8).

The reshard
===========

A reshard has one node and therefore no second owner: root and keys are the same before and after, so the node is right
under both maps until the directory follows in `committing`. What may go wrong is that the new partitions N lack
something that the old ones, O, had, or that a reader on one snapshot finds less in N than in O: it reads by its
snapshot, and finds partitions by the newest catalog. Rows that we copy have our transaction's number, not that of their
writers, so a snapshot that is older than the copy does not see them.

 1. *The log* of changed keys is complete from before the copy on (see "The copy", 1 to 4: rounds of replay, each in one
    snapshot, bring N close to O).
 2. *The mirror begins in one transaction, T1*, under a lock on O that keeps its writers out, and nobody else. It
    replays the rest of the log, compares it, silences the log, and makes a trigger on O that applies every change to
    N. At T1's commit N equals O. Every write to O is before T1's lock, and so in the log that T1 replays, or after its
    commit, and meets the trigger: whatever its role, path or session_replication_role.
 3. *From T1 on, N equals O in every snapshot that sees T1*, because a change is made in both by one transaction. The
    trigger takes a row as it is when its turn comes, and not as the event tells it, if it may have changed since; it
    looks whether a key that was given up has been taken again; it replaces what it finds. A transaction on one
    snapshot that does not see T1 would not find N's rows to change, and is refused with 40001. What cannot be mirrored
    is noted in the log, which is otherwise empty: then O and N may differ, and 5 does not let the swap pass.
 4. *Snapshots that do not see T1 are outlived* before the swap. Those that exist after T1's commit are listed then; a
    session leaves the list when it is seen without a snapshot, with a newer one, or in another transaction. Nobody is
    held back meanwhile. pg_dump is let be: it reads partitions by their own names, those that its snapshot shows; O
    stays until it ends. Then O and N are compared, in one snapshot, while writers go on.
 5. *The swap, T2*, keeps everybody out of roots and O, and requires under these locks: definitions have not changed;
    triggers and functions of the mirror were written by T1 and by nobody since (otherwise somebody has switched them
    off and on); the log is empty. Then by 3 and 4 every snapshot that anybody has, or will have, finds in N what it
    would find in O. It detaches O, attaches N, and says so in `balancer.tablet`: catalog work alone.
 6. *After T2 nothing follows O*: the mirror is switched off in it, and O refuses writes, as a former owner does.
 7. *SERIALIZABLE.* PostgreSQL remembers what a transaction has read of O, and does not compare it with writes to N. If
    it remembers any such reads at T2, SERIALIZABLE writers that do not see T2 are refused, until none is left.

Writers wait twice, for T1 and for T2; each attempt to lock lasts no longer than the budget. In read-only mode O stands
still behind its fence from before the copy on: 4, 5 and 7 are the same, without T1.

After a crash. Before T1's commit the log is on: catching up again. Between T1 and T2 the mirror is on, and nothing is
lost: a successor finds T1 in the trigger's arguments, and goes on with 4. A failover that lost T1 has its log again,
whole, because T1 silenced it: back to catching up. T2 is all or nothing: the node is asked. To give up, one transaction
switches the mirror off (`cancelling`), or turns the log on again (`catching_up`).

*Wrong orders*, each seen to lose rows or to show too few (`tests/support/mutants.py`): the last replay in a transaction
of its own, before the trigger's (2: a write in between is in neither); the swap before older snapshots are gone (4);
T2's locks on the roots alone (5: a TRUNCATE by a partition's name is overlooked); the mirror left on after T2 (6). For
the same reasons the snapshots are listed after T1's commit, not before it, and the mirror goes under T2's locks.

*Expiry* retires the lowest tablets of a table, with their rows: first off their node's root, then out of the directory,
then the rows. Every key has a defined answer at every moment, and nothing is destroyed before the directory says so:

1. `fencing` closes the tablets by a trigger that refuses every write in one sentence; reads go on. `verifying` counts
   the rows and judges bounds, rows and the node's own clock; `copying` hands the rows to the archive command. Up to
   here everything is undone by removing the triggers.
2. `swapping` is one transaction on the tablets' node, under the locks of a reshard's: bounds, clock and triggers are
   looked at once more, the tablets are detached, and one empty tablet over all that has expired so far is attached. It
   refuses writes in the same sentence. The rows are still there, detached. A successor asks the node, as in a reshard.
3. `committing`: the old tablets leave the directory, the empty one comes in, in state `expired`, and with it the count.
   The key space stays covered. Until this commit, anyone who asks the old map is led to the same node and root.
4. `retiring` drops the rows, in a transaction that sees them detached, `moved`, and their fence as we left it. The
   empty tablet that an earlier expiry left, if it is on another node, goes the way of a former owner's.
"""

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
    MIRRORING = "mirroring"
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
    RETREAT = "retreat"  # the pause would exceed its budget, or a server was lost: let writers continue, retry later
    RESTART = "restart"  # the same where there is nothing to go back to: undo everything, start over later
    CANCEL = "cancel"  # an operator's request, or an error that retrying does not cure
    CLEANED = "cleaned"  # everything a cancelled migration made is gone
    BROKEN = "broken"  # the same, and the reason was an error


class Recovery(StrEnum):
    """What a new leader does with a migration that it finds in a state."""

    GO_ON = "goes on"  # repeats the state's work
    ROLL_BACK = "rolls back"  # cancels it
    RESUME = "resumes"  # lets writers continue and resumes at catching up
    ASK_NODE = "asks the node"  # whether the swap happened, and continues from there
    NEVER_FOUND = "never finds it"  # the journal does not have this state


class Track(StrEnum):
    """The ways through the states."""

    MOVE_REPLICATE = "move, replicate"
    MOVE_READ_ONLY = "move, read-only"
    RESHARD_REPLICATE = "reshard, replicate"
    RESHARD_READ_ONLY = "reshard, read-only"
    EXPIRE = "expire"


class IllegalEvent(Exception):
    """The event has no meaning in this state: a bug in the caller. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Row:
    """What is true of a state on a track: one line of the tables below."""

    state: State
    next: State | None
    """After its work; None: it is final, or `cancelling`, which ends as `cancelled` or `failed`."""
    retreat: State | None
    restart: State | None
    cancel: str
    """`operator`: a request or an error leads to `cancelling`; `error`: only an error does; empty: nothing does."""
    journaled: bool
    writers_held: bool
    again: bool
    """Whether a failing step is retried for as long as we lead: there is nothing else to do."""
    successor: Recovery

    @property
    def cancellable(self) -> bool:
        """Whether an operator may still cancel it."""
        return self.cancel == "operator"


# For each state: what follows its work, where retreat and restart lead, who may cancel it, whether it is journaled,
# whether writers are held back, whether a failing step is retried forever, and what a successor does.
_TABLES = {
    Track.MOVE_REPLICATE: """
        state       | next        | retreat     | restart    | cancel   | journal | writers | again | a successor
        planned     | preparing   |             |            | operator | yes     | go on   |       | goes on
        preparing   | copying     |             |            | operator | yes     | go on   |       | rolls back
        copying     | catching_up |             | restarting | operator | yes     | go on   |       | goes on
        catching_up | fencing     |             |            | operator | yes     | go on   |       | resumes
        fencing     | draining    | catching_up |            | operator | yes     | wait    |       | resumes
        draining    | verifying   | catching_up |            | operator |         | wait    |       | never finds it
        verifying   | sealing     | catching_up |            | operator |         | wait    |       | never finds it
        sealing     | committing  | catching_up |            | operator |         | wait    |       | never finds it
        committing  | opening     | catching_up |            | error    |         | wait    | yes   | never finds it
        opening     | retiring    |             |            |          | yes     | wait    | yes   | goes on
        retiring    | done        |             |            |          | yes     | go on   | yes   | goes on
        done        |             |             |            |          | yes     | go on   |       | goes on
        restarting  | planned     |             |            | operator | yes     | go on   | yes   | goes on
        cancelling  |             |             |            |          | yes     | go on   | yes   | goes on
        cancelled   |             |             |            |          | yes     | go on   |       | goes on
        failed      |             |             |            |          | yes     | go on   |       | goes on
    """,
    Track.MOVE_READ_ONLY: """
        state       | next        | retreat     | restart    | cancel   | journal | writers | again | a successor
        planned     | preparing   |             |            | operator | yes     | go on   |       | goes on
        preparing   | fencing     |             |            | operator | yes     | go on   |       | rolls back
        fencing     | copying     |             |            | operator | yes     | wait    |       | rolls back
        copying     | verifying   |             | restarting | operator | yes     | wait    |       | rolls back
        verifying   | sealing     |             | restarting | operator |         | wait    |       | never finds it
        sealing     | committing  |             | restarting | operator |         | wait    |       | never finds it
        committing  | opening     |             | restarting | error    |         | wait    | yes   | never finds it
        opening     | retiring    |             |            |          | yes     | wait    | yes   | goes on
        retiring    | done        |             |            |          | yes     | go on   | yes   | goes on
        done        |             |             |            |          | yes     | go on   |       | goes on
        restarting  | planned     |             |            | operator | yes     | go on   | yes   | goes on
        cancelling  |             |             |            |          | yes     | go on   | yes   | goes on
        cancelled   |             |             |            |          | yes     | go on   |       | goes on
        failed      |             |             |            |          | yes     | go on   |       | goes on
    """,
    Track.RESHARD_REPLICATE: """
        state       | next        | retreat     | restart    | cancel   | journal | writers | again | a successor
        planned     | preparing   |             |            | operator | yes     | go on   |       | goes on
        preparing   | copying     |             |            | operator | yes     | go on   |       | rolls back
        copying     | catching_up |             | restarting | operator | yes     | go on   |       | rolls back
        catching_up | mirroring   |             |            | operator | yes     | go on   |       | resumes
        mirroring   | verifying   | catching_up |            | operator | yes     | go on   |       | goes on
        verifying   | swapping    | mirroring   |            | operator |         | go on   |       | never finds it
        swapping    | committing  | mirroring   |            | error    | yes     | go on   |       | asks the node
        committing  | retiring    |             |            |          |         | go on   | yes   | never finds it
        retiring    | done        |             |            |          | yes     | go on   | yes   | goes on
        done        |             |             |            |          | yes     | go on   |       | goes on
        restarting  | planned     |             |            | operator | yes     | go on   | yes   | goes on
        cancelling  |             |             |            |          | yes     | go on   | yes   | goes on
        cancelled   |             |             |            |          | yes     | go on   |       | goes on
        failed      |             |             |            |          | yes     | go on   |       | goes on
    """,
    Track.RESHARD_READ_ONLY: """
        state       | next        | retreat     | restart    | cancel   | journal | writers | again | a successor
        planned     | preparing   |             |            | operator | yes     | go on   |       | goes on
        preparing   | fencing     |             |            | operator | yes     | go on   |       | rolls back
        fencing     | copying     |             |            | operator | yes     | wait    |       | rolls back
        copying     | verifying   |             | restarting | operator | yes     | wait    |       | rolls back
        verifying   | swapping    |             | restarting | operator |         | wait    |       | never finds it
        swapping    | committing  |             | restarting | error    | yes     | wait    |       | asks the node
        committing  | retiring    |             |            |          |         | go on   | yes   | never finds it
        retiring    | done        |             |            |          | yes     | go on   | yes   | goes on
        done        |             |             |            |          | yes     | go on   |       | goes on
        restarting  | planned     |             |            | operator | yes     | go on   | yes   | goes on
        cancelling  |             |             |            |          | yes     | go on   | yes   | goes on
        cancelled   |             |             |            |          | yes     | go on   |       | goes on
        failed      |             |             |            |          | yes     | go on   |       | goes on
    """,
    Track.EXPIRE: """
        state       | next        | retreat     | restart    | cancel   | journal | writers | again | a successor
        planned     | fencing     |             |            | operator | yes     | go on   |       | goes on
        fencing     | verifying   |             |            | operator | yes     | go on   |       | goes on
        verifying   | copying     |             |            | operator | yes     | go on   |       | goes on
        copying     | swapping    |             |            | operator | yes     | go on   |       | goes on
        swapping    | committing  | fencing     |            | error    | yes     | go on   |       | asks the node
        committing  | retiring    |             |            |          |         | go on   | yes   | never finds it
        retiring    | done        |             |            |          | yes     | go on   | yes   | goes on
        done        |             |             |            |          | yes     | go on   |       | goes on
        cancelling  |             |             |            |          | yes     | go on   | yes   | goes on
        cancelled   |             |             |            |          | yes     | go on   |       | goes on
        failed      |             |             |            |          | yes     | go on   |       | goes on
    """,
}


def _read(line: str) -> Row:
    state, following, retreat, restart, cancel, journal, writers, again, successor = map(str.strip, line.split("|"))
    return Row(
        state=State(state),
        next=State(following) if following else None,
        retreat=State(retreat) if retreat else None,
        restart=State(restart) if restart else None,
        cancel=cancel,
        journaled=journal == "yes",
        writers_held=writers == "wait",
        again=again == "yes",
        successor=Recovery(successor),
    )


ROWS: Mapping[Track, Mapping[State, Row]] = {
    track: {row.state: row for row in map(_read, table.strip().splitlines()[1:])} for track, table in _TABLES.items()
}


def table_text(track: Track) -> str:
    """The track's table as it is written here, for the documentation."""
    return "\n".join(line.strip() for line in _TABLES[track].strip().splitlines())


def track_of(kind: MigrationKind, mode: MigrationMode) -> Track:
    """The way a migration goes."""
    if kind is MigrationKind.EXPIRE:
        return Track.EXPIRE
    what = "move" if kind is MigrationKind.MOVE else "reshard"
    return Track(f"{what}, {mode}")


def row_of(track: Track, state: State) -> Row:
    """What is true of a state. Raises `IllegalEvent` for one that the track does not have."""
    found = ROWS[track].get(state)
    if found is None:
        raise IllegalEvent(f"a migration ({track}) has no state {state}")
    return found


def path(track: Track) -> tuple[State, ...]:
    """The states of a migration that meets no obstacle, in order."""
    found = [State.PLANNED]
    while (following := ROWS[track][found[-1]].next) is not None:
        found.append(following)
    return tuple(found)


def follows(track: Track, state: State, event: Event) -> State | None:
    """The state that follows; None if the event has no meaning here."""
    row = ROWS[track].get(state)
    if row is None:
        return None
    cancelling = state is State.CANCELLING
    return {
        Event.STEP: row.next,
        Event.RETREAT: row.retreat,
        Event.RESTART: row.restart,
        Event.CANCEL: State.CANCELLING if row.cancel else None,
        Event.CLEANED: State.CANCELLED if cancelling else None,
        Event.BROKEN: State.FAILED if cancelling else None,
    }[event]


def after(track: Track, state: State, event: Event) -> State:
    """The state that follows. Raises `IllegalEvent`, and nothing has changed."""
    following = follows(track, state, event)
    if following is None:
        raise IllegalEvent(f"a migration ({track}) in state {state} knows no event {event}")
    return following


def is_final(state: State) -> bool:
    """Whether nothing follows."""
    return state in (State.DONE, State.CANCELLED, State.FAILED)
