"""A story as text: the load of each node over time, what happened, and whether the expectations held.

`balancer simulate` prints it and the scenario tests keep it as golden files, so it changes only when decisions do.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from balancer.policies.reasons import bytes_text
from balancer.policies.simulator.scenario import (
    ScenarioError,
    Statement,
    parse_count,
    parse_number,
    parse_size,
    parse_time,
)
from balancer.policies.simulator.simulator import SimulatedSample, Story
from balancer.policies.view import ActionKind

WIDTH = 60
HIGH = 1.2
"""A node that does this many times its share does much more than that."""
_HOUR = 3600.0
_BARS = "▁▂▃▄▅▆▇█"
_FULL = 2.0  # a node with twice its share has a full bar


@dataclass(frozen=True, slots=True)
class StoryVerdict:
    """One expectation and what became of it."""

    text: str
    held: bool
    found: str


def draw(story: Story) -> str:
    """The whole report."""
    parts = [f"{story.scenario.title or 'a scenario'}", "", *_chart(story), "", *_log(story), "", *_summary(story)]
    return "\n".join(parts) + "\n"


def check(story: Story) -> list[StoryVerdict]:
    """Every expectation of the scenario, in its order."""
    return [_verdict(story, expectation) for expectation in story.scenario.expectations]


def _chart(story: Story) -> list[str]:
    """One line per node; a column is the highest load of its stretch of time, · if the node is not there."""
    columns = _columns(story.samples)
    names = list(story.world.nodes)
    wide = max((len(name) for name in names), default=0)
    lines = [f"load in the tightest dimension, {_BARS[0]} none to {_BARS[-1]} twice the share"]
    lines += [f"{name.rjust(wide)} {''.join(_bar(name, column) for column in columns)}" for name in names]
    end = _clock(story.scenario.seconds)
    lines.append(" " * (wide + 1) + "0:00" + end.rjust(len(columns) - 4))
    return lines


def _columns(samples: list[SimulatedSample]) -> list[list[SimulatedSample]]:
    width = min(WIDTH, len(samples))
    edges = [round(at * len(samples) / width) for at in range(width + 1)]
    return [samples[first:last] for first, last in pairwise(edges)]


def _bar(name: str, column: list[SimulatedSample]) -> str:
    loads = [sample.loads[name] for sample in column if name in sample.loads]
    if not loads:
        return "·"
    level = max(loads) / _FULL * (len(_BARS) - 1)
    return _BARS[min(max(round(level), 0), len(_BARS) - 1)]


def _log(story: Story) -> list[str]:
    return [f"{_clock(at)}  {line}" for at, line in story.lines]


def _summary(story: Story) -> list[str]:
    kinds = {kind: sum(1 for _, action in story.started if action.kind is kind) for kind in ActionKind}
    done = ", ".join(f"{count} {kind}s" for kind, count in kinds.items() if count) or "nothing"
    scores = [sample.score for sample in story.samples]
    lines = [
        f"done: {done}; {bytes_text(story.moved_bytes)} moved",
        f"score: {scores[0]:.0f} at first, {min(scores):.0f} at worst, {scores[-1]:.0f} at the end",
        f"load: {minutes_above(story):.0f} minutes above {HIGH} times a node's share",
        f"back: {moved_back(story)} tablets came back within an hour",
    ]
    lines += [f"{'ok  ' if verdict.held else 'FAIL'} {verdict.text}: {verdict.found}" for verdict in check(story)]
    return lines


def minutes_above(story: Story) -> float:
    """Minutes in which some node did much more than its share."""
    return sum(sample.peak > HIGH for sample in story.samples) * story.scenario.tick / 60


def time_above(story: Story, times: float, start: float = 0.0) -> float:
    """Seconds, from `start` on, in which some node did more than this many times its share of reads and writes."""
    return sum(sample.peak > times for sample in story.samples if sample.at >= start) * story.scenario.tick


def moved_back(story: Story) -> int:
    """Tablets that were sent back within an hour to a node they had left."""
    left: dict[tuple[int, str], float] = {}
    back = set()
    for at, action in story.started:
        if action.kind is ActionKind.MOVE:
            if at - left.get((action.tablets[0], action.target), float("-inf")) <= _HOUR:
                back.add(action.tablets[0])
            left[action.tablets[0], action.source] = at
    return len(back)


def _verdict(story: Story, expectation: Statement) -> StoryVerdict:
    text, line = expectation.text.partition(" ")[2], expectation.line
    match expectation.words:
        case ("balanced", "within", time):
            held, found = _balanced(story, parse_time(time, line))
        case ("steady", "for", time):
            held, found = _steady(story, parse_time(time, line))
        case ("moved", "<=", size):
            held, found = story.moved_bytes <= parse_size(size, line), f"{bytes_text(story.moved_bytes)} moved"
        case ("actions", "<=", number):
            held, found = len(story.started) <= parse_count(number, line), f"{len(story.started)} actions"
        case ("score", ">=", number):
            last = story.samples[-1].score
            held, found = last >= parse_number(number, line), f"{last:.1f} at the end"
        case ("score", ">=", number, "from", time):
            since = parse_time(time, line)
            scores = [sample.score for sample in story.samples if sample.at >= since]
            if not scores:
                raise ScenarioError(f"line {line}: the story ends before {time}")
            worst = min(scores)
            held, found = worst >= parse_number(number, line), f"{worst:.1f} at worst from then on"
        case ("above", times, "for", "<=", time, "from", start):
            spent = time_above(story, parse_number(times, line), parse_time(start, line))
            held, found = spent <= parse_time(time, line), f"{spent / 60:.0f} minutes from then on"
        case ("empty", node):
            count = sum(tablet.node == node for mine in story.world.tablets.values() for tablet in mine)
            held, found = count == 0, f"{count} tablets on {node}"
        case ("tablets", table, ">=", number):
            count = len(story.world.tablets.get(table, []))
            held, found = count >= parse_count(number, line), f"{count} tablets of {table}"
        case ("tablets", table, "<=", number):
            count = len(story.world.tablets.get(table, []))
            held, found = count <= parse_count(number, line), f"{count} tablets of {table}"
        case _:
            held, found = _of_heat(story, expectation)
    return StoryVerdict(text, held, found)


def _of_heat(story: Story, expectation: Statement) -> tuple[bool, str]:
    """Expectations of stories about hot tablets."""
    line = expectation.line
    match expectation.words:
        case ("load", "<=", number, "within", time):
            return _cooled(story, parse_number(number, line), parse_time(time, line))
        case ("moves", "<=", number, "per", "tablet"):
            most = max(_moves(story).values(), default=0)
            return most <= parse_count(number, line), f"{most} moves of one tablet"
        case ("merges", "<=", number):
            count = sum(action.kind is ActionKind.MERGE for _, action in story.started)
            return count <= parse_count(number, line), f"{count} merges"
        case ("back", "<=", number):
            return moved_back(story) <= parse_count(number, line), f"{moved_back(story)} tablets within an hour"
        case ("says", *words):
            held = any(" ".join(words) in said for _, said in story.lines)
            return held, "it does" if held else "it does not"
    raise ScenarioError(f"line {line}: {expectation.text!r:.200} cannot be expected")


def _balanced(story: Story, within: float) -> tuple[bool, str]:
    """From some moment, at most this long after the last event, to the end no node is over the start threshold."""
    limit = 100.0 / (1.0 + story.scenario.options.placement.start_threshold)
    bad = [sample.at for sample in story.samples if sample.score < limit - 1e-9]
    since = max(bad, default=-story.scenario.tick) + story.scenario.tick
    if since > story.scenario.seconds:
        return False, f"not balanced at the end, the score is {story.samples[-1].score:.1f}"
    taken = max(0.0, since - story.last_event)
    return taken <= within, f"{taken / 60:.0f} minutes after the last event"


def _cooled(story: Story, limit: float, within: float) -> tuple[bool, str]:
    """From some moment, at most this long after heat was confirmed, to the end no node exceeds its share × limit.

    Heat counts as confirmed at the first split for heat after the last event.
    """
    splits = [at for at, action in story.started if action.code.startswith("heat") and at >= story.last_event]
    since = min(splits, default=story.last_event)
    bad = [sample.at for sample in story.samples if sample.peak > limit + 1e-9 and sample.at >= since]
    if bad and bad[-1] == story.samples[-1].at:
        return False, f"{story.samples[-1].peak:.2f} times its share at the end"
    taken = max(bad, default=since - story.scenario.tick) + story.scenario.tick - since
    return taken <= within, f"{taken / 60:.1f} minutes after it was confirmed"


def _moves(story: Story) -> Counter[int]:
    return Counter(action.tablets[0] for _, action in story.started if action.kind is ActionKind.MOVE)


def _steady(story: Story, time: float) -> tuple[bool, str]:
    """Nothing is started during the last stretch of the run, and no tablet ever came back to a node it had left."""
    last = max((at for at, _ in story.started), default=-1.0)
    quiet = story.scenario.seconds - max(last, 0.0)
    paths: dict[int, list[str]] = {}
    for action in story.finished:
        if action.kind is ActionKind.MOVE:
            paths.setdefault(action.tablets[0], [action.source]).append(action.target)
    back = [tablet for tablet, path in paths.items() if len(path) != len(set(path))]
    if back:
        return False, f"tablets {', '.join(map(str, sorted(back)))} came back"
    return quiet >= time, f"nothing started for the last {quiet / 60:.0f} minutes"


def _clock(seconds: float) -> str:
    return f"{int(seconds // 3600)}:{int(seconds // 60) % 60:02d}"
