"""Text to tokens. `parser` calls it; it does not know what a token means there.

Whether an operand or an operator is expected decides how `-` and `%` are read, so the lexer keeps track of that much:
`5 -3` is a subtraction and `5 - -3` has a negative literal, `10 % %true` has a boolean literal and `10 %true` does not.
"""

import re
from enum import Enum
from typing import Final, NamedTuple

from balancer.schedules.formula_errors import FormulaSyntaxError
from balancer.schedules.operators import HIGHEST, IN, LOWEST, NOT, PRECEDENCE

OPERAND: Final = "a number, a name, %true, %false, `!` or `(`"

_SPACE: Final = re.compile(r"[ \t\n\v\f\r]*")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER: Final = re.compile(r"-?[0-9]+")
_BOOLEAN: Final = re.compile(r"%([A-Za-z]*)")
_OPERATOR: Final = re.compile(r"\|\||&&|==|!=|<=|>=|[-|^&<>+*/%,!()]")
_DIGITS: Final = len(str(HIGHEST))

_NOT_HERE: Final = {
    "=": "a single `=` is not an operator: equality is `==`",
    "~": "there is no `~`",
    "?": "there is no `?:`",
    ":": "there is no `?:`",
    ".": "there are no floating-point numbers",
}


class TokenKind(Enum):
    """The kinds of tokens."""

    NUMBER = "number"
    BOOLEAN = "boolean"
    NAME = "name"
    BINARY = "binary operator"
    NOT = "!"
    OPEN = "("
    CLOSE = ")"


class Token(NamedTuple):
    """A token; `text` is canonical, `value` is that of a literal."""

    kind: TokenKind
    text: str
    position: int
    value: int = 0


def tokenize(text: str) -> list[Token]:
    """All tokens of a formula, or a FormulaSyntaxError."""
    tokens: list[Token] = []
    at = _skip_space(text, 0)
    operand_expected = True
    while at < len(text):
        token, at = _next_token(text, at, operand_expected)
        tokens.append(token)
        operand_expected = token.kind in (TokenKind.BINARY, TokenKind.NOT, TokenKind.OPEN)
        at = _skip_space(text, at)
    return tokens


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _next_token(text: str, at: int, operand_expected: bool) -> tuple[Token, int]:
    char = text[at]
    if "0" <= char <= "9" or (char == "-" and operand_expected):
        return _number(text, at)
    if char == "%" and operand_expected:
        return _boolean(text, at)
    if name := _NAME.match(text, at):
        word = name.group()
        return Token(TokenKind.BINARY if word == IN else TokenKind.NAME, word, at), name.end()
    if symbol := _OPERATOR.match(text, at):
        return Token(_symbol_kind(symbol.group()), symbol.group(), at), symbol.end()
    raise FormulaSyntaxError(_NOT_HERE.get(char, f"{char!r} means nothing in a formula"), text, at)


def _symbol_kind(symbol: str) -> TokenKind:
    if symbol in PRECEDENCE:
        return TokenKind.BINARY
    return {NOT: TokenKind.NOT, "(": TokenKind.OPEN, ")": TokenKind.CLOSE}[symbol]


def _number(text: str, at: int) -> tuple[Token, int]:
    match = _NUMBER.match(text, at)
    if match is None:
        raise FormulaSyntaxError("`-` here must touch the digits of a negative number (write `0 - x`)", text, at)
    negative = match.group().startswith("-")
    digits = match.group().lstrip("-").lstrip("0") or "0"
    # The length is checked first: Python refuses to convert very long digits.
    size = int(digits) if len(digits) <= _DIGITS else HIGHEST + 2
    value = -size if negative else size
    if not LOWEST <= value <= HIGHEST:
        raise FormulaSyntaxError("the number does not fit in 64 bits", text, at, f"{LOWEST} to {HIGHEST}")
    return Token(TokenKind.NUMBER, str(value), at, value), match.end()


def _boolean(text: str, at: int) -> tuple[Token, int]:
    match = _BOOLEAN.match(text, at)
    assert match is not None
    word = match.group(1)
    if word not in ("true", "false"):
        raise FormulaSyntaxError(f"`%{word}` is not an operand", text, at, OPERAND)
    return Token(TokenKind.BOOLEAN, match.group(), at, int(word == "true")), match.end()
