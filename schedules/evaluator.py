"""The value of a checked program for one assignment of its variables. `Formula.evaluate` calls it."""

from collections.abc import Mapping

from balancer.schedules.formula_errors import FormulaEvaluationError
from balancer.schedules.lexer import TokenKind
from balancer.schedules.operators import IN, NUMERIC
from balancer.schedules.parser import Program


def evaluate(program: Program, values: Mapping[str, int]) -> int:
    """A signed 64-bit integer; every part is evaluated, even those that cannot change the result."""
    stack: list[int] = []
    for kind, text, _, value in program:
        if kind is TokenKind.BINARY and text == IN:
            members = stack[-value:]
            del stack[-value:]
            stack[-1] = stack[-1] in members
        elif kind is TokenKind.BINARY:
            right = stack.pop()
            stack[-1] = NUMERIC[text].apply(stack[-1], right)
        elif kind is TokenKind.NOT:
            stack[-1] = not stack[-1]
        elif kind is TokenKind.NAME:
            stack.append(_value_of(text, values))
        else:
            stack.append(value)
    return int(stack[0])


def _value_of(name: str, values: Mapping[str, int]) -> int:
    try:
        return values[name]
    except KeyError:
        raise FormulaEvaluationError(f"the name `{name}` has no value") from None
