"""Sets: where they may appear, and how many members each has. `Formula` calls it after parsing.

A set appears only to the right of `in` or to the left of a comma. So its members can stay on the stack one by one until
`in` takes them: the checked program has no commas, each `in` carries the number of its members as its value, and
evaluators and the printer deal with numbers only.
"""

from typing import NamedTuple

from balancer.schedules.formula_errors import FormulaSyntaxError
from balancer.schedules.lexer import Token, TokenKind
from balancer.schedules.operators import COMMA, IN
from balancer.schedules.parser import Program

_EXPECTED = "a number: a set stands only right of `in`"


class _Operand(NamedTuple):
    """What is on the stack: a number, or the set that a comma has made."""

    members: int
    comma: Token | None


_NUMBER = _Operand(1, None)


def fold_sets(text: str, program: Program) -> Program:
    """The program without commas, or a FormulaSyntaxError if a set appears in a number's place."""
    folded: list[Token] = []
    stack: list[_Operand] = []
    for token in program:
        if token.kind is TokenKind.BINARY:
            right, left = stack.pop(), stack.pop()
            stack.append(_combine(text, token, left, right))
            if token.text == IN:
                folded.append(token._replace(value=right.members))
            elif token.text != COMMA:
                folded.append(token)
            continue
        if token.kind is TokenKind.NOT:
            _need_number(text, stack.pop(), "`!` takes a number and gets a set")
        stack.append(_NUMBER)
        folded.append(token)
    _need_number(text, stack[-1], "the whole formula is a set")
    return tuple(folded)


def _combine(text: str, token: Token, left: _Operand, right: _Operand) -> _Operand:
    if token.text != IN:
        _need_number(text, right, f"the right side of `{token.text}` is a set")
    if token.text == COMMA:
        return _Operand(left.members + 1, token)
    _need_number(text, left, f"the left side of `{token.text}` is a set")
    return _NUMBER


def _need_number(text: str, operand: _Operand, problem: str) -> None:
    if operand.comma is not None:
        raise FormulaSyntaxError(problem, text, operand.comma.position, _EXPECTED)
