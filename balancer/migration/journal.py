"""The journal of migrations: their records in the directory, saved by compare-and-set under the leader's epoch.

Used by the runner, by the entry points and by recovery. A save either happened or did not: after an unknown outcome the
identical transaction is sent again until the directory answers.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from balancer.clock import Clock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Change, Migration, Put, Transaction
from balancer.errors import OutcomeUnknown, Refused, Unavailable

AUTHOR = "balancer"


class Journal:
    """Belongs to one thread."""

    def __init__(self, directory: Directory, leadership: Leadership, clock: Clock) -> None:
        self._directory = directory
        self._leadership = leadership
        self._clock = clock
        self.base = 0

    def load(self, migration: str) -> Migration:
        """The record as it is now. Raises `Refused` if there is none."""
        snapshot = self._directory.snapshot()
        self.base = snapshot.version
        record = snapshot.migrations.get(migration)
        if record is None:
            raise Refused(f"there is no migration {migration}")
        return record

    def save(
        self, record: Migration, reason: str, changes: Sequence[Change] = (), look: Callable[[], None] | None = None
    ) -> Migration:
        """Saves a record, with other changes in the same commit. Waits while the directory is out of reach.

        `look` says before each sending, the first and every other, whether it may still happen. If it raises, or
        anything else does that the directory has not said of this very request, an earlier sending may have been
        applied: the caller finds out. Raises `Conflict` if somebody else changed a record, `Fenced` if there is another
        leader.
        """
        stamped = replace(record, updated=self._clock.now().timestamp())
        transaction = Transaction(
            changes=(Put(stamped), *changes),
            base=self.base,
            reason=reason,
            author=AUTHOR,
            leader_epoch=self._leadership.epoch,
        )
        self.base = self._commit(transaction, look)
        return stamped

    def _commit(self, transaction: Transaction, look: Callable[[], None] | None) -> int:
        pause = 0.05
        while True:
            if look is not None:
                look()
            try:
                return self._directory.commit(transaction)
            except (Unavailable, OutcomeUnknown):
                # The identical transaction is applied once however often it is sent; giving up here would leave open
                # whether it was applied, and a sealed fence may depend on the answer. Losing the leadership ends it.
                self._leadership.check()
                self._clock.sleep(pause)
                pause = min(2.0, pause * 2)
