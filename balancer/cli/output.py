"""How commands print: JSON on request, tables on a terminal, plain tab-separated lines otherwise.

A command builds plain data once and hands it to `show`; it never decides on colours or widths.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from textwrap import wrap
from typing import Annotated, Any

import typer
from rich.console import Console

from balancer.cli.grid import grid_lines
from balancer.cli.patience import Patience
from balancer.outside import short_words, visible, visible_json

Row = Mapping[str, Any]


class Output(StrEnum):
    """What `--output` takes."""

    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="text for people, json for programs")]


class _Pipe(Console):
    def print(self, *objects: Any, **how: Any) -> None:
        """Animated output is printed this way too."""
        patience.spoken()
        super().print(*objects, **how)

    def on_broken_pipe(self) -> None:
        """Passed to the one place that knows what to do; the parent class would end the process with code 1."""
        raise BrokenPipeError


_errors = Console(stderr=True, highlight=False)
patience = Patience(_errors)
console = _Pipe(highlight=False)


def show_json(document: Any) -> None:
    """One JSON document on standard output."""
    patience.spoken()
    sys.stdout.write(visible_json(json.dumps(document, indent=2, default=str, ensure_ascii=False)) + "\n")


def show_rows(rows: Sequence[Row], columns: Sequence[str], output: Output, empty: str = "nothing to show") -> None:
    """A list of records: a JSON array, a table on a terminal, or one tab-separated line each."""
    if output is Output.JSON:
        show_json([{name: row.get(name) for name in columns} for row in rows])
    elif not rows:
        say(empty)
    elif console.is_terminal:
        for line in grid_lines(rows, columns, console.width):
            console.print(line, soft_wrap=True)
    else:
        say("\t".join(columns))
        for row in rows:
            say("\t".join(_text(row.get(name)) for name in columns))


def say(text: str) -> None:
    """A line of plain text: no markup, no folding, and nothing from outside that the terminal would obey."""
    patience.spoken()
    sys.stdout.write(visible(text) + "\n")


def say_sentence(text: str, indent: int = 0) -> None:
    """A sentence: on a terminal wrapped at words, otherwise one line, as `say` prints it."""
    if not console.is_terminal:
        say(" " * indent + text)
        return
    margin = " " * indent
    for line in wrap(visible(text), max(20, console.width), initial_indent=margin, subsequent_indent=margin + "  "):
        say(line)


def tell(text: str) -> None:
    """A line on standard error that is not part of the result: what happens meanwhile."""
    patience.spoken()
    _errors.print(visible(text), markup=False, soft_wrap=True)


def fail(text: str) -> None:
    """A sentence on standard error, in which what was typed is repeated in part only."""
    patience.spoken()
    _errors.print(
        visible(short_words(text, sys.argv[1:])),
        markup=False,
        soft_wrap=True,
        style="red" if _errors.is_terminal else None,
    )


def show_error(sentence: str, code: int) -> None:
    """The same for programs: one JSON document on standard error."""
    patience.spoken()
    document = {"error": {"message": short_words(sentence, sys.argv[1:]), "exit_code": code}}
    sys.stderr.write(visible_json(json.dumps(document, ensure_ascii=False)) + "\n")


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return visible(str(value))
