"""What the demonstration shows: one sentence, the nodes as bars, what moves, and what the application noticed.

Built from the daemon's own state, as everybody else sees it. `panel` draws it for a terminal, `line` says it in a log.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from balancer.cli.demo.load import Count
from balancer.directory.model import Migration
from balancer.migration.observer import Progress
from balancer.planner.state import BundleState, Word
from balancer.planner.summary import summary
from balancer.settings.units import format_duration, format_size

BAR = 24
LAST = 5  # finished migrations shown
_STYLES = {
    Word.BALANCED: "bold green",
    Word.WORKING: "bold cyan",
    Word.WAITING: "bold yellow",
    Word.BLOCKED: "bold red",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that one look shows."""

    state: BundleState
    running: Sequence[tuple[Migration, Progress | None]]
    finished: Sequence[Migration]
    count: Count
    url: str
    seconds: float


def panel(picture: Picture) -> RenderableType:
    """For a terminal."""
    state = picture.state
    plan = state.plan
    score = "" if plan is None else f"  balance {plan.score_before:.0f}/100"
    head = Text.assemble((str(state.word), _STYLES[state.word]), f": {state.sentence}", (score, "bold"))
    return Group(head, "", _nodes(state), "", _migrations(picture), "", _application(picture))


def line(picture: Picture) -> str:
    """For a log."""
    state, count = picture.state, picture.count
    score = "-" if state.plan is None else f"{state.plan.score_before:.0f}"
    done = sum(1 for migration in picture.finished if migration.state == "done")
    return (
        f"{picture.seconds:5.0f} s  balance {score:>3}  migrations {done:2d} done, {len(picture.running)} running"
        f"  operations {count.operations}, failed {count.failed}  {state.word}: {state.sentence}"
    )


def _nodes(state: BundleState) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("node", "state", "tablets", "bytes", "", "writes/s", "", "reads/s", ""):
        table.add_column(name, justify="left")
    rows = summary(state)["nodes"]
    for row in rows:
        cells = [row["node"], row["state"], str(row.get("tablets", "-"))]
        for name in ("bytes", "write_rate", "read_rate"):
            total = sum(other.get(name, 0.0) for other in rows) or 1.0
            value = row.get(name, 0.0)
            cells.append(format_size(value) if name == "bytes" else f"{value:.0f}")
            cells.append("█" * round(BAR * value / total))
        table.add_row(*cells)
    return table


def _migrations(picture: Picture) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("migration", "what", "state", "bytes", "writers waited", "why"):
        table.add_column(name, overflow="ellipsis", no_wrap=name != "why")
    for migration, progress in picture.running:
        table.add_row(migration.id, _what(migration), migration.state, _copied(progress), "", migration.reason)
    newest = sorted(picture.finished, key=lambda migration: -migration.updated)[:LAST]
    for migration in newest:
        pause = migration.detail.get("pause")
        waited = "" if pause is None else format_duration(pause)
        size = format_size(migration.detail.get("size", 0))
        table.add_row(
            migration.id, _what(migration), migration.state, size, waited, migration.error or migration.reason
        )
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
        f", slowest {format_duration(count.slowest)}   page: {picture.url}   {picture.seconds:.0f} s",
    )
