"""Wall clocks: stretches of time in which a zone's offset does not change. `schedule` looks for windows in each.

Within a stretch the wall clock runs evenly, so minutes can be counted; between two it jumps, and an hour is skipped or
repeated. Times are whole microseconds since 1970 in UTC: arithmetic on datetimes of one zone ignores the jumps.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
DAY: Final = 24 * 60 * MINUTE

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST_YEAR: Final = 2  # a day from either end of what a datetime holds, the wall clock is unknown
_LAST_YEAR: Final = 9998
_END: Final = (datetime(_LAST_YEAR + 1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND


class Stretch(NamedTuple):
    """From `start` up to, not including, `end` the wall clock shows UTC plus `offset`."""

    start: int
    end: int
    offset: int


def to_microseconds(at: datetime) -> int:
    """Refuses what has no zone: nobody knows when it is."""
    if at.utcoffset() is None:
        raise ValueError(f"{at.isoformat()} has no time zone")
    if not _FIRST_YEAR <= at.year <= _LAST_YEAR:
        raise ValueError(f"{at.isoformat()} is not between the years {_FIRST_YEAR} and {_LAST_YEAR}")
    return (at.astimezone(UTC) - _EPOCH) // _MICROSECOND


def to_datetime(at: int) -> datetime:
    """In UTC, so that callers may subtract and compare."""
    return _EPOCH + timedelta(microseconds=at)


def stretch_at(zone: tzinfo, at: int) -> Stretch:
    """The part of the UTC day around `at` in which the offset stays what it is then."""
    return next(stretch for stretch in _stretches_of(zone, at // DAY) if at < stretch.end)


def stretches(zone: tzinfo, start: int) -> Iterator[Stretch]:
    """Stretches one after another from `start` on, cut at midnight UTC."""
    for day in range(start // DAY, _END // DAY):
        for stretch in _stretches_of(zone, day):
            if stretch.end > start:
                yield stretch if stretch.start >= start else stretch._replace(start=start)


@lru_cache(maxsize=4096)
def _stretches_of(zone: tzinfo, day: int) -> tuple[Stretch, ...]:
    """One for most days since 1970, two for a day on which the wall clock jumps.

    A jump is noticed by comparing the offsets at both ends; no zone has ever changed twice within four days.
    """
    start, end = day * DAY, (day + 1) * DAY
    before, after = _offset(zone, start), _offset(zone, end)
    if before == after:
        return (Stretch(start, end, before),)
    jump = _jump_between(zone, start, end)
    parts = (Stretch(start, jump, before), Stretch(jump, end, after))
    return tuple(part for part in parts if part.start < part.end)


def _offset(zone: tzinfo, at: int) -> int:
    offset = to_datetime(at).astimezone(zone).utcoffset()
    assert offset is not None
    return offset // _MICROSECOND


def _jump_between(zone: tzinfo, before: int, after: int) -> int:
    """The first moment with an offset other than at `before`, if there is one jump up to `after`."""
    offset = _offset(zone, before)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(zone, middle) == offset:
            before = middle
        else:
            after = middle
    return after
