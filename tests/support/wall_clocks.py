"""Windows and minutes found the slow way: step by step, asking the zone each time. Knows nothing about stretches."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo

from balancer.schedules import Window


def scan(
    truth: Callable[[int, int], bool], zone: tzinfo, start: datetime, end: datetime, step: timedelta
) -> list[Window]:
    """The windows within [start, end), on a grid of `step`; cut off at both ends."""
    found: list[Window] = []
    opened: datetime | None = None
    at = start.astimezone(UTC)
    while at < end:
        wall = at.astimezone(zone)
        if truth(wall.hour, wall.minute):
            opened = opened or at
        elif opened is not None:
            found.append(Window(opened, at))
            opened = None
        at += step
    if opened is not None:
        found.append(Window(opened, at))
    return found


def minute_starts(zone: tzinfo, start: datetime, end: datetime) -> list[datetime]:
    """When each minute of the wall clock begins after `start` up to `end`, to the second; a jump begins one too."""
    found: list[datetime] = []
    at = start.astimezone(UTC)
    last = _minute(zone, at)
    while at < end:
        at += timedelta(seconds=1)
        if (present := _minute(zone, at)) != last:
            found.append(at)
            last = present
    return found


def _minute(zone: tzinfo, at: datetime) -> tuple[timedelta | None, int]:
    wall = at.astimezone(zone)
    return wall.utcoffset(), wall.minute
