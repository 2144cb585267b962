"""What a migration tells those who watch: the daemon's instruments, the command line's progress, the tests.

The runner calls these from its own thread; they must not block and must not raise. The default does nothing.

How far a migration is: counted by its steps, passed to its observer and published for the command line.

Only a note: no decision depends on it. Published at most twice a second; an unreachable directory is not a reason to
stop, so what cannot be published is forgotten.
"""

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass

from balancer.clock import Clock
from balancer.directory.contract import Directory
from balancer.directory.model import Migration
from balancer.errors import BalancerError
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


TOPIC = "progress"
INTERVAL = 0.5
BREAK = 60.0
"""Seconds without a wait after which the next one is another."""


class ProgressMeter:
    """Belongs to the runner's thread; `done` and `counted` may also be called from a copy's threads."""

    def __init__(self, directory: Directory, observer: Observer, clock: Clock, paused: Callable[[], bool]) -> None:
        self._directory = directory
        self._observer = observer
        self._clock = clock
        self._paused = paused
        self._record: Migration | None = None
        self._state = State.PLANNED
        self._entered = clock.monotonic()
        self._told = 0.0
        self._waiting = self._reason = ""
        self._waits_since = self._waited_last = clock.monotonic() - BREAK
        self._total = self._bytes = self._before = self._rows = 0
        self._lock = threading.Lock()
        self._copy_began: float | None = None
        self._lag: int | None = None

    def enter(self, record: Migration, state: State) -> None:
        """A new state begins. What was to be copied was an estimate; when the copy has ended, it is known."""
        if self._state is State.COPYING and state is not State.COPYING:
            self._total = self._bytes
        self._record, self._state = record, state
        self._entered = self._clock.monotonic()
        self._waiting = self._reason = ""

    def expect(self, total: int, there: int = 0) -> None:
        """This many bytes are to be copied, of which this many are there already."""
        self._total, self._bytes, self._before = total, there, there
        self._copy_began = self._clock.monotonic()

    def done(self, size: int) -> None:
        """This many more bytes have been copied."""
        with self._lock:
            self._bytes += size
            self._total = max(self._total, self._bytes)
        self.tell()

    def counted(self, rows: int) -> None:
        """This many more rows have been copied."""
        with self._lock:
            self._rows += rows

    def waiting(self, what: str, at_once: bool = False, reason: str = OTHER) -> None:
        """What it waits for, in words; published at once where it may take long."""
        now = self._clock.monotonic()
        if now - self._waited_last >= BREAK:
            self._waits_since = now
        self._waited_last = now
        self._waiting, self._reason = what, reason
        self.tell(force=at_once)

    def lag(self, size: int) -> None:
        self._lag = size
        self.tell()

    def tell(self, force: bool = False) -> None:
        """Publishes, unless it did so a moment ago."""
        now = self._clock.monotonic()
        if self._record is None or (now - self._told < INTERVAL and not force):
            return
        self._told = now
        progress = self.now(now)
        self._observer.progressed(self._record, progress)
        try:
            self._directory.publish(TOPIC, self._record.id, asdict(progress))
        except BalancerError:
            return

    def forget(self) -> None:
        """The migration has ended."""
        if self._record is not None:
            try:
                self._directory.unpublish(TOPIC, self._record.id)
            except BalancerError:
                return

    def now(self, now: float) -> Progress:
        """The present figures."""
        elapsed = now - self._copy_began if self._copy_began is not None else 0.0
        rate = (self._bytes - self._before) / elapsed if elapsed > 0 else 0.0
        left = max(0, self._total - self._bytes)
        return Progress(
            state=self._state,
            since=now - self._entered,
            waiting_for=self._waiting,
            reason=self._reason,
            waited=now - self._waits_since if self._reason else 0.0,
            bytes_done=self._bytes,
            bytes_total=self._total,
            rows_done=self._rows,
            rate=rate,
            eta=left / rate if rate and self._state is State.COPYING else None,
            lag=self._lag,
            paused=self._paused(),
        )
