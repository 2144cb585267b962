"""The one module that reads the clock. Everything else takes time as an argument or takes a `Clock`."""

import threading
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What a long-running part needs of time; tests pass one that they move by hand."""

    def now(self) -> datetime:
        """Wall-clock time, aware, in UTC: for people, schedules and records."""

    def monotonic(self) -> float:
        """Seconds that only grow: for deadlines and durations."""

    def sleep(self, seconds: float) -> None:
        """Waits, without holding anything."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock for tests: it stands still until it is moved, and a sleep moves it."""

    def __init__(self, start: datetime) -> None:
        self._start = start
        self._elapsed = 0.0
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._start.timestamp() + self._elapsed, UTC)

    def monotonic(self) -> float:
        return self._elapsed

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._elapsed += seconds
