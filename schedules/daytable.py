"""A formula's truth over the 1,440 minutes of a day, computed once per formula. `schedule` looks up windows in it."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from balancer.schedules.columns import HOURS, MINUTES, evaluate_day
from balancer.schedules.formula import TIME_OF_DAY, Formula
from balancer.schedules.formula_errors import FormulaEvaluationError

DAY_MINUTES: Final = HOURS * MINUTES
OPEN: Final = b"\1"
CLOSED: Final = b"\0"


@dataclass(frozen=True, slots=True)
class FormulaFailures:
    """The minutes of a day in which a formula has no value; they count as closed."""

    minutes: int
    """How many."""
    hour: int
    """The first of them …"""
    minute: int
    reason: str
    """… and why."""

    def __str__(self) -> str:
        word = "minute" if self.minutes == 1 else "minutes"
        at = f"{self.hour:02}:{self.minute:02}"
        return f"the formula fails in {self.minutes} {word} of the day, first at {at}: {self.reason}"


@dataclass(frozen=True, slots=True)
class DayTable:
    """One byte per minute of the wall clock, from 00:00: 1 is open, 0 is closed."""

    minutes: bytes
    failures: FormulaFailures | None = None

    @property
    def open_minutes(self) -> int:
        """How many minutes of an ordinary day are open."""
        return self.minutes.count(OPEN)

    def runs(self) -> tuple[int, ...]:
        """The lengths, in minutes, of an ordinary day's windows; one that spans midnight is one. Always open: 1440."""
        if CLOSED not in self.minutes:
            return (DAY_MINUTES,)
        start = self.minutes.index(CLOSED)
        rotated = self.minutes[start:] + self.minutes[:start]
        return tuple(len(run) for run in rotated.split(CLOSED) if run)


@lru_cache(maxsize=1024)
def day_table(formula: Formula) -> DayTable:
    """The table of a formula over `hours` and `minutes`."""
    if others := formula.names.difference(TIME_OF_DAY):
        raise ValueError(f"a schedule knows hours and minutes, not {', '.join(sorted(others))}")
    try:
        return DayTable(bytes(map(bool, evaluate_day(formula.program))))
    except FormulaEvaluationError:
        return _minute_by_minute(formula)


def _minute_by_minute(formula: Formula) -> DayTable:
    """The slow way, for a formula that fails somewhere: which minutes, and why."""
    table = bytearray(DAY_MINUTES)
    failed: list[tuple[int, str]] = []
    for at in range(DAY_MINUTES):
        try:
            table[at] = formula.evaluate(hours=at // MINUTES, minutes=at % MINUTES) != 0
        except FormulaEvaluationError as error:
            failed.append((at, str(error)))
    first, reason = failed[0]
    return DayTable(bytes(table), FormulaFailures(len(failed), first // MINUTES, first % MINUTES, reason))
