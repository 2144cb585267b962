"""How far a migration is: counted by its steps, passed to its observer and published for the command line.

Only a note: no decision depends on it. Published at most twice a second; an unreachable directory is not a reason to
stop, so what cannot be published is forgotten.
"""

import threading
from collections.abc import Callable
from dataclasses import asdict

from balancer.clock import Clock
from balancer.directory.contract import Directory
from balancer.directory.model import Migration
from balancer.errors import BalancerError
from balancer.migration.machine import State
from balancer.migration.observer import OTHER, Observer, Progress

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
