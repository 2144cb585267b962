"""What a schedule says at this moment of a tick. `schedules` decides, `settings.windows` says which formula applies."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from balancer.planner.state import ScheduleReport
from balancer.schedules import Applicable, Schedule

MOST_MISSED = timedelta(days=1)
"""Older windows are not looked for: nobody doubts that a daemon which was away for a day has missed some."""


def report(found: Applicable, timezone: str, at: datetime, since: datetime | None, look_back: float) -> ScheduleReport:
    """Open now, or in any minute since the last tick: a late tick loses no window, and gets as much time as it had."""
    schedule = found.schedule(ZoneInfo(timezone))
    hits = schedule.hits(since, at, timedelta(seconds=look_back)) if found.enabled else ()
    closes_at = schedule.closes_at(at)
    if hits and closes_at == at:
        length = schedule.closes_at(hits[0])
        closes_at = None if length is None else at + (length - hits[0])
    next_open = schedule.next_open(at)
    return ScheduleReport(
        formula=str(found.formula) if found.level else "",
        level=found.level,
        timezone=timezone,
        open=bool(hits),
        closes_at=closes_at if hits else None,
        next_open=next_open,
        next_close=None if hits or next_open is None else schedule.closes_at(next_open),
        missed=None if hits or since is None or not found.enabled else _missed(schedule, since, at),
    )


def _missed(schedule: Schedule, since: datetime, at: datetime) -> datetime | None:
    """The newest open minute since the last tick; whoever asks has found that it is too long ago."""
    return next(reversed(schedule.hits(since, at, MOST_MISSED)), None)
