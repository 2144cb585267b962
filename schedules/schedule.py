"""When a bundle may be balanced: a formula on the wall clock of a zone. The planner, the daemon and the views ask it.

It holds no clock: every question brings its moment, which must have a time zone. Answers are in UTC, because the
difference of two datetimes of one zone is wrong across a daylight-saving change. A minute is open if the formula is
true for the hour and minute that the zone's wall clock shows: a skipped hour never opens, a repeated one opens twice.

Wall clocks: stretches of time in which a zone's offset does not change. `schedule` looks for windows in each.

Within a stretch the wall clock runs evenly, so minutes can be counted; between two it jumps, and an hour is skipped or
repeated. Times are whole microseconds since 1970 in UTC: arithmetic on datetimes of one zone ignores the jumps.

Which formula applies: the group's, else the bundle's, else the cluster's. The planner and the views ask here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple

from balancer.schedules.day_table import CLOSED, DAY_MINUTES, OPEN, DayTable, FormulaFailures, day_table
from balancer.schedules.formula import Formula

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


LOOK_BACK: Final = timedelta(hours=1)
"""How far a late tick looks back by default: longer than any sensible tick, shorter than a night's pause."""


@dataclass(frozen=True, slots=True)
class Window:
    """Open from `start` up to, not including, `end`; None: it does not close."""

    start: datetime
    end: datetime | None

    @property
    def length(self) -> timedelta | None:
        """None: without end."""
        return None if self.end is None else self.end - self.start


class Schedule:
    """A formula over `hours` and `minutes` in a zone. Immutable; equal if both are."""

    def __init__(self, formula: Formula, zone: tzinfo = UTC) -> None:
        self.formula: Final = formula
        self.zone: Final = zone
        self.table: Final[DayTable] = day_table(formula)
        # Twice, so that a search may run over midnight.
        self._two_days: Final = self.table.minutes * 2

    @property
    def failures(self) -> FormulaFailures | None:
        """The minutes in which the formula has no value, which count as closed; None: it always has one."""
        return self.table.failures

    def is_open(self, at: datetime) -> bool:
        """Whether the formula is true at this moment."""
        return self._is_open(to_microseconds(at))

    def next_open(self, after: datetime) -> datetime | None:
        """The first open moment from `after` on: `after` itself if it is open; None: it never opens."""
        found = self._find(OPEN, to_microseconds(after))
        return None if found is None else to_datetime(found)

    def closes_at(self, at: datetime) -> datetime | None:
        """When the window that is open at `at` closes; `at` itself if none is open; None: it never closes."""
        found = self._find(CLOSED, to_microseconds(at))
        return None if found is None else to_datetime(found)

    def windows(self, after: datetime) -> Iterator[Window]:
        """Window after window, without end if the schedule opens at all.

        The first one begins at `after` if that is inside a window. A schedule that is always open has one.
        """
        at = to_microseconds(after)
        while (start := self._find(OPEN, at)) is not None:
            end = self._find(CLOSED, start)
            yield Window(to_datetime(start), None if end is None else to_datetime(end))
            if end is None:
                return
            at = end

    def hits(self, since: datetime | None, until: datetime, look_back: timedelta = LOOK_BACK) -> tuple[datetime, ...]:
        """The first moments of the open minutes after that of `since` up to that of `until`, oldest first.

        A tick passes the time of the tick before it, so that a slot that fell between the two still fires. The minute
        of `until` always counts; none that began more than `look_back` before `until` does. `since` is None for the
        first tick; one that lies ahead of `until` (the clock was set back) is taken as `until`.
        """
        now = to_microseconds(until)
        before = now if since is None else min(to_microseconds(since), now)
        before = max(before, now - max(look_back, timedelta(0)) // timedelta(microseconds=1))
        present = self._minute_start(now)
        starts = self._open_minutes(self._minute_start(before), now)
        return tuple(to_datetime(start) for start in starts if start > before or start == present)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return self.formula == other.formula and self.zone == other.zone

    def __hash__(self) -> int:
        return hash((self.formula, self.zone))

    def __repr__(self) -> str:
        return f"Schedule({str(self.formula)!r}, {self.zone})"

    def _is_open(self, at: int) -> bool:
        minute = (at + stretch_at(self.zone, at).offset) // MINUTE
        return bool(self.table.minutes[minute % DAY_MINUTES])

    def _find(self, state: bytes, start: int) -> int | None:
        """The first moment from `start` on in this state."""
        if state not in self.table.minutes:
            return None
        for stretch in stretches(self.zone, start):
            found = next(self._minutes(state, stretch), None)
            if found is not None:
                return max(start, found)
        return None

    def _minutes(self, state: bytes, stretch: Stretch) -> Iterator[int]:
        """When the minutes in this state that lie, at least in part, in a stretch begin; the first may be earlier."""
        first = (stretch.start + stretch.offset) // MINUTE
        last = (stretch.end - 1 + stretch.offset) // MINUTE
        shift = first % DAY_MINUTES
        at = self._two_days.find(state, shift, shift + last - first + 1)
        while at >= 0:
            yield max(stretch.start, (first + at - shift) * MINUTE - stretch.offset)
            at = self._two_days.find(state, at + 1, shift + last - first + 1)

    def _open_minutes(self, start: int, last: int) -> Iterator[int]:
        """When the open minutes from `start`, which is the start of one, to `last` begin."""
        previous: Stretch | None = None
        for stretch in stretches(self.zone, start):
            # A stretch that continues where the last one was cut off may cut a minute: its first part has been counted.
            goes_on = previous is not None and previous.offset == stretch.offset
            for begins in self._minutes(OPEN, stretch):
                if begins > last:
                    return
                if not (goes_on and begins == stretch.start and (begins + stretch.offset) % MINUTE):
                    yield begins
            if stretch.end > last:
                return
            previous = stretch

    def _minute_start(self, at: int) -> int:
        """When the current minute of the wall clock began: on the full minute, or at a jump of the clock."""
        stretch = stretch_at(self.zone, at)
        start = (at + stretch.offset) // MINUTE * MINUTE - stretch.offset
        unbroken = start >= stretch.start or stretch_at(self.zone, start).offset == stretch.offset
        return start if unbroken else stretch.start


ALWAYS: Final = Formula("%true")
"""Applies if no level says anything: nobody asked for a restriction."""


@dataclass(frozen=True, slots=True)
class Level:
    """What a group, a bundle or the cluster says."""

    name: str
    """For people: `group hot`, `bundle shop`, `the cluster`."""
    formula: str = ""
    """Empty, or nothing but spaces: unset."""
    enable: bool = True


@dataclass(frozen=True, slots=True)
class Applicable:
    """The formula that applies, and whose it is."""

    formula: Formula
    level: str
    """The name of the level that says so; empty: none does, and every minute is open."""
    disabled_by: str = ""
    """The name of the first level that is switched off; empty: all are on."""

    @property
    def enabled(self) -> bool:
        """Whether to ask the formula at all; a switch turned off at any level turns off everything below it."""
        return not self.disabled_by

    def schedule(self, zone: tzinfo = UTC) -> Schedule:
        """The formula on a zone's wall clock."""
        return Schedule(self.formula, zone)


def applicable(*levels: Level) -> Applicable:
    """The formula of the first level that has one; most specific first. Raises a FormulaSyntaxError if it is wrong."""
    disabled_by = next((level.name for level in levels if not level.enable), "")
    for level in levels:
        if level.formula.strip():
            return Applicable(Formula(level.formula), level.name, disabled_by)
    return Applicable(ALWAYS, "", disabled_by)
