"""Wall clocks: stretches of time in which a zone's offset does not change. `schedule` looks for windows in each.

Within a stretch the wall clock runs on evenly, so minutes can be counted; between two it jumps, and an hour is skipped
or repeated. Times are whole microseconds since 1970 in UTC: arithmetic on datetimes of one zone ignores the jumps.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, NamedTuple

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
DAY: Final = 24 * 60 * MINUTE

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST_YEAR: Final = 2  # a day from either end of what a datetime holds, the wall clock cannot be told any more
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


def offset_at(zone: tzinfo, at: int) -> int:
    """How far the zone's wall clock is ahead of UTC."""
    offset = to_datetime(at).astimezone(zone).utcoffset()
    assert offset is not None
    return offset // _MICROSECOND


def stretches(zone: tzinfo, start: int) -> Iterator[Stretch]:
    """Stretches of at most a day, one after another from `start` on.

    A change is noticed by comparing the offsets a day apart; no zone has ever changed twice within four days.
    """
    offset = offset_at(zone, start)
    while start < _END:
        end = min(start + DAY, _END)
        later = offset_at(zone, end)
        if later != offset:
            end = change_between(zone, start, end)
        yield Stretch(start, end, offset)
        start, offset = end, later


def change_between(zone: tzinfo, before: int, after: int) -> int:
    """The first moment with another offset than at `before`, when there is one change up to `after`."""
    offset = offset_at(zone, before)
    while after - before > 1:
        middle = (before + after) // 2
        if offset_at(zone, middle) == offset:
            before = middle
        else:
            after = middle
    return after
