"""Windows found the slow way: second by second, asking the zone each time. Knows nothing of stretches."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo

from schedules import Window


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
