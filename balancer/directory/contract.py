"""The contract of a directory, whatever keeps it. `tests/contracts` runs one suite against every backend.

Callers above (planner, migrations, daemon, command line, client) know only these protocols and `open_directory`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from balancer.directory.codec import StoredEntry
from balancer.directory.model import Json, LogEntry, Record, Transaction
from balancer.directory.snapshot import Snapshot


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
