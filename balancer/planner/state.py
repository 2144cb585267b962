"""What one tick of a bundle found out: a value that the API, the page and the command line show.

Made by `tick`, read by everybody above; nothing here acts. The four words are never mixed up: `balanced` means that
there is nothing to do, `blocked` that there is and something is in the way.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from balancer.policies.bundle_view import BundleView, PlanResult
from balancer.policies.day_report import DayReport
from balancer.policies.tail import NOTHING_BEGUN, Tail
from balancer.settings import Mode


class StateWord(StrEnum):
    """The state of a bundle in one word."""

    BALANCED = "balanced"
    WORKING = "working"
    WAITING = "waiting for the schedule"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class ScheduleReport:
    """Whether the bundle may be balanced at this moment, and when it may next."""

    formula: str
    level: str  # whose formula it is; empty: nobody has one, so always open
    timezone: str
    open: bool
    closes_at: datetime | None
    next_open: datetime | None
    next_close: datetime | None = None  # of the window that opens next; None: it is open, never closes or never opens
    missed: datetime | None = None  # the newest open minute that no tick looked at, and that is too long ago now
    too_short: str = ""  # that nothing of the desired size fits into any window to come, and what would


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node as the last poll saw it."""

    id: str
    state: str  # active, draining, closed, down, lost
    reason: str
    reachable: bool
    unreachable_since: datetime | None = None
    error: str = ""
    version: str = ""
    is_standby: bool = False
    rewound: str = ""  # why it is known to have gone back in time, and what to do; empty: it is not
    disagreements: tuple[str, ...] = ()  # where its ownership table contradicts the directory
    in_the_way: str = ""  # why the leader's own work there failed at this tick, such as a lock and who holds it
    poll_seconds: float = 0.0
    database_bytes: float = 0.0
    connections: int = 0
    retained_wal_bytes: float = 0.0
    prepared_seconds: float = 0.0  # the age of the oldest part of a transaction over several nodes; 0: there is none


@dataclass(frozen=True, slots=True)
class BundleState:
    """One bundle after one tick."""

    bundle: str
    at: datetime
    mode: Mode
    word: StateWord
    sentence: str  # the word with what, how long still, until when or by what
    nodes: tuple[NodeReport, ...]
    schedule: ScheduleReport
    view: BundleView | None = None  # None: the bundle could not be seen at all
    plan: PlanResult | None = None
    plan_id: str = ""
    paused_until: datetime | None = None
    paused: bool = False
    tick_seconds: float = 0.0
    started: tuple[str, ...] = ()  # migrations that this tick began, in words
    not_started: tuple[str, ...] = ()  # why due actions could not begin
    tail: Tail = NOTHING_BEGUN  # how far the balancing in progress has come
    day: DayReport | None = None  # what its hours are like; None: nothing is known about them yet
    looked: datetime | None = None  # when a leader last looked at the schedules: what opened since is not lost
    error: str = ""  # of the tick itself: one broken bundle never stops another
