"""A group's metric: a small formula over a tablet's statistics and rates, evaluated for all tablets at once.

Numbers, the names of `STATISTICS`, `+ - * /`, parentheses and a leading minus, with the usual precedence. Nothing else
is understood, and nothing is ever executed. The movers evaluate it; the settings parse it to refuse a wrong one early.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from balancer.policies.view import Floats, Ints, TabletColumns

WINDOWS = ("10m", "1h")
"""Ten minutes are the window of a rate that names none."""
RATES = ("write_rate", "read_rate", *(f"{kind}_rate_{window}" for kind in ("write", "read") for window in WINDOWS))
STATISTICS = ("bytes", "memory", "rows", "tablets", *RATES)

LONGEST = 2000
MOST_NESTED = 50

_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)|([A-Za-z_][A-Za-z0-9_]*)|(.))")


class MetricError(ValueError):
    """A metric that cannot be understood: what is wrong, and where."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A parsed metric, in postfix order: numbers, names, operators (`~` is the leading minus)."""

    text: str
    steps: tuple[float | str, ...]

    @property
    def uses_rates(self) -> bool:
        """Whether it changes with the load, not only with what is stored."""
        return any(step in RATES for step in self.steps)

    def evaluate(self, columns: TabletColumns, rows: Ints | None = None) -> Floats:
        """Its value for every tablet; what is divided by zero counts as 0. Less than 0 is a `MetricError`.

        If `rows` are given, only theirs must make sense: those of other tables do not matter, and are 0.
        """
        values = statistics(columns)
        stack: list[Floats] = []
        for step in self.steps:
            if isinstance(step, float):
                stack.append(np.full(len(columns), step))
            elif step in values:
                stack.append(values[step])
            elif step == "~":
                stack.append(-stack.pop())
            else:
                right, left = stack.pop(), stack.pop()
                with np.errstate(over="ignore", invalid="ignore"):  # the result is checked
                    stack.append(_apply(step, left, right))
        return self._checked(stack.pop(), columns, np.arange(len(columns)) if rows is None else rows)

    def _checked(self, found: Floats, columns: TabletColumns, rows: Ints) -> Floats:
        good = (found >= 0.0) & (found < np.inf)
        bad = rows[~good[rows]]
        if len(bad):
            tablet, value = int(columns.ids[bad[0]]), float(found[bad[0]])
            more = f", and for {len(bad) - 1} more" if len(bad) > 1 else ""
            which = f"{value:,.4g} for tablet {tablet}{more}"
            raise MetricError(f"the metric {self.text!r} is {which}: it must be zero or more")
        return np.where(good, found, 0.0)


def statistics(columns: TabletColumns) -> Mapping[str, Floats]:
    """What a metric may name."""
    return {
        "bytes": columns.sizes,
        "memory": columns.memory,
        "rows": columns.rows,
        "tablets": np.ones(len(columns)),
        "write_rate": columns.write_rate,
        "read_rate": columns.read_rate,
        "write_rate_10m": columns.write_rate,
        "read_rate_10m": columns.read_rate,
        "write_rate_1h": columns.write_rate if columns.write_rate_1h is None else columns.write_rate_1h,
        "read_rate_1h": columns.read_rate if columns.read_rate_1h is None else columns.read_rate_1h,
    }


def parse_metric(text: str) -> Metric:
    """Reads a metric, or raises `MetricError`."""
    if len(text) > LONGEST:
        raise MetricError(f"the metric has {len(text)} characters; {LONGEST} are the most")
    parser = _Parser(text)
    parser.sum()
    parser.expect_end()
    return Metric(text, tuple(parser.steps))


def _apply(operator: str, left: Floats, right: Floats) -> Floats:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    return np.divide(left, right, out=np.zeros_like(left), where=right != 0)


class _Parser:
    """Recursive descent; what it reads ends up in `steps`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.steps: list[float | str] = []
        self.tokens = [(match.start(match.lastindex or 0), match) for match in _TOKEN.finditer(text.rstrip())]
        self.at = 0
        self.depth = 0

    def peek(self) -> str:
        return (self.tokens[self.at][1].group(3) or "") if self.at < len(self.tokens) else ""

    def sum(self) -> None:
        self.product()
        while self.peek() in ("+", "-"):
            self._binary(self.product)

    def product(self) -> None:
        self.operand()
        while self.peek() in ("*", "/"):
            self._binary(self.operand)

    def operand(self) -> None:
        if self.at >= len(self.tokens):
            raise MetricError(f"the metric {self.text!r} ends where a number or a name is expected")
        number, name, other = self.tokens[self.at][1].groups()
        self.at += 1
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise MetricError(f"the metric is nested more than {MOST_NESTED} times")
        if number is not None:
            self.steps.append(float(number))
        elif name is not None:
            self.steps.append(self._known(name))
        elif other == "-":
            self.operand()
            self.steps.append("~")
        elif other == "(":
            self.sum()
            if self.peek() != ")":
                raise MetricError(f"the metric {self.text!r} has a parenthesis that is never closed")
            self.at += 1
        else:
            raise self._unexpected(self.at - 1)
        self.depth -= 1

    def expect_end(self) -> None:
        if self.at < len(self.tokens):
            raise self._unexpected(self.at)

    def _binary(self, operand: Callable[[], None]) -> None:
        operator = self.peek()
        self.at += 1
        operand()
        self.steps.append(operator)

    def _known(self, name: str) -> str:
        if name not in STATISTICS:
            raise MetricError(f"the metric {self.text!r} names {name!r}; known are {', '.join(STATISTICS)}")
        return name

    def _unexpected(self, at: int) -> MetricError:
        place, match = self.tokens[at]
        return MetricError(f"the metric {self.text!r} has {match.group().strip()!r} at position {place + 1}")
