"""A parsed formula: what the rest of the program, and everything outside, holds instead of text."""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Final

from balancer.schedules.checker import fold_sets
from balancer.schedules.evaluator import evaluate
from balancer.schedules.formula_errors import FormulaEvaluationError
from balancer.schedules.lexer import TokenKind
from balancer.schedules.operators import HIGHEST, IN, LOWEST
from balancer.schedules.parser import Program, parse
from balancer.schedules.printer import print_program

TIME_OF_DAY: Final = ("hours", "minutes")

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Formula:
    """An arithmetic formula over signed 64-bit integers; immutable, equal to others whose text means the same.

    Spaces, redundant parentheses and leading zeros do not affect equality; `str` gives the canonical text, `text` is
    the formula as it was written.
    """

    def __init__(self, text: str, variables: Sequence[str] = TIME_OF_DAY) -> None:
        for name in variables:
            if not _NAME.fullmatch(name) or name == IN:
                raise ValueError(f"{name!r} cannot be a variable: letters, digits and `_`, and not the word `in`")
        self.text: Final = text
        self.variables: Final = tuple(variables)
        self.program: Final[Program] = fold_sets(text, parse(text, self.variables))
        self._canonical: Final = print_program(self.program)

    @cached_property
    def names(self) -> frozenset[str]:
        """The variables that the formula uses."""
        return frozenset(token.text for token in self.program if token.kind is TokenKind.NAME)

    def evaluate(self, /, **values: int) -> int:
        """Its value; a variable that the formula does not use need not be given."""
        for name, value in values.items():
            if name not in self.variables:
                raise TypeError(f"{name!r} is not a variable of this formula; it has {', '.join(self.variables)}")
            if not isinstance(value, int):
                raise TypeError(f"{name} = {value!r} is not an integer")
            if not LOWEST <= value <= HIGHEST:
                raise FormulaEvaluationError(f"{name} = {value} does not fit in 64 bits")
        return evaluate(self.program, values)

    def __str__(self) -> str:
        return self._canonical

    def __repr__(self) -> str:
        return f"Formula({self._canonical!r})"

    def __eq__(self, other: object) -> bool:
        return self._canonical == other._canonical if isinstance(other, Formula) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._canonical)
