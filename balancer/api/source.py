"""What the API needs from the daemon: a protocol, so that the API knows nothing about loops, signals and wiring.

The daemon implements it; tests implement it over a real directory. Every method may be called from any thread at any
time, even on a standby, and answers from memory unless it says otherwise.

What must be requested from the directory's servers, kept for a moment: many viewers must not mean many requests.

The newest commits of the directory's log, each read once: dragging the timeline asks many times a second.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final, Protocol

from balancer.api.record_shapes import HistoryEntry
from balancer.api.views import migrations
from balancer.clock import Clock
from balancer.directory.contract import Directory, Follower
from balancer.directory.model import Json, LogEntry
from balancer.directory.notes import LeaderSpread
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.features.checker.book import TOPIC as CHECKS
from balancer.instruments import Instruments
from balancer.planner.bundle_state import BundleState
from balancer.planner.recorder import Recorder
from balancer.settings import Settings


@dataclass(frozen=True, slots=True)
class LeaderView:
    """Who leads, as far as this instance knows."""

    name: str | None
    epoch: int
    is_self: bool
    spread: LeaderSpread | None = None
    """None: leadership is not spread over instances."""


class Source(Protocol):
    """A running instance."""

    @property
    def clock(self) -> Clock: ...

    @property
    def instruments(self) -> Instruments: ...

    @property
    def recorder(self) -> Recorder: ...

    def directory(self) -> Directory:
        """For commands, history and notes: these ask the servers. Raises `Unavailable` until it is open."""

    def follower(self) -> Follower:
        """The view of the directory, kept up to date. Raises `Unavailable` until there is a first snapshot."""

    def settings(self) -> Settings:
        """The configuration in force."""

    def states(self) -> Mapping[str, BundleState]:
        """The newest state of each bundle that has ticked."""

    def leader(self) -> LeaderView: ...

    def tick_age(self) -> float:
        """Seconds since the loop last made progress: what `/healthz` judges."""


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
                page = migrations.history_page(
                    self._source.directory(), snapshot, migrations.HistoryQuery(steps=False), RECENT
                )
                self._recent = snapshot.version, page.items
            return self._recent[1]


KEEP_LOG_SECONDS: Final = 60.0
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
            while self._entries and self._entries[-1].at > at and len(self._entries) < migrations.MOST_SCANNED:
                below = self._entries[-1].version
                older = [*islice(migrations.backwards(self._source.directory(), below, _AT_ONCE), _AT_ONCE)]
                if not older:
                    break
                self._entries = (*self._entries, *older)
            return self._entries

    def _take_newer(self) -> None:
        version = self._source.follower().snapshot.version
        known = self._entries[0].version if self._entries else version - 1
        if version > known:
            below = migrations.backwards(self._source.directory(), version + 1, _AT_ONCE)
            newer = takewhile(lambda entry: entry.version > known, below)
            self._entries = (*newer, *self._entries)[: migrations.MOST_SCANNED]

    def oldest(self) -> float:
        """When the oldest of them was made; now, if the log cannot be read. Only that one is read, and kept for a
        while: charts ask with every tick."""
        with self._lock:
            now = self._source.clock.monotonic()
            if now - self._asked >= KEEP_LOG_SECONDS:
                self._oldest, self._asked = self._read_oldest(), now
            return self._oldest

    def _read_oldest(self) -> float:
        try:
            below = self._source.follower().snapshot.version - migrations.MOST_SCANNED
            entries = self._source.directory().history(max(0, below), 1)
        except BalancerError:
            entries = ()
        return entries[0].at if entries else self._source.clock.now().timestamp()
