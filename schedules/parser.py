"""Tokens to a program: the formula in postfix order. `Formula` calls it; nothing here or after it recurses.

A program is evaluated, checked and printed by walking it once with a stack, so the depth of a formula never reaches
Python's own limit. The two limits below bound the work that a formula can ask for instead.
"""

from collections.abc import Collection
from typing import Final

from balancer.schedules.formula_errors import FormulaSyntaxError
from balancer.schedules.lexer import OPERAND, Token, TokenKind, tokenize
from balancer.schedules.operators import NOT_PRECEDENCE, PRECEDENCE

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
