"""Scenarios: stories about a bundle as readable text. `parse_scenario` reads one; `simulator` runs it.

One statement per line, `#` begins a comment. Sizes are like 10GB, times like 90s, 20m, 3h.

    title A node is added                     set balancer.enable_cell_balancer true
    run 3h                                    set tables.orders.min_tablet_count 4
    tick 1m                                   rate 200MB
    seed 7                                    schedule minutes % 20 == 0
    finish_by window                          (any, window, park or 06:00, as in [migration]; any: starts are gated)
    nodes n1..n3 disk=1TB zone=east weight=1 memory=64GB used=10GB
    table orders hash 32 size=600GB writes=3000 reads=500 load=zipf:1.0 data=load on=n1,n2 memory=yes
    grow orders 500MB                         (per minute; at the end of a range, everywhere in a hash table)
    at 30m nodes n4 disk=1TB                  at 1h load orders writes=9000 reads=0
    at 1h drain n1                            (also undrain, down, up, close, open, and fail: its migrations break)
    expect balanced within 60m                expect steady for 30m
    expect moved <= 300GB                     expect score >= 90
    expect empty n1                           expect tablets orders >= 40
    expect actions <= 20                      expect score >= 80 from 4h    (to the end)
    expect moves <= 1 per tablet              expect says a hash as its prefix
    expect merges <= 0                        expect back <= 0    (tablets sent back within an hour)
    expect load <= 1.2 within 10m             (of every node's share, from so long after heat was confirmed)
    expect above 1.2 for <= 30m from 2d       (time in which some node does more than 1.2 times its share)

A story begins on a Monday at midnight. Load lies `even`, by `zipf:EXPONENT`, `hot:SHARE:WIDTH:AT` (fractions of the key
space), at the `tail`, `daily:SHARE:WIDTH`, a hot part that wanders through the key space once a day, or `peaks:COUNT:
TIMES`: every 256th of the keys has its peak at one of so many hours of the day, with so many times its load of other
hours. `data=load` gives bytes where the load is.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any

from balancer.policies.finish_by import ANY, parse_finish_by
from balancer.policies.options import GB, KB, MB, BundleOptions, GroupOptions, TableOptions

_UNITS = {"B": 1, "KB": KB, "MB": MB, "GB": GB, "TB": GB * KB}
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MOST_TICKS = 20_000
MOST_NODES = 1_000
MOST_TABLETS = 100_000
_LONGEST = 3660 * 86400.0
_LARGEST = 1e18  # bytes, or any other number: more than any cluster has
_LOADS = {"even": 0, "tail": 0, "zipf": 1, "hot": 3, "daily": 2, "peaks": 2}
NODE_VERBS = ("drain", "undrain", "down", "up", "close", "open", "fail")


class ScenarioError(ValueError):
    """A scenario that cannot be read: the line, what is wrong, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One line: a verb, its plain words, and its `name=value` words."""

    line: int
    verb: str
    words: tuple[str, ...] = ()
    named: Mapping[str, str] = field(default_factory=dict)
    at: float = 0.0  # seconds after the start
    text: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A story, parsed but not yet run."""

    title: str = ""
    seconds: float = 3600.0
    tick: float = 60.0
    seed: int = 1
    rate: float = 200.0 * MB  # bytes per second of one migration
    schedule: str = ""
    finish_by: str = ANY
    options: BundleOptions = field(default_factory=BundleOptions)
    events: tuple[Statement, ...] = ()  # in the order of their times
    expectations: tuple[Statement, ...] = ()


def parse_scenario(text: str) -> Scenario:
    """Reads a scenario, or raises `ScenarioError`."""
    scenario = Scenario()
    events, expectations = [], []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.split("#")[0].strip()
        if not line:
            continue
        statement = _statement(number, line)
        if statement.verb in ("nodes", "table", "grow", "load", *NODE_VERBS):
            events.append(statement)
        elif statement.verb == "expect":
            expectations.append(statement)
        else:
            scenario = _setting(scenario, statement)
    events.sort(key=lambda event: event.at)
    if not scenario.tick or scenario.seconds / scenario.tick > MOST_TICKS:
        raise ScenarioError(f"the lines `run` and `tick`: a story has at most {MOST_TICKS} ticks, each longer than 0s")
    return replace(scenario, events=tuple(events), expectations=tuple(expectations))


def parse_size(text: str, line: int = 0) -> float:
    """Bytes: 10GB, 640."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|TB)?", text)
    if match is None:
        raise ScenarioError(f"line {line}: {text!r:.200} is not a size; write one like 10GB")
    size = float(match[1]) * _UNITS[match[2] or "B"]
    if size > _LARGEST:
        raise ScenarioError(f"line {line}: {text!r:.200} is too large")
    return size


def parse_time(text: str, line: int = 0) -> float:
    """Seconds: 90s, 20m, 3h, 1d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|d)", text)
    if match is None:
        raise ScenarioError(f"line {line}: {text!r:.200} is not a time; write one like 20m")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > _LONGEST:
        raise ScenarioError(f"line {line}: {text!r:.200} is too long: ten years are allowed")
    return seconds


def parse_number(text: str, line: int, most: float = _LARGEST) -> float:
    """A number that is not negative: 3, 0.5."""
    if re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", text) is None or float(text) > most:
        raise ScenarioError(f"line {line}: {text!r:.200} is not a number from 0 to {most:g}")
    return float(text)


def parse_count(text: str, line: int, most: float = _LARGEST) -> int:
    """A whole number."""
    number = parse_number(text, line, most)
    if not number.is_integer():
        raise ScenarioError(f"line {line}: {text!r:.200} is not a whole number")
    return int(number)


def parse_load(text: str, line: int) -> str:
    """How load lies in the key space, as written."""
    kind, *numbers = text.split(":")
    if kind not in _LOADS or len(numbers) != _LOADS[kind]:
        raise ScenarioError(
            f"line {line}: {text!r:.200} is not a load; there are even, tail, zipf:EXPONENT, hot:SHARE:WIDTH:AT,"
            " daily:SHARE:WIDTH and peaks:COUNT:TIMES"
        )
    if kind == "peaks":
        if not parse_count(numbers[0], line, most=24) or parse_number(numbers[1], line, most=1000) < 1:
            raise ScenarioError(f"line {line}: {text!r:.200}: 1 to 24 peaks of 1 to 1000 times the rest")
        return text
    for number in numbers:
        parse_number(number, line, most=1.0 if kind != "zipf" else 10.0)
    return text


def _statement(number: int, line: str) -> Statement:
    words = line.split()
    at = 0.0
    if words[0] == "at":
        if len(words) < 3:
            raise ScenarioError(f"line {number}: after `at` come a time and a statement")
        at, words = parse_time(words[1], number), words[2:]
    plain = tuple(word for word in words[1:] if not re.match(r"[a-z_]+=", word))
    named = dict(word.split("=", 1) for word in words[1:] if re.match(r"[a-z_]+=", word))
    return Statement(number, words[0], plain, named, at, " ".join(words))


def _setting(scenario: Scenario, statement: Statement) -> Scenario:
    rest, line = statement.text.partition(" ")[2], statement.line
    changes: dict[str, Any]
    match statement.verb:
        case "title":
            changes = {"title": rest}
        case "run":
            changes = {"seconds": parse_time(rest, line)}
        case "tick":
            changes = {"tick": parse_time(rest, line)}
        case "seed":
            changes = {"seed": parse_count(rest, line)}
        case "rate":
            changes = {"rate": parse_size(rest, line)}
        case "schedule":
            changes = {"schedule": rest}
        case "finish_by":
            changes = {"finish_by": _finish_by(rest, line)}
        case "set" if len(statement.words) == 2:
            path, value = statement.words
            changes = {"options": _set(scenario.options, path.split("."), value, line)}
        case _:
            raise ScenarioError(f"line {line}: {statement.text!r:.200} is not understood")
    return replace(scenario, **changes)


def _finish_by(text: str, line: int) -> str:
    try:
        return parse_finish_by(text)
    except ValueError as error:
        raise ScenarioError(f"line {line}: finish_by {error}") from None


def set_option(options: BundleOptions, path: str, value: str) -> BundleOptions:
    """The options with one of them changed, as a line `set PATH VALUE` does it."""
    try:
        found: BundleOptions = _set(options, path.split("."), value, 0)
    except ScenarioError as error:
        raise ScenarioError(str(error).removeprefix("line 0: ")) from None
    return found


def _set(holder: Any, path: list[str], value: str, line: int) -> Any:
    """The options with one of them changed; `tables.NAME.x` and `balancer.groups.NAME.x` are created if missing."""
    if isinstance(holder, Mapping):
        made = holder.get(path[0]) if len(path) > 1 or path[0] in holder else None
        if len(path) == 1:
            return {**holder, path[0]: parse_number(value, line)}
        return {**holder, path[0]: _set(made, path[1:], value, line)}
    if not is_dataclass(holder) or isinstance(holder, type):
        raise ScenarioError(f"line {line}: an option has nothing below it, and so no {path[0]!r:.200}")
    known = {one.name: one for one in fields(holder)}
    if path[0] not in known:
        raise ScenarioError(f"line {line}: there is no option {path[0]!r:.200}; there are {', '.join(known)}")
    inner = getattr(holder, path[0])
    if len(path) == 1:
        if value == "none" and known[path[0]].default is not None:
            raise ScenarioError(f"line {line}: the option {path[0]!r} cannot be none")
        return replace(holder, **{path[0]: _value(inner, value, line)})
    if isinstance(inner, Mapping) and path[1] not in inner and len(path) > 2:
        inner = {**inner, path[1]: TableOptions() if path[0] == "tables" else GroupOptions()}
    return replace(holder, **{path[0]: _set(inner, path[1:], value, line)})


def _value(present: Any, text: str, line: int) -> Any:
    """The text as a value of the kind the option has; an option that is unset now may be a size, a time or a number."""
    if text == "none":
        return None
    if isinstance(present, Mapping) or is_dataclass(present):
        raise ScenarioError(f"line {line}: this is a group of options; name one of them")
    if isinstance(present, bool):
        if text not in ("true", "false"):
            raise ScenarioError(f"line {line}: {text!r} is neither true nor false")
        return text == "true"
    if isinstance(present, Enum):
        allowed = [str(one.value) for one in type(present)]
        if text not in allowed:
            raise ScenarioError(f"line {line}: {text!r:.200} is not allowed; allowed: {', '.join(allowed)}")
        return type(present)(text)
    if isinstance(present, str):
        return text
    return tuple(text.split(",")) if isinstance(present, tuple) else _number(present, text, line)


def _number(present: Any, text: str, line: int) -> float | int:
    number = parse_time(text, line) if re.fullmatch(r"[\d.]+(s|m|h|d)", text) else parse_size(text, line)
    return int(number) if number.is_integer() and not isinstance(present, float) else number
