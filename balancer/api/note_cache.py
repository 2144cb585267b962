"""What must be requested from the directory's servers, kept for a moment: many viewers must not mean many requests."""

import threading
from collections.abc import Mapping
from typing import Final

from balancer.api.record_shapes import HistoryEntry
from balancer.api.source import Source
from balancer.api.views import history
from balancer.checks.book_notes import TOPIC as CHECKS
from balancer.directory.model import Json
from balancer.directory.snapshot import Snapshot

PROGRESS: Final = "progress"
"""The topic under which running migrations publish how far they are."""
KEEP_SECONDS: Final = 0.5
RECENT: Final = 30
CHECK_SECONDS: Final = 5.0
"""As often as the leader records how far a round has come."""


class Notes:
    """The migrations' progress, the checks' results and the newest history."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._progress: Mapping[str, Json] = {}
        self._asked = -float("inf")
        self._checks: Mapping[str, Json] = {}
        self._checks_asked = -float("inf")
        self._recent: tuple[int, list[HistoryEntry]] = (-1, [])

    def progress(self, snapshot: Snapshot) -> Mapping[str, Json]:
        """By migration id; asks nothing while nothing is running."""
        if not snapshot.busy:
            return {}
        with self._lock:
            now = self._source.clock.monotonic()
            if now - self._asked >= KEEP_SECONDS:
                self._progress = self._source.directory().published(PROGRESS)
                self._asked = now
            return self._progress

    def checks(self) -> Mapping[str, Json]:
        """What the consistency checker has found, by bundle."""
        with self._lock:
            now = self._source.clock.monotonic()
            if now - self._checks_asked >= CHECK_SECONDS:
                self._checks = self._source.directory().published(CHECKS)
                self._checks_asked = now
            return self._checks

    def recent(self, snapshot: Snapshot) -> list[HistoryEntry]:
        """The newest commits; read again when the version has changed."""
        with self._lock:
            if self._recent[0] != snapshot.version:
                page = history.page(self._source.directory(), snapshot, history.HistoryQuery(steps=False), RECENT)
                self._recent = snapshot.version, page.items
            return self._recent[1]
