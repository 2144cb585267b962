"""A group's metric: a small formula over a tablet's statistics and rates, evaluated for all tablets at once.

Numbers, the names of `STATISTICS`, `+ - * /`, parentheses and a leading minus, with the usual precedence. Nothing else
is understood, and nothing is ever executed. The movers evaluate it; the settings parse it to refuse a wrong one early.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from balancer.policies.bundle_view import Floats, TabletColumns

STATISTICS = ("bytes", "memory", "rows", "write_rate", "read_rate", "tablets")
RATES = ("write_rate", "read_rate")

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
        """Whether it changes with the load and not only with what is stored."""
        return any(step in RATES for step in self.steps)

    def evaluate(self, columns: TabletColumns) -> Floats:
        """Its value for every tablet; what is divided by zero, or would be negative, counts as 0."""
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
                stack.append(_apply(step, left, right))
        return np.maximum(stack.pop(), 0.0)


def statistics(columns: TabletColumns) -> Mapping[str, Floats]:
    """What a metric may name."""
    return {
        "bytes": columns.sizes,
        "memory": columns.memory,
        "rows": columns.rows,
        "write_rate": columns.write_rate,
        "read_rate": columns.read_rate,
        "tablets": np.ones(len(columns)),
    }


def parse_metric(text: str) -> Metric:
    """Reads a metric, or raises `MetricError`."""
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
