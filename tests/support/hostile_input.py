"""Hostile input as hypothesis makes it: values, texts with values replaced, JSON, command lines, bytes."""

import json
import re
from typing import Any

from hypothesis import strategies as st

VALUES = (
    "",
    "0",
    "-1",
    "1e999",
    "NaN",
    "inf",
    "9" * 400,
    "1" + "0" * 400 + "GB",
    "99999999999999d",
    "\u00b2",
    "\u0663",
    "\u2603",
    "\x00",
    "\x1b[31mred",
    "\x9b31m",
    "\u202egnp",
    "a\nb",
    "'",
    '"',
    "\\",
    "=",
    "a=b",
    "..",
    "n1..n9",
    "n1..n999999999",
    "zipf:",
    "zipf:x",
    "hot:0:0:0",
    "hot:1",
    "daily:-1:9",
    "even",
    "tail",
    "none",
    "true",
    "null",
    "[" * 500,
    "{" * 500,
    "x" * 5000,
    "postgresql://u:p@h/d\nx = host=evil",
    "host='a\nb'",
    "%00",
    "{}",
)

values = st.one_of(st.sampled_from(VALUES), st.text(max_size=12), st.integers().map(str), st.floats().map(str))


@st.composite
def edited(draw: st.DrawFn, texts: tuple[str, ...], pool: st.SearchStrategy[str] = values) -> str:
    """One of the texts with words replaced, lines dropped, doubled or moved, or cut short."""
    lines = draw(st.sampled_from(texts)).splitlines()
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1)) if lines else 0
        match draw(st.sampled_from(("word", "word", "word", "drop", "double", "new", "cut"))):
            case "word" if lines:
                words = re.split(r"(\s+|=|:)", lines[at])
                place = draw(st.integers(0, len(words) - 1))
                words[place] = draw(pool)
                lines[at] = "".join(words)
            case "drop" if lines:
                del lines[at]
            case "double" if lines:
                lines.insert(draw(st.integers(0, len(lines))), lines[at])
            case "new":
                lines.insert(at, draw(pool))
            case "cut" if lines:
                lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
    return "\n".join(lines)


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), values, st.sampled_from(("\ud800", "a\udfffb", -(2**70)))
)
documents: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(values, inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """The document with some of its parts replaced, removed or added, at any depth."""
    whole = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        whole = _change(draw, whole)
    return whole


def _change(draw: st.DrawFn, part: Any) -> Any:
    deeper = isinstance(part, (dict, list)) and part and draw(st.integers(0, 4))
    if not deeper:
        return draw(documents)
    keys = list(part) if isinstance(part, dict) else list(range(len(part)))
    key = draw(st.sampled_from(keys))
    match draw(st.sampled_from(("in", "in", "in", "drop", "add"))):
        case "in":
            part[key] = _change(draw, part[key])
        case "drop":
            del part[key]
        case "add" if isinstance(part, dict):
            part[draw(values)] = draw(documents)
        case "add":
            part.append(part[key])
    return part


@st.composite
def damaged(draw: st.DrawFn, original: bytes) -> bytes:
    """The bytes with some flipped, cut, doubled or replaced."""
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(("flip", "flip", "cut", "insert", "other"))):
            case "flip" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(max_size=8))
            case "other":
                return draw(st.binary(max_size=40))
    return bytes(data)


def as_json(document: Any) -> bytes:
    """As a careless client writes it: NaN and lone surrogates included."""
    return json.dumps(document).encode()
