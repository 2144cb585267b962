"""A clock that stands still until a test moves it."""

import threading
from datetime import UTC, datetime


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
