"""The contract of a directory, whatever keeps it. `tests/contracts` runs one suite against every backend.

Callers above (planner, migrations, daemon, command line, client) know only these protocols and `open_directory`.

Retry a commit on the newest snapshot: one rule for every caller that can decide again without help.

What leaderships of every backend have in common: an epoch, and the holder's own deadline, which only beats move.

The holder stops acting at its deadline whether or not it has heard anything: the servers, or a standby, let somebody
else in only later. A deadline that has passed never moves again: once lost, leadership stays lost.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self, TypeVar

from balancer.clock import Clock
from balancer.directory.model import Json, LogEntry, Record, Transaction
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.codec import StoredEntry
from balancer.errors import Conflict, Fenced


class Leadership(Protocol):
    """Held by at most one instance at a time; its epoch fences every commit and every step on a node."""

    @property
    def epoch(self) -> int:
        """Grows with each election; `Transaction.leader_epoch` of everything the holder commits."""

    def held(self) -> bool:
        """Whether the holder may still act, by its own monotonic deadline: no server is asked."""

    def check(self) -> None:
        """Raises `Fenced` unless `held()`."""

    def resign(self) -> None:
        """Gives it up at once, so that a standby need not wait for the session to expire. Idempotent."""


class Follower(Protocol):
    """Keeps a snapshot up to date by deltas in the background."""

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot known; a value: it never changes under the caller."""

    def wait(self, after: int, timeout: float, *, patient: bool = False) -> Snapshot:
        """The first snapshot known with a version above `after`, or the newest when the timeout has passed.

        `patient`: it need not be read the moment it exists. Where thousands follow, such reads are spread out.
        """

    def age(self) -> float:
        """Seconds since the snapshot was last known to be the newest: how stale the view may be."""

    def close(self) -> None:
        """Stops following. Idempotent."""


@dataclass(frozen=True, slots=True)
class Secured:
    """What closing a directory did, or in a dry run would do."""

    parts: int
    """Znodes, or files."""
    changed: int
    examples: tuple[str, ...] = ()
    """Some of those that were changed."""


class Directory(Protocol):
    """Who owns which keys, and what is being done about it."""

    def snapshot(self) -> Snapshot:
        """A consistent view at one version, at least as new as every commit acknowledged to this caller."""

    def commit(self, transaction: Transaction) -> int:
        """Applies all changes or none; returns the new version. Exactly once, even over lost connections.

        Raises `Conflict`, `Fenced`, `TooLarge`, `Unavailable`, `OutcomeUnknown`, or `Refused` if the result would break
        an invariant.
        """

    def restore(self, records: Sequence[Record], *, reason: str, author: str, leader_epoch: int) -> int:
        """Replaces everything by these records, which the caller has checked; returns the new version.

        For imports: the caller leads. Followers load everything again, and the log starts over.
        """

    def history(self, after: int = 0, limit: int = 100) -> Sequence[LogEntry]:
        """Commits with a version above `after`, oldest first; as far back as the log is kept."""

    def log(self, after: int, upto: int) -> Sequence[StoredEntry] | None:
        """The commits `after < version <= upto` as the log keeps them; None if it does not have them all."""

    def follow(self, confirm_every: float = 1.0) -> Follower:
        """Starts following; the first snapshot is loaded when this returns.

        Changes are signalled. About every `confirm_every` seconds it makes sure that none was missed: the age may be
        that much higher, and a lost signal may cost that long.
        """

    def campaign(self, name: str, timeout: float | None = None) -> Leadership | None:
        """Waits to become leader; None when the timeout has passed."""

    def leader(self) -> str | None:
        """The name of the current leader, for information."""

    def publish(self, topic: str, name: str, document: Json) -> int:
        """Leaves a note that is not part of the truth: progress, an instance's status, key samples. Last one wins.

        Returns how often anybody has written a note of this name so far; 0 if that is not counted.
        """

    def published(self, topic: str) -> Mapping[str, Json]:
        """The notes under a topic."""

    def unpublish(self, topic: str, name: str) -> None:
        """Removes a note. Idempotent."""

    def take_block(self, table: int) -> int:
        """The number of a block of a table's ids, from 0 up, that nobody else gets. A reader may take them."""

    def blocks(self) -> Mapping[int, int]:
        """How many blocks of ids have been taken, by table."""

    def exposures(self, *, everything: bool = False) -> Sequence[str]:
        """Who may read or change it but should not: a sentence each, empty: nobody. `everything`: checks every part,
        instead of those that stand for the others."""

    def secure(self, *, dry_run: bool) -> Secured:
        """Closes what is open to anybody but the writer and the reader; may be interrupted and repeated."""

    def close(self) -> None:
        """Releases connections and leadership. Idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


ATTEMPTS: Final = 5
"""Being overtaken several times in a row is rare; this many times means that something is wrong."""

Result = TypeVar("Result")


def commit_on_newest(
    directory: Directory, propose: Callable[[Snapshot], tuple[Transaction | None, Result]], failure: str
) -> Result:
    """Commits what `propose` makes of the newest snapshot, and returns what came with it; None: nothing to do.

    Raises `Conflict` with the text of `failure` if others were faster each time.
    """
    for _ in range(ATTEMPTS):
        transaction, result = propose(directory.snapshot())
        try:
            if transaction is not None:
                directory.commit(transaction)
        except Conflict:
            continue
        return result
    raise Conflict(f"{failure}: others kept changing the directory")


_SAFE_SHARE = 0.7  # of the lease: what the holder allows itself


class Lease:
    """The part of `contract.Leadership` that asks nobody. `lease`: after how long a silence others may take over."""

    def __init__(self, clock: Clock, epoch: int, lease: float, asked: float) -> None:
        self.clock = clock
        self.ended = threading.Event()
        self._epoch = epoch
        self._lease = lease
        self._deadline = asked + lease * _SAFE_SHARE
        self._beat_at = asked
        """When the last beat that came through was sent."""
        self._trying: float | None = None
        self._why = ""

    @property
    def epoch(self) -> int:
        """Grows with each election."""
        return self._epoch

    @property
    def deadline(self) -> float:
        """On the monotonic clock: when the holder stops acting unless a beat comes through before."""
        return self._deadline

    def held(self) -> bool:
        """Whether the holder may still act, by its own deadline. Once lost, it stays lost."""
        if self.ended.is_set():
            return False
        now = self.clock.monotonic()
        if now >= self._deadline:
            self._why = self._missed(now)
            self.ended.set()
            return False
        return True

    def check(self) -> None:
        """Raises `Fenced` unless `held()`; if no beat came through in time, says what it waited for."""
        if not self.held():
            raise Fenced(f"leadership with epoch {self._epoch} is not held any more{self._why}")

    def trying(self) -> float:
        """A beat is sent now."""
        self._trying = asked = self.clock.monotonic()
        return asked

    def prolong(self, asked: float) -> None:
        """A beat that was sent at `asked` has come through."""
        if self.held():
            self._deadline = asked + self._lease * _SAFE_SHARE
            self._beat_at, self._trying = asked, None

    def _missed(self, now: float) -> str:
        """A directory that does not answer and a process that stands still are fixed in different places."""
        since = f": its last beat that came through was sent {now - self._beat_at:.1f} s ago"
        if self._trying is None:
            return f"{since}, and none was sent since: this process stood still"
        return f"{since}, and one that was sent {now - self._trying:.1f} s ago was not answered"
