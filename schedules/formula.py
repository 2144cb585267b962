"""A parsed formula: what the rest of the program, and everything outside, holds instead of text.

Sets: where they may appear, and how many members each has. `Formula` calls it after parsing.

A set appears only to the right of `in` or to the left of a comma. So its members can stay on the stack one by one until
`in` takes them: the checked program has no commas, each `in` carries the number of its members as its value, and
evaluators and the printer deal with numbers only.

The value of a checked program for one assignment of its variables. `Formula.evaluate` calls it.

A checked program as canonical text: single spaces, only the parentheses that are needed.

`Formula` compares and hashes by it: two texts that differ in spaces or redundant parentheses print alike.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from balancer.schedules.language import (
    ATOM_PRECEDENCE,
    COMMA,
    HIGHEST,
    IN,
    LOWEST,
    NOT_PRECEDENCE,
    NUMERIC,
    PRECEDENCE,
    FormulaEvaluationError,
    FormulaSyntaxError,
    Program,
    Token,
    TokenKind,
    parse,
)

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


class _Text(NamedTuple):
    text: str
    precedence: int

    def within(self, least: int) -> str:
        """In parentheses unless it binds at least this strongly."""
        return self.text if self.precedence >= least else f"({self.text})"


def print_program(program: Program) -> str:
    """The canonical text."""
    stack: list[_Text] = []
    for kind, symbol, _, members in program:
        if kind is TokenKind.NOT:
            stack.append(_Text(f"!{stack.pop().within(NOT_PRECEDENCE)}", NOT_PRECEDENCE))
        elif kind is not TokenKind.BINARY:
            stack.append(_Text(symbol, ATOM_PRECEDENCE))
        else:
            right = _set_text(stack, members) if symbol == IN else stack.pop()
            precedence = PRECEDENCE[symbol]
            left = stack.pop().within(precedence)
            stack.append(_Text(f"{left} {symbol} {right.within(precedence + 1)}", precedence))
    return stack[0].text


def _set_text(stack: list[_Text], members: int) -> _Text:
    """The last members of the stack as one set; a single one is a number."""
    parts = stack[-members:]
    del stack[-members:]
    if members == 1:
        return parts[0]
    return _Text(", ".join(part.within(PRECEDENCE[COMMA] + 1) for part in parts), PRECEDENCE[COMMA])
