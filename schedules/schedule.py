"""When a bundle may be balanced: a formula on the wall clock of a zone. The planner, the daemon and the views ask it.

It holds no clock: every question brings its moment, which must have a time zone. Answers are in UTC, because the
difference of two datetimes of one zone is wrong across a daylight-saving change. A minute is open if the formula is
true for the hour and minute that the zone's wall clock shows: a skipped hour never opens, a repeated one opens twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from balancer.schedules.daytable import CLOSED, DAY_MINUTES, OPEN, DayTable, FormulaFailures, day_table
from balancer.schedules.formula import Formula
from balancer.schedules.stretches import MINUTE, Stretch, stretch_at, stretches, to_datetime, to_microseconds

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
