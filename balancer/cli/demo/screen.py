"""What the demonstration shows: one sentence, the nodes as bars, what moves, and what the application noticed.

Built from the daemon's own state, as everybody else sees it. `panel` draws it for a terminal of any usual size, `line`
says it in a log.

The result of a demonstration: before, after, what was moved, and what the application noticed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from textwrap import wrap
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from balancer.cli.demo.application import Count
from balancer.directory.model import Migration
from balancer.migration.progress import Progress
from balancer.planner.bundle_state import BundleState, summary
from balancer.settings import Mode
from balancer.settings.units import format_duration, format_size
from balancer.terminal.output import Output, say, show_json

WIDE = 100  # columns from which there is room for the reasons
BARS = {False: 9, True: 14}  # by whether the terminal is wide
SENTENCE = 2  # lines for what happens now; always the same number, so that nothing below jumps
FEWEST = 3  # finished migrations that are shown however low the terminal is
MOST = 10


class Step(Enum):
    """How far the story is: its number, its name and what it means."""

    WATCHING = 1, "watching", "cyan"
    BALANCING = 2, "balancing", "yellow"
    STEADY = 3, "balanced", "green"

    @property
    def number(self) -> int:
        return self.value[0]

    @property
    def word(self) -> str:
        return self.value[1]

    @property
    def style(self) -> str:
        return f"bold {self.value[2]}"


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that one look shows."""

    step: Step
    state: BundleState
    running: Sequence[tuple[Migration, Progress | None]]
    finished: Sequence[Migration]
    count: Count
    url: str
    seconds: float
    first_score: float | None


def panel(picture: Picture, width: int, height: int) -> RenderableType:
    """For a terminal of this many columns and lines."""
    wide = width >= WIDE
    nodes = _nodes(picture.state, BARS[wide])
    above: list[RenderableType] = [_head(picture), _sentence(picture, width), Text(), nodes, Text()]
    below = [Text(), _application(picture)]
    taken = len(above) - 1 + SENTENCE + nodes.row_count + len(below) + 1 + len(picture.running) + 1
    room = min(MOST, max(FEWEST, height - taken))
    return Group(*above, _migrations(picture, room, wide=wide), *below)


def line(picture: Picture) -> str:
    """For a log."""
    count, running = picture.count, len(picture.running)
    done = sum(1 for migration in picture.finished if migration.state == "done")
    return (
        f"{picture.seconds:5.0f} s  balance {_score(picture):>3}  migrations {done:2d} done, {running} running"
        f"  operations {count.operations}, failed {count.failed}  {picture.step.word}: {_now(picture)}"
    )


def _head(picture: Picture) -> Text:
    first = picture.first_score
    before = "" if first is None or picture.step is Step.WATCHING else f"{first:.0f} → "
    step = picture.step
    return Text.assemble(
        (f"{step.number} of {len(Step)}: {step.word}", step.style),
        ("   balance ", "dim"),
        (f"{before}{_score(picture)} of 100", "bold"),
        ("   page ", "dim"),
        (picture.url, f"link {picture.url}"),
        f"   {picture.seconds:.0f} s",
        overflow="ellipsis",
        no_wrap=True,
    )


def _score(picture: Picture) -> str:
    return "-" if picture.state.plan is None else f"{picture.state.plan.score_before:.0f}"


def _now(picture: Picture) -> str:
    """What happens at this moment, in plain words."""
    if picture.state.mode is Mode.OBSERVE:
        first = next(iter(picture.state.plan.actions), None) if picture.state.plan is not None else None
        wish = f"it would begin with a {first.kind} of tablet {first.tablets[0]}" if first else "it measures the load"
        return f"mode observe: the daemon changes nothing yet; {wish}"
    return picture.state.sentence


def _sentence(picture: Picture, width: int) -> Text:
    lines = wrap(_now(picture), width, max_lines=SENTENCE, placeholder=" …")
    return Text("\n".join([*lines, *[""] * (SENTENCE - len(lines))]))


def _nodes(state: BundleState, bar: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("node", "tablets", "bytes", "", "writes/s", "", "reads/s", ""):
        table.add_column(name, justify="left" if name in ("node", "") else "right", no_wrap=True)
    rows = summary(state)["nodes"]
    for row in rows:
        gone = row["state"] in ("down", "lost") or not row["reachable"]
        cells = [f"{row['node']} down" if gone else row["node"], str(row.get("tablets", "-"))]
        for name in ("bytes", "write_rate", "read_rate"):
            total = sum(other.get(name, 0.0) for other in rows) or 1.0
            value = row.get(name, 0.0)
            filled = round(bar * value / total)
            cells.append(format_size(value) if name == "bytes" else f"{value:.0f}")
            cells.append("█" * filled + "·" * (bar - filled))
        table.add_row(*cells, style="red" if gone else None)
    return table


def _migrations(picture: Picture, room: int, *, wide: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=wide)
    names = ("what happens", "state", "bytes", "writers waited", *(("why",) if wide else ()))
    for name in names:
        # The reason gets what the others leave, and is cut before any of them.
        ratio = 1 if name == "why" else None
        side: Literal["right", "left"] = "right" if name == "bytes" else "left"
        table.add_column(name, overflow="ellipsis", no_wrap=True, justify=side, ratio=ratio)
    for migration, progress in picture.running:
        row = (_what(migration), migration.state, _copied(progress), "", migration.reason)
        table.add_row(*row[: len(names)], style="bold")
    newest = sorted(picture.finished, key=lambda migration: -migration.updated)[:room]
    for migration in newest:
        pause = migration.detail.get("pause")
        waited = "" if pause is None else format_duration(pause)
        size = format_size(migration.detail.get("size", 0))
        row = (_what(migration), migration.state, size, waited, migration.error or migration.reason)
        table.add_row(*row[: len(names)])
    return table


def _what(migration: Migration) -> str:
    tablets = "+".join(map(str, migration.sources))
    if migration.source_node == migration.target_node:
        parts = "+".join(str(target.id) for target in migration.targets)
        return f"{migration.operation} {tablets} → {parts} on {migration.source_node}"
    return f"{migration.operation} {tablets}: {migration.source_node} → {migration.target_node}"


def _copied(progress: Progress | None) -> str:
    if progress is None or not progress.bytes_total:
        return ""
    return f"{format_size(progress.bytes_done)} of {format_size(progress.bytes_total)}"


def _application(picture: Picture) -> Text:
    count = picture.count
    failed = ("0 failed", "green") if not count.failed else (f"{count.failed} failed: {count.last_error}", "red")
    return Text.assemble(
        f"application: {count.operations} operations, ",
        failed,
        f", slowest {format_duration(count.slowest)}   (Ctrl-C ends it)",
        overflow="ellipsis",
        no_wrap=True,
    )


def summarise(picture: Picture, output: Output) -> None:
    """Tells it, as sentences or as one document."""
    facts = facts_of(picture)
    if output is Output.JSON:
        show_json(facts)
        return
    before, after = (_score_text(facts[name]) for name in ("score_before", "score_after"))
    say(f"\n{'balanced' if facts['balanced'] else 'ended'} after {picture.seconds:.0f} s")
    say(f"  balance          {before} before, {after} after, of 100")
    say(f"  migrations       moves {facts['moves']}, splits {facts['splits']}, merges {facts['merges']},"
        f" failed {facts['failed_migrations']}")  # fmt: skip
    say(f"  bytes moved      {format_size(facts['bytes'])}")
    if facts["longest_write_pause"] is not None:
        median, longest = format_duration(facts["median_write_pause"]), format_duration(facts["longest_write_pause"])
        say(f"  writers waited   {median} median, {longest} longest")
    say(f"  operations       {picture.count.operations}, failed {picture.count.failed},"
        f" slowest {format_duration(picture.count.slowest)}")  # fmt: skip
    if picture.count.failed:
        say(f"  last error       {picture.count.last_error}")


def facts_of(picture: Picture) -> dict[str, Any]:
    """The same as values; pauses in seconds."""
    done = [migration for migration in picture.finished if migration.state == "done"]
    pauses = sorted(pause for migration in done if (pause := migration.detail.get("pause")) is not None)
    plan = picture.state.plan
    return {
        "balanced": picture.step is Step.STEADY,
        "seconds": round(picture.seconds, 1),
        "score_before": picture.first_score,
        "score_after": None if plan is None else plan.score_before,
        "moves": sum(1 for migration in done if migration.operation == "move"),
        "splits": sum(1 for migration in done if migration.operation == "split"),
        "merges": sum(1 for migration in done if migration.operation == "merge"),
        "failed_migrations": sum(1 for migration in picture.finished if migration.state == "failed"),
        "bytes": sum(migration.detail.get("size", 0) for migration in done),
        "median_write_pause": pauses[len(pauses) // 2] if pauses else None,
        "longest_write_pause": pauses[-1] if pauses else None,
        "operations": picture.count.operations,
        "failed_operations": picture.count.failed,
        "slowest_operation": picture.count.slowest,
    }


def _score_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
