"""What a migration tells those who watch: the daemon's instruments, the command line's progress, the tests.

The runner calls these from its own thread; they must not block and must not raise. The default does nothing.
"""

from dataclasses import dataclass

from balancer.directory.model import Migration
from balancer.migration.machine import State

SNAPSHOTS = "snapshots"
LOCKS = "locks"
OTHER = "other"
"""What a migration may wait for, in one word: sessions with an older snapshot, transactions with a lock, anything else.
The same words as `instruments.MIGRATION_WAITS`."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a migration is, for people."""

    state: State
    since: float  # seconds in this state
    waiting_for: str = ""
    reason: str = ""
    """One of those words; empty: it waits for nothing."""
    waited: float = 0.0
    """Seconds for which it has waited, in one state after another, with breaks of less than a minute."""
    bytes_done: int = 0
    bytes_total: int = 0
    rows_done: int = 0
    rate: float = 0.0  # bytes per second
    eta: float | None = None  # seconds to the end of the copy
    lag: int | None = None  # bytes of the stream not yet applied
    paused: bool = False


class Observer:
    """Subclass it and override what is of interest."""

    def entered(self, migration: Migration, state: State) -> None:
        """A state begins; if it is journaled, it has been saved."""

    def left(self, migration: Migration, state: State) -> None:
        """A state's work is done, and what follows has not been saved yet."""

    def progressed(self, migration: Migration, progress: Progress) -> None:
        """At most a few times a second."""

    def finished(self, migration: Migration) -> None:
        """Nothing follows."""


class Observers(Observer):
    """Tells several, in this order: those that let writers continue come before those that take longer."""

    def __init__(self, *told: Observer | None) -> None:
        self._told = [one for one in told if one is not None]

    def entered(self, migration: Migration, state: State) -> None:
        for one in self._told:
            one.entered(migration, state)

    def left(self, migration: Migration, state: State) -> None:
        for one in self._told:
            one.left(migration, state)

    def progressed(self, migration: Migration, progress: Progress) -> None:
        for one in self._told:
            one.progressed(migration, progress)

    def finished(self, migration: Migration) -> None:
        for one in self._told:
            one.finished(migration)
