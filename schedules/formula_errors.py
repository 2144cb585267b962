"""The two errors of the formula language. The parser and the evaluator raise them; people read them."""

import unicodedata

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
