"""Which windows of a bundle are open at this moment, and what that allows. The tick asks; nothing is decided elsewhere.

A group of tables and heat may have formulas of their own, which replace the bundle's. What an operator asked for by
name, or ordered to be done at once, has no window: it starts at once and is never parked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from zoneinfo import ZoneInfo

from balancer.directory.model import Migration
from balancer.directory.snapshot import Snapshot
from balancer.planner import orders, rounds, schedule_now
from balancer.planner.follow_up import CODE as FOLLOW_UP
from balancer.planner.memory import HEAT
from balancer.planner.state import ScheduleReport
from balancer.policies.bundle_view import Action
from balancer.policies.finish_by import ANY, PARK
from balancer.policies.options import BundleOptions
from balancer.policies.plan import restricted
from balancer.settings import BundleSettings, Settings
from balancer.settings.windows import bundle_schedule, deadline, group_schedule, heat_schedule

BY_OPERATORS = ("", "operator")
"""The codes of migrations that were asked for by name."""


@dataclass(frozen=True, slots=True)
class Openings:
    """The schedules of a bundle as they stand now."""

    bundle: ScheduleReport
    heat: ScheduleReport
    groups: Mapping[str, ScheduleReport]  # those with a formula of their own
    options: BundleOptions
    endless: bool = False
    """Whether an operator has asked for a round outside the schedule: no deadline counts."""

    @property
    def any(self) -> bool:
        """Whether anything at all may start."""
        return self.bundle.open or self.heat.open or any(group.open for group in self.groups.values())

    @property
    def all(self) -> bool:
        """Whether everything may start."""
        return self.bundle.open and self.heat.open and all(group.open for group in self.groups.values())

    def window(self, table: str, code: str) -> ScheduleReport:
        """The schedule that an action of this code on this table belongs to."""
        if code.startswith(HEAT) or code == FOLLOW_UP:
            return self.heat
        return self.groups.get(self.options.group_name(table), self.bundle)

    def allows(self, action: Action) -> bool:
        """Whether its window is open."""
        return self.window(action.table, action.code).open

    def narrowed(self) -> BundleOptions:
        """The options without what has to wait for its window."""
        names = {"default", *self.options.balancer.groups}
        names |= {self.options.group_name(table) for table in self.options.tables}
        shut = frozenset(name for name in names if not self.groups.get(name, self.bundle).open)
        return restricted(self.options, balance=True, heat=self.heat.open, closed_groups=shut)

    def opened(self) -> "Openings":
        """As if every window were open, and none had an end."""
        reports = {name: replace(report, open=True, closes_at=None) for name, report in self.groups.items()}
        bundle, heat = (replace(report, open=True, closes_at=None) for report in (self.bundle, self.heat))
        return Openings(bundle, heat, reports, self.options, endless=True)

    def seconds_left(self, now: datetime, finish_by: str) -> float | None:
        """How long what starts now may take, or what starts when the next window opens; None: nothing limits it.

        Before a window opens its whole length counts, so that a plan already says what will not fit.
        """
        if self.endless or finish_by == ANY:
            return None
        reports = [self.bundle, self.heat, *self.groups.values()]
        reports = reports[:1] if self.bundle.open else reports
        opened = [report for report in reports if report.open]
        coming = [report for report in reports if report.next_open is not None]
        if not opened and coming:
            first = min(coming, key=_opening)
            return _seconds(_opening(first), _end(first, _opening(first), first.next_close, finish_by))
        ends = [_seconds(now, _end(report, now, report.closes_at, finish_by)) for report in opened]
        return min((left for left in ends if left is not None), default=None)

    def overrunning(self, snapshot: Snapshot, bundle: BundleSettings) -> frozenset[str]:
        """Unfinished migrations that must be held until their window opens again: with `finish_by = "park"` only."""
        if bundle.migration.finish_by != PARK:
            return frozenset()
        return frozenset(
            record.id
            for record in snapshot.migrations.values()
            if record.bundle == bundle.name and not record.finished and self._is_over(snapshot, record)
        )

    def _is_over(self, snapshot: Snapshot, record: Migration) -> bool:
        code = str(record.detail.get("code", ""))
        if code in BY_OPERATORS or orders.unscheduled(snapshot, record) or rounds.unscheduled(snapshot, record.id):
            return False
        return not self.window(snapshot.tables[record.table].name, code).open


def _opening(report: ScheduleReport) -> datetime:
    assert report.next_open is not None
    return report.next_open


def _end(report: ScheduleReport, start: datetime, close: datetime | None, finish_by: str) -> datetime | None:
    """By when what starts at `start` must be done, in a window that closes then; None: never."""
    return deadline(finish_by, ZoneInfo(report.timezone), start) or close


def _seconds(start: datetime, end: datetime | None) -> float | None:
    return None if end is None else max(0.0, (end - start).total_seconds())


def look(settings: Settings, bundle: BundleSettings, now: datetime, since: datetime | None) -> Openings:
    """The schedules at a tick; `since` is the tick before it."""
    own = [name for name, group in bundle.options.balancer.groups.items() if group.schedule.strip()]
    found = {name: group_schedule(settings, bundle, name) for name in own}
    patience = settings.daemon.look_back
    return Openings(
        schedule_now.report(bundle_schedule(settings, bundle), bundle.timezone, now, since, patience),
        schedule_now.report(heat_schedule(settings, bundle), bundle.timezone, now, since, patience),
        {name: schedule_now.report(one, bundle.timezone, now, since, patience) for name, one in found.items()},
        bundle.options,
    )
