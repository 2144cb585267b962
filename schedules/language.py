"""The operators of the formula language: precedence and meaning on signed 64-bit integers.

One table, read by the lexer, the parser, the printer and both evaluators. Comparisons and logic give Python's `True`
and `False`, which are the integers 1 and 0; the function that returns a value makes it an `int`.

The two errors of the formula language. The parser and the evaluator raise them; people read them.

Text to tokens. `language` calls it; it does not know what a token means there.

Whether an operand or an operator is expected decides how `-` and `%` are read, so the lexer keeps track of that much:
`5 -3` is a subtraction and `5 - -3` has a negative literal, `10 % %true` has a boolean literal and `10 %true` does not.

Tokens to a program: the formula in postfix order. `Formula` calls it; nothing here or after it recurses.

A program is evaluated, checked and printed by walking it once with a stack, so the depth of a formula never reaches
Python's own limit. The two limits below bound the work that a formula can ask for instead.
"""

import operator
import re
import unicodedata
from collections.abc import Callable, Collection
from enum import Enum
from typing import Final, NamedTuple

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


_CONTEXT = 40  # characters of the formula shown on either side of the caret


class FormulaSyntaxError(ValueError):
    """The text is not a formula: `problem` says why, `position` (from 0) where, `expected` what could stand there.

    Its text is a sentence, the part of the formula around the position, and a line with a caret under it.
    """

    def __init__(self, problem: str, text: str, position: int, expected: str = "") -> None:
        self.problem = problem
        self.text = text
        self.position = position
        self.expected = expected
        super().__init__(problem, text, position, expected)

    def __str__(self) -> str:
        wanted = f"; expected {self.expected}" if self.expected else ""
        return f"character {self.position + 1}: {self.problem}{wanted}\n{self.excerpt()}"

    def excerpt(self) -> str:
        """Two lines: the formula around the position, and the caret."""
        first = max(0, self.position - _CONTEXT)
        last = min(len(self.text), self.position + _CONTEXT)
        before = ("…" if first else "") + _printable(self.text[first : self.position])
        after = _printable(self.text[self.position : last]) + ("…" if last < len(self.text) else "")
        return f"  {before}{after}\n  {' ' * _columns(before)}^"


class FormulaEvaluationError(ArithmeticError):
    """The formula has no value here: a division by zero, or a name without a value."""


def _printable(text: str) -> str:
    """One character for one, so that the caret stays in its place: no line breaks, nothing invisible."""
    return "".join(" " if char.isspace() else char if _visible(char) else "�" for char in text)


def _visible(char: str) -> bool:
    return char.isprintable() and not unicodedata.combining(char)


def _columns(text: str) -> int:
    """Columns of a terminal: wide characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


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


Program = tuple[Token, ...]
"""Operands before their operators; no parentheses."""

MAX_LENGTH: Final = 10_000  # characters: a day's table of the longest formula still takes less than a second
MAX_DEPTH: Final = 200  # parentheses and operators that wait for their right side

_WORDS: Final = {"and": "&&", "or": "||", "not": "!", "xor": "^", "mod": "%"}


def parse(text: str, variables: Collection[str]) -> Program:
    """The program of a formula over these variables; sets are checked elsewhere."""
    if len(text) > MAX_LENGTH:
        problem = f"the formula has {len(text):,} characters and may have {MAX_LENGTH:,}: it is cut off"
        raise FormulaSyntaxError(problem, text, MAX_LENGTH)
    tokens = tokenize(text)
    if not tokens:
        raise FormulaSyntaxError("the formula is empty", text, len(text), OPERAND)
    return _Parser(text, variables).program(tokens)


class _Parser:
    """Operator precedence with an explicit stack."""

    def __init__(self, text: str, variables: Collection[str]) -> None:
        self._text = text
        self._variables = variables
        self._done: list[Token] = []
        self._waiting: list[Token] = []  # `(`, `!` and binary operators whose right side is not complete
        self._operand_expected = True

    def program(self, tokens: list[Token]) -> Program:
        for token in tokens:
            self._take(token)
        if self._operand_expected:
            raise FormulaSyntaxError("the formula ends too early", self._text, len(self._text), OPERAND)
        self._finish(0)
        if self._waiting:
            raise self._error("`(` is never closed", self._waiting[-1])
        return tuple(self._done)

    def _take(self, token: Token) -> None:
        match token.kind:
            case TokenKind.NUMBER | TokenKind.BOOLEAN | TokenKind.NAME:
                self._operand(token)
            case TokenKind.NOT | TokenKind.OPEN:
                self._expect_operand(token)
                self._wait(token)
            case TokenKind.CLOSE:
                self._close(token)
            case TokenKind.BINARY:
                self._binary(token)

    def _operand(self, token: Token) -> None:
        self._expect_operand(token)
        if token.kind is TokenKind.NAME and token.text not in self._variables:
            raise self._error(f"unknown name `{token.text}`", token, self._names(token.text))
        self._done.append(token)
        self._operand_expected = False

    def _close(self, token: Token) -> None:
        self._expect_operator(token)
        self._finish(0)
        if not self._waiting:
            raise self._error("`)` closes nothing", token)
        self._waiting.pop()

    def _binary(self, token: Token) -> None:
        self._expect_operator(token)
        self._finish(PRECEDENCE[token.text])
        self._wait(token)
        self._operand_expected = True

    def _finish(self, precedence: int) -> None:
        """Operators that bind at least as strongly as this now have their right side; a `(` stops it."""
        while self._waiting and self._waiting[-1].kind is not TokenKind.OPEN:
            if PRECEDENCE.get(self._waiting[-1].text, NOT_PRECEDENCE) < precedence:
                return
            self._done.append(self._waiting.pop())

    def _wait(self, token: Token) -> None:
        if len(self._waiting) == MAX_DEPTH:
            raise self._error(f"the formula is nested more than {MAX_DEPTH} deep", token)
        self._waiting.append(token)

    def _expect_operand(self, token: Token) -> None:
        if self._operand_expected:
            return
        if token.kind is TokenKind.NAME and self._text[token.position - 1].isdigit():
            raise self._error("there are no hexadecimal numbers and no suffixes", token, self._after_operand())
        raise self._error(f"`{token.text}` cannot stand here", token, self._after_operand(token.text))

    def _expect_operator(self, token: Token) -> None:
        if not self._operand_expected:
            return
        problem = f"`{token.text}` cannot stand here"
        if token.text == "+":
            problem = "there is no `+` before an operand"
        elif token.text[0] in "<>" and self._text[token.position - 1 : token.position] == token.text[0]:
            problem = "there are no shifts"
        raise self._error(problem, token, OPERAND)

    def _after_operand(self, word: str = "") -> str:
        if word in _WORDS:
            return f"the operator `{_WORDS[word]}`"
        inside = any(token.kind is TokenKind.OPEN for token in self._waiting)
        return "an operator or `)`" if inside else "an operator or the end"

    def _names(self, name: str) -> str:
        if name in _WORDS:
            return f"the operator `{_WORDS[name]}`"
        if name in ("true", "false"):
            return f"a name or, where an operand stands, `%{name}`"
        return " or ".join(self._variables) if self._variables else "a number: this formula has no variables"

    def _error(self, problem: str, token: Token, expected: str = "") -> FormulaSyntaxError:
        return FormulaSyntaxError(problem, self._text, token.position, expected)
