"""The newest commits of the directory's log, each read once: dragging the timeline asks many times a second."""

import threading
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Final

from balancer.api.source import Source
from balancer.api.views import history
from balancer.directory.model import LogEntry
from balancer.errors import BalancerError

KEEP_SECONDS: Final = 60.0
_AT_ONCE: Final = 20  # a commit may have made ten thousand tablets


class LogCache:
    """Of one instance; may be asked from several threads."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._entries: tuple[LogEntry, ...] = ()
        self._oldest = 0.0
        self._asked = -float("inf")

    def newest_first(self, at: float) -> Sequence[LogEntry]:
        """Back to the first that was made by this moment, if one answer may look back that far."""
        with self._lock:
            self._take_newer()
            while self._entries and self._entries[-1].at > at and len(self._entries) < history.MOST_SCANNED:
                below = self._entries[-1].version
                older = [*islice(history.backwards(self._source.directory(), below, _AT_ONCE), _AT_ONCE)]
                if not older:
                    break
                self._entries = (*self._entries, *older)
            return self._entries

    def _take_newer(self) -> None:
        version = self._source.follower().snapshot.version
        known = self._entries[0].version if self._entries else version - 1
        if version > known:
            below = history.backwards(self._source.directory(), version + 1, _AT_ONCE)
            newer = takewhile(lambda entry: entry.version > known, below)
            self._entries = (*newer, *self._entries)[: history.MOST_SCANNED]

    def oldest(self) -> float:
        """When the oldest of them was made; now, if the log cannot be read. Only that one is read, and kept for a
        while: charts ask with every tick."""
        with self._lock:
            now = self._source.clock.monotonic()
            if now - self._asked >= KEEP_SECONDS:
                self._oldest, self._asked = self._read_oldest(), now
            return self._oldest

    def _read_oldest(self) -> float:
        try:
            below = self._source.follower().snapshot.version - history.MOST_SCANNED
            entries = self._source.directory().history(max(0, below), 1)
        except BalancerError:
            entries = ()
        return entries[0].at if entries else self._source.clock.now().timestamp()
