"""A checked program as canonical text: single spaces, only the parentheses that are needed.

`Formula` compares and hashes by it: two texts that differ in spaces or redundant parentheses print alike.
"""

from typing import NamedTuple

from balancer.schedules.lexer import TokenKind
from balancer.schedules.operators import ATOM_PRECEDENCE, COMMA, IN, NOT_PRECEDENCE, PRECEDENCE
from balancer.schedules.parser import Program


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
