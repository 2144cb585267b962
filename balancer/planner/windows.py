"""Which schedule holds for a bundle at this moment, and what it says. `schedules` decides; this only asks it."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from balancer.planner.state import ScheduleReport
from balancer.settings import BundleSettings
from schedules import Applicable, Level, applicable


def bundle_schedule(bundle: BundleSettings, cluster_formula: str, group: str = "default") -> Applicable:
    """The group's formula, else the bundle's, else the cluster's."""
    options = bundle.options.balancer
    levels = [Level(f"bundle {bundle.name}", options.tablet_balancer_schedule), Level("the cluster", cluster_formula)]
    if group in options.groups:
        levels.insert(0, Level(f"group {group}", options.groups[group].schedule))
    return applicable(*levels)


def heat_schedule(bundle: BundleSettings, cluster_formula: str) -> Applicable:
    """Heat may have a formula of its own, because a hot range does not wait for the night."""
    heat = bundle.options.heat
    if heat.schedule.strip():
        return applicable(Level(f"heat of bundle {bundle.name}", heat.schedule, heat.enable))
    return bundle_schedule(bundle, cluster_formula)


def report(found: Applicable, timezone: str, at: datetime, since: datetime | None, look_back: float) -> ScheduleReport:
    """What the schedule says now; open also when a minute since the last tick was: a late tick loses no window."""
    schedule = found.schedule(ZoneInfo(timezone))
    return ScheduleReport(
        formula=str(found.formula) if found.level else "",
        level=found.level,
        timezone=timezone,
        open=found.enabled and bool(schedule.hits(since, at, timedelta(seconds=look_back))),
        closes_at=schedule.closes_at(at) if schedule.is_open(at) else None,
        next_open=schedule.next_open(at),
    )
