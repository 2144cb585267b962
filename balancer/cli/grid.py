"""Records as lines for a terminal of any width. Pure: width in, lines out; `output` prints them.

What identifies a record stays whole and on its first line: ids, names, states, numbers. Sentences take the room left
next to them, wrapped at words; if that is too little they go below, indented. Only columns without any value are left
out. Numbers of a column have one precision and are aligned.
"""

import re
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any, Final

from rich.cells import cell_len
from rich.text import Text

from balancer.outside import visible

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
