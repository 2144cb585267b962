"""A directory whose commits are timed: the daemon wraps its own in one, and everything below commits through it."""

from collections.abc import Mapping, Sequence
from typing import Final, Self

from balancer.clock import Clock
from balancer.directory.codec import StoredEntry
from balancer.directory.contract import Directory, Follower, Leadership, Secured
from balancer.directory.model import Json, LogEntry, Record, Transaction
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Conflict, Fenced, OutcomeUnknown, Unavailable
from balancer.instruments import Instruments

_OUTCOMES: Final[tuple[tuple[type[BalancerError], str], ...]] = (
    (Conflict, "conflict"),
    (Fenced, "fenced"),
    (Unavailable, "unavailable"),
    (OutcomeUnknown, "unknown"),
)


class MeteredDirectory:
    """See `balancer.directory.contract.Directory`: does what the wrapped one does."""

    def __init__(self, directory: Directory, instruments: Instruments, clock: Clock) -> None:
        self._directory = directory
        self._commits = instruments.directory_commits
        self._clock = clock

    def commit(self, transaction: Transaction) -> int:
        began, outcome = self._clock.monotonic(), "committed"
        try:
            return self._directory.commit(transaction)
        except BalancerError as error:
            outcome = next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "refused")
            raise
        finally:
            self._commits.labels(outcome).observe(self._clock.monotonic() - began)

    def restore(self, records: Sequence[Record], *, reason: str, author: str, leader_epoch: int) -> int:
        return self._directory.restore(records, reason=reason, author=author, leader_epoch=leader_epoch)

    def snapshot(self) -> Snapshot:
        return self._directory.snapshot()

    def history(self, after: int = 0, limit: int = 100) -> Sequence[LogEntry]:
        return self._directory.history(after, limit)

    def log(self, after: int, upto: int) -> Sequence[StoredEntry] | None:
        return self._directory.log(after, upto)

    def follow(self, confirm_every: float = 1.0) -> Follower:
        return self._directory.follow(confirm_every)

    def campaign(self, name: str, timeout: float | None = None) -> Leadership | None:
        return self._directory.campaign(name, timeout)

    def leader(self) -> str | None:
        return self._directory.leader()

    def publish(self, topic: str, name: str, document: Json) -> int:
        return self._directory.publish(topic, name, document)

    def published(self, topic: str) -> Mapping[str, Json]:
        return self._directory.published(topic)

    def unpublish(self, topic: str, name: str) -> None:
        self._directory.unpublish(topic, name)

    def take_block(self, table: int) -> int:
        return self._directory.take_block(table)

    def blocks(self) -> Mapping[int, int]:
        return self._directory.blocks()

    def exposures(self, *, everything: bool = False) -> Sequence[str]:
        return self._directory.exposures(everything=everything)

    def secure(self, *, dry_run: bool) -> Secured:
        return self._directory.secure(dry_run=dry_run)

    def close(self) -> None:
        self._directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
