"""A formula's truth over the 1,440 minutes of a day, computed once per formula. `schedule` looks up windows in it.

A program's values over a whole day at once, the same as those of `formula` one by one. `day_table` calls it.

A column has only as many values as it needs: one for a constant, 24 where only `hours` is used, 60 where only
`minutes` is, 1,440 where both are. Whole columns go through Python's own C loops, which makes it fast.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from balancer.schedules.formula import TIME_OF_DAY, Formula
from balancer.schedules.language import HIGHEST, IN, LOWEST, NUMERIC, FormulaEvaluationError, Program, TokenKind, wrap

HOURS: Final = 24
MINUTES: Final = 60

_WRAPPING: Final[dict[str, Callable[[int, int], int]]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_FLOORING: Final[dict[str, Callable[[int, int], int]]] = {"/": operator.floordiv, "%": operator.mod}


class TimeColumn(NamedTuple):
    """Values by hour, by minute, by both (hours first) or by neither."""

    values: list[int]
    by_hour: bool = False
    by_minute: bool = False

    def spread(self, by_hour: bool, by_minute: bool) -> list[int]:
        """The same values for a wider shape."""
        values = self.values
        if by_minute and not self.by_minute:
            values = [value for value in values for _ in range(MINUTES)]
        return values * HOURS if by_hour and not self.by_hour else values


_VARIABLES: Final = {
    "hours": TimeColumn(list(range(HOURS)), by_hour=True),
    "minutes": TimeColumn(list(range(MINUTES)), by_minute=True),
}


def evaluate_day(program: Program) -> list[int]:
    """The values of the day's 1,440 minutes. Raises a FormulaEvaluationError if any of them has none."""
    stack: list[TimeColumn] = []
    for kind, text, _, value in program:
        if kind is TokenKind.BINARY:
            count = value + 1 if text == IN else 2
            operands = stack[-count:]
            del stack[-count:]
            stack.append(_apply(text, operands))
        elif kind is TokenKind.NOT:
            column = stack.pop()
            stack.append(column._replace(values=list(map(operator.not_, column.values))))
        elif kind is TokenKind.NAME:
            stack.append(_VARIABLES[text])
        else:
            stack.append(TimeColumn([value]))
    return stack[0].spread(by_hour=True, by_minute=True)


def _apply(symbol: str, operands: list[TimeColumn]) -> TimeColumn:
    by_hour = any(column.by_hour for column in operands)
    by_minute = any(column.by_minute for column in operands)
    first, *others = (column.spread(by_hour, by_minute) for column in operands)
    values = _contained(first, others) if symbol == IN else _combined(symbol, first, others[0])
    return TimeColumn(values, by_hour, by_minute)


def _contained(elements: list[int], members: list[list[int]]) -> list[int]:
    return [element in row for element, row in zip(elements, zip(*members, strict=True), strict=True)]


def _combined(symbol: str, left: list[int], right: list[int]) -> list[int]:
    if raw := _WRAPPING.get(symbol):
        values = list(map(raw, left, right))
        return values if min(values) >= LOWEST and max(values) <= HIGHEST else [wrap(value) for value in values]
    # Python's own division rounds down instead of toward zero, which is the same if nothing is negative.
    if symbol in _FLOORING and min(left) >= 0 and min(right) > 0:
        return list(map(_FLOORING[symbol], left, right))
    return list(map(NUMERIC[symbol].apply, left, right))


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
