"""The directory with a stop-watch: every commit's duration and outcome becomes a metric. All else passes through.

The daemon opens its directory through this; whoever uses it knows only the contract.
"""

from collections.abc import Mapping, Sequence
from typing import Self

from balancer.clock import Clock
from balancer.directory.contract import Directory, Follower, Leadership
from balancer.directory.model import Json, LogEntry, Record, Transaction
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Conflict, Fenced, OutcomeUnknown, Unavailable
from balancer.instruments import Instruments

COMMITTED, REFUSED = "committed", "refused"
OUTCOMES: tuple[tuple[type[BalancerError], str], ...] = (
    (Conflict, "conflict"),
    (Fenced, "fenced"),
    (Unavailable, "unavailable"),
    (OutcomeUnknown, "unknown"),
)


class MeasuredDirectory:
    """A directory whose commits are timed."""

    def __init__(self, directory: Directory, instruments: Instruments, clock: Clock) -> None:
        self._directory = directory
        self._instruments = instruments
        self._clock = clock

    def commit(self, transaction: Transaction) -> int:
        """As the directory's, and observed."""
        began = self._clock.monotonic()
        outcome = COMMITTED
        try:
            return self._directory.commit(transaction)
        except BalancerError as error:
            outcome = next((word for kind, word in OUTCOMES if isinstance(error, kind)), REFUSED)
            raise
        finally:
            self._instruments.directory_commits.labels(outcome).observe(self._clock.monotonic() - began)

    def snapshot(self) -> Snapshot:
        return self._directory.snapshot()

    def restore(self, records: Sequence[Record], *, reason: str, author: str, leader_epoch: int) -> int:
        return self._directory.restore(records, reason=reason, author=author, leader_epoch=leader_epoch)

    def history(self, after: int = 0, limit: int = 100) -> Sequence[LogEntry]:
        return self._directory.history(after, limit)

    def follow(self) -> Follower:
        return self._directory.follow()

    def campaign(self, name: str, timeout: float | None = None) -> Leadership | None:
        return self._directory.campaign(name, timeout)

    def leader(self) -> str | None:
        return self._directory.leader()

    def publish(self, topic: str, name: str, document: Json) -> None:
        self._directory.publish(topic, name, document)

    def published(self, topic: str) -> Mapping[str, Json]:
        return self._directory.published(topic)

    def unpublish(self, topic: str, name: str) -> None:
        self._directory.unpublish(topic, name)

    def close(self) -> None:
        self._directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
