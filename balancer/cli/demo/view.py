"""What the demonstration shows: one sentence, the nodes as bars, what moves, and what the application noticed.

Built from the daemon's own state, as everybody else sees it. `panel` draws it for a terminal of any usual size, `line`
says it in a log.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from balancer.cli.demo.load import Count
from balancer.directory.model import Migration
from balancer.migration.observer import Progress
from balancer.planner.state import BundleState
from balancer.planner.summary import summary
from balancer.settings.units import format_duration, format_size

BAR = 12
WIDE = 100  # columns from which on there is room for the reasons
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
    """For a terminal of so many columns and lines."""
    nodes = _nodes(picture.state)
    now = Text(_now(picture), overflow="ellipsis", no_wrap=True)
    above: list[RenderableType] = [_head(picture), now, Text(), nodes, Text()]
    below = [Text(), _application(picture)]
    taken = len(above) + nodes.row_count + 1 + len(below) + len(picture.running) + 2
    room = min(MOST, max(FEWEST, height - taken))
    return Group(*above, _migrations(picture, room, wide=width >= WIDE), *below)


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
    if picture.step is Step.WATCHING:
        hot = next(iter(picture.state.plan.actions), None) if picture.state.plan is not None else None
        wish = f"it would begin with a {hot.kind} of tablet {hot.tablets[0]}" if hot else "it measures the load"
        return f"mode observe: the daemon changes nothing yet; {wish}"
    return picture.state.sentence


def _nodes(state: BundleState) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("node", "tablets", "bytes", "", "writes/s", "", "reads/s", ""):
        table.add_column(name, justify="left" if name in ("node", "") else "right", no_wrap=True)
    rows = summary(state)["nodes"]
    for row in rows:
        cells = [row["node"] if row["state"] != "down" else f"{row['node']} down", str(row.get("tablets", "-"))]
        for name in ("bytes", "write_rate", "read_rate"):
            total = sum(other.get(name, 0.0) for other in rows) or 1.0
            value = row.get(name, 0.0)
            filled = round(BAR * value / total)
            cells.append(format_size(value) if name == "bytes" else f"{value:.0f}")
            cells.append("█" * filled + "·" * (BAR - filled))
        table.add_row(*cells)
    return table


def _migrations(picture: Picture, room: int, *, wide: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    names = ("what happens", "state", "bytes", "writers waited", *(("why",) if wide else ()))
    for name in names:
        table.add_column(name, overflow="ellipsis", no_wrap=True, justify="right" if name == "bytes" else "left")
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
