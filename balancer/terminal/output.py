"""How commands print: JSON on request, tables on a terminal, plain tab-separated lines otherwise.

A command builds plain data once and hands it to `show`; it never decides on colours or widths.

Records as lines for a terminal of any width. Pure: width in, lines out; `output` prints them.

What identifies a record stays whole and on its first line: ids, names, states, numbers. Sentences take the room left
next to them, wrapped at words; if that is too little they go below, indented. Only columns without any value are left
out. Numbers of a column have one precision and are aligned.

A tablet's part of its table's keys, as people write it: `hash % 16 = 3`, `[10, 20)`, `whole` or `everywhere`.

A line that moves while a command is silent: nobody should wonder whether it hangs. Only on a terminal.

`main` watches over every command; whatever prints calls `spoken` first, which removes the line again.
"""

import json
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from enum import StrEnum
from textwrap import wrap
from typing import Annotated, Any, Final

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.status import Status
from rich.text import Text

from balancer.clock import Clock, SystemClock
from balancer.directory.locate import bound_values
from balancer.directory.model import Table, Tablet
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.untrusted import short_words, visible, visible_json

_GAP: Final = 2
_INDENT: Final = 4
_LEAST: Final = 28
"""Width that a sentence needs next to others to be readable."""
_SENTENCES: Final = frozenset(
    {
        *("advice", "changes", "error", "finding", "meaning", "reason", "remark", "remedy", "repair", "text"),
        *("waits_for", "why", "why_not", "statement", "blocked_by", "locks"),
    }
)
_RIGHT: Final = frozenset(
    {"age", "bytes", "disk_free", "for", "left", "rate", "retries", "rows", "size", "took", "version", "write_pause"}
)
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(?:\+00:00|Z)")
_STYLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("active", "balanced", "done", "good", "equal", "owned", "yes", "fine"), "green"),
    **dict.fromkeys(
        ("draining", "working", "closed", "waiting", "warning", "cancelled", "fenced", "unknown"), "yellow"
    ),
    **dict.fromkeys(("blocked", "different", "down", "error", "failed", "lost", "quarantined", "unreachable"), "red"),
}
"""Words of states, wherever they are alone in a cell."""


def grid_lines(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], width: int) -> list[Text]:
    """The heading, then each record in as many lines as it needs."""
    shown = [name for name in columns if any(row.get(name) is not None for row in rows)] or list(columns[:1])
    cells = {name: _column([row.get(name) for row in rows]) for name in shown}
    heads = {name: name.replace("_per_s", "/s").replace("_", " ") for name in shown}
    sizes = {name: max(map(cell_len, (heads[name], *cells[name]))) for name in shown}
    right = {name for name in shown if name in _RIGHT or _numeric([row.get(name) for row in rows])}
    main, below = _placed(shown, sizes, width)
    found = [Text(_joined([_padded(heads[name], sizes[name], name in right) for name in main]), style="bold")]
    for at in range(len(rows)):
        found += _record([(cells[name][at], sizes[name], name in right) for name in main])
        found += _below([(heads[name], cells[name][at]) for name in below if cells[name][at] != "-"], width)
    return found


def _placed(shown: Sequence[str], sizes: dict[str, int], width: int) -> tuple[list[str], list[str]]:
    """Which columns go next to each other, and which below; sentences among the former are given their width."""
    if _total(shown, sizes) <= width:
        return list(shown), []
    sentences = [name for name in shown if name in _SENTENCES and sizes[name] > _LEAST]
    fixed = [name for name in shown if name not in sentences]
    for name in fixed:  # a name may be as long as a page; one that people chose fits
        sizes[name] = min(sizes[name], width, max(_LEAST, width // 2))
    room = width - _total(fixed, sizes) - _GAP * len(sentences)
    if sentences and room >= _LEAST * len(sentences):
        for left, name in zip(range(len(sentences), 0, -1), sorted(sentences, key=lambda one: sizes[one]), strict=True):
            sizes[name] = min(sizes[name], room // left)
            room -= sizes[name]
        return list(shown), []
    moved: list[str] = []
    while len(fixed) > 1 and _total(fixed, sizes) > width:
        moved.insert(0, fixed.pop())
    return fixed, [name for name in shown if name in moved or name in sentences]


def _total(names: Sequence[str], sizes: Mapping[str, int]) -> int:
    return sum(sizes[name] for name in names) + _GAP * max(0, len(names) - 1)


def _record(cells: Sequence[tuple[str, int, bool]]) -> list[Text]:
    folded = [_folded(text, size) for text, size, _ in cells]
    found = []
    for number in range(max(map(len, folded))):
        line = Text()
        for lines, (text, size, right) in zip(folded, cells, strict=True):
            shown = _padded(lines[number] if number < len(lines) else "", size, right)
            line.append(shown, style=_STYLES.get(text, ""))
            line.append(" " * _GAP)
        line.rstrip()
        found.append(line)
    return found


def _below(pairs: Sequence[tuple[str, str]], width: int) -> list[Text]:
    """What did not fit alongside: short values in one line, each sentence by itself."""
    short = "  ".join(f"{head} {text}" for head, text in pairs if cell_len(text) <= _LEAST)
    texts = [short, *(f"{head}: {text}" for head, text in pairs if cell_len(text) > _LEAST)]
    room = max(20, width - _INDENT)
    return [Text(" " * _INDENT + line, style="dim") for text in texts if text for line in _folded(text, room)]


def _folded(text: str, size: int) -> list[str]:
    """Wrapped at words; only a word longer than the whole width is cut."""
    if cell_len(text) <= size:
        return [text]
    return wrap(text, max(1, size), break_on_hyphens=False) or [""]


def _padded(text: str, size: int, right: bool) -> str:
    space = " " * max(0, size - cell_len(text))
    return space + text if right else text + space


def _joined(parts: Sequence[str]) -> str:
    return (" " * _GAP).join(parts).rstrip()


def _numeric(values: Sequence[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)


def _column(values: Sequence[Any]) -> list[str]:
    """The cells of a column; numbers with the precision that the greatest needs."""
    floats = [abs(value) for value in values if isinstance(value, float)]
    greatest = max(floats, default=0.0)
    places = 0 if greatest >= 100 else 1 if greatest >= 10 else 2
    return [_cell(value, places) for value in values]


def _cell(value: Any, places: int) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return "<1" if 0 < value < 0.5 and not places else f"{value:,.{places}f}"
    text = " ".join(visible(str(value)).split())
    return _TIME.sub(r"\1 \2", text)


def bounds_text(table: Table, tablet: Tablet) -> str:
    """In a few characters; the keys of several columns are in parentheses."""
    bounds = tablet.bounds
    if table.whole:
        return str(table.layout)
    if isinstance(bounds, Leaf):
        return f"hash % {bounds.modulus} = {bounds.remainder}"
    lower, upper = (_side(table, bound) for bound in (bounds.lower, bounds.upper))
    return f"{'(-infinity' if lower is None else f'[{lower}'}, {'infinity' if upper is None else upper})"


def _side(table: Table, bound: bytes) -> str | None:
    values = bound_values(table.key_types, bound)
    if values is None:
        return None
    return values[0] if len(values) == 1 and len(table.columns) == 1 else f"({', '.join(values)})"


SILENCE: Final = 2.0
"""Seconds after which an operator is told that something is happening."""
_LOOK: Final = 0.25


class Patience:
    """Of one process. `spoken` may be called from any thread."""

    def __init__(self, console: Console, clock: Clock | None = None) -> None:
        self._console = console
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._last = self._clock.monotonic()
        self._line: Status | None = None
        self._over = threading.Event()

    def watch(self) -> None:
        """From now on, until `over`."""
        if self._console.is_terminal:
            self._last = self._clock.monotonic()
            threading.Thread(target=self._run, name="patience", daemon=True).start()

    def spoken(self) -> None:
        """Something is about to be printed."""
        with self._lock:
            self._last = self._clock.monotonic()
            if self._line is not None:
                self._line.stop()
                self._line = None

    def over(self) -> None:
        """The command has ended, or shows what it does by itself."""
        self._over.set()
        self.spoken()

    def _run(self) -> None:
        while not self._over.wait(_LOOK):
            with self._lock:
                silent = self._clock.monotonic() - self._last
                if silent < SILENCE or self._over.is_set():
                    continue
                if self._line is None:
                    self._line = self._console.status("")
                    self._line.start()
                self._line.update(f"at work for {silent:.0f} s; Ctrl-C ends it")


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
