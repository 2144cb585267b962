"""The one module that reads the clock. Everything else takes time as an argument or takes a `Clock`."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What a long-running part needs to know about time; tests pass one that they move by hand."""

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
