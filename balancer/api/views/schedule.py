"""Schedules as documents: whether a bundle is open, today's strip, the next windows."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo

from balancer.api.documents import cut_at
from balancer.api.shapes import ScheduleList, ScheduleShape, WindowShape
from balancer.api.source import Source
from balancer.planner.state import BundleState, ScheduleReport
from balancer.schedules import ALWAYS, Formula, Schedule

DAY_MINUTES = 24 * 60


def schedule(source: Source, state: BundleState, windows: int) -> ScheduleShape:
    """One bundle's schedule at this moment; the formula and whether it is open are those of the last tick."""
    return _shape(state.bundle, state.schedule, source.clock.now(), windows)


def schedule_list(source: Source, states: Iterable[BundleState], windows: int, limit: int, cursor: str) -> ScheduleList:
    """Of some bundles, by name."""
    items, following = cut_at([*states], lambda state: (state.bundle,), limit, cursor)
    return ScheduleList(items=[schedule(source, state, windows) for state in items], next=following)


def _shape(bundle: str, report: ScheduleReport, now: datetime, windows: int) -> ScheduleShape:
    zone = ZoneInfo(report.timezone)
    made = _schedule(report.formula, report.timezone)
    today = now.astimezone(zone).date()
    return ScheduleShape(
        bundle=bundle,
        formula=report.formula,
        level=report.level,
        timezone=report.timezone,
        open=report.open,
        closes_at=report.closes_at,
        next_open=report.next_open,
        day=today,
        strip=_strip(report.formula),
        windows=[
            WindowShape(start=window.start, end=window.end)
            for window in islice(made.windows(now.astimezone(UTC)), windows)
        ],
        too_short=report.too_short,
    )


@lru_cache(maxsize=256)
def _schedule(formula: str, timezone: str) -> Schedule:
    return Schedule(Formula(formula) if formula else ALWAYS, ZoneInfo(timezone))


@lru_cache(maxsize=256)
def _strip(formula: str) -> str:
    """The minutes of a day as the wall clock shows them: the formula knows only hours and minutes."""
    bits = 0
    midnight = datetime(2001, 1, 1, tzinfo=UTC)
    made = _schedule(formula, "UTC")
    for minute in range(DAY_MINUTES):
        bits = bits << 1 | made.is_open(midnight + timedelta(minutes=minute))
    return f"{bits:0{DAY_MINUTES // 4}x}"
