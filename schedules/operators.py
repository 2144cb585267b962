"""The operators of the formula language: precedence and meaning on signed 64-bit integers.

One table, read by the lexer, the parser, the printer and both evaluators. Comparisons and logic give Python's `True`
and `False`, which are the integers 1 and 0; the function that returns a value makes it an `int`.
"""

import operator
from collections.abc import Callable
from typing import Final, NamedTuple

from balancer.schedules.formula_errors import FormulaEvaluationError

LOWEST: Final = -(1 << 63)
HIGHEST: Final = (1 << 63) - 1

IN: Final = "in"
COMMA: Final = ","
NOT: Final = "!"
NOT_PRECEDENCE: Final = 12
ATOM_PRECEDENCE: Final = 13  # of numbers and names: they never need parentheses


def wrap(value: int) -> int:
    """The value as a signed 64-bit integer."""
    return value if LOWEST <= value <= HIGHEST else ((value - LOWEST) & ((1 << 64) - 1)) + LOWEST


def _divide(left: int, right: int) -> int:
    _check_divisor(left, right, "/")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int, right: int) -> int:
    _check_divisor(left, right, "%")
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def _check_divisor(left: int, right: int, symbol: str) -> None:
    if right == 0:
        raise FormulaEvaluationError(f"division by zero: {int(left)} {symbol} 0")
    if right == -1 and left == LOWEST:
        raise FormulaEvaluationError(f"{LOWEST} {symbol} -1 does not fit in 64 bits")


class Binary(NamedTuple):
    """A binary operator on two numbers; all are left-associative."""

    precedence: int
    apply: Callable[[int, int], int]


# Neither && nor || looks at one side only: both sides have been evaluated when they are applied.
NUMERIC: Final = {
    "||": Binary(3, lambda left, right: bool(left or right)),
    "&&": Binary(4, lambda left, right: bool(left and right)),
    "|": Binary(5, operator.or_),
    "^": Binary(6, operator.xor),
    "&": Binary(7, operator.and_),
    "==": Binary(8, operator.eq),
    "!=": Binary(8, operator.ne),
    "<": Binary(9, operator.lt),
    ">": Binary(9, operator.gt),
    "<=": Binary(9, operator.le),
    ">=": Binary(9, operator.ge),
    "+": Binary(10, lambda left, right: wrap(left + right)),
    "-": Binary(10, lambda left, right: wrap(left - right)),
    "*": Binary(11, lambda left, right: wrap(left * right)),
    "/": Binary(11, _divide),
    "%": Binary(11, _remainder),
}

PRECEDENCE: Final = {IN: 1, COMMA: 2} | {symbol: entry.precedence for symbol, entry in NUMERIC.items()}
"""Of every binary operator, low to high."""
