"""`balancer move | split | merge`: an operator's requests for migrations, given to the leader through the directory.

A dry run calls the same code as the leader (`planner/commands`), without telling the leader.

`balancer drain`: empties a node, and waits until it may be taken away if that is wanted.
"""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from balancer.cli.moves import FINISHED, REFRESH, finished_row, migration_document, running_row
from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.locate import encoded_prefix
from balancer.directory.model import NodeState
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Refused, Unavailable, UserError
from balancer.migration.progress import TOPIC
from balancer.planner.commands import would_do
from balancer.planner.verbs import tablets_on
from balancer.settings import WantedMode
from balancer.settings.units import format_duration
from balancer.terminal.operate import ReasonOption, give, seconds
from balancer.terminal.options import ConfigOption, DirectoryOption, directory_of, operator
from balancer.terminal.output import Output, OutputOption, Row, console, say, show_json, show_rows, tell

WaitOption = Annotated[bool, typer.Option("--wait", "-w", help="wait until it ends, showing progress")]
TimeoutOption = Annotated[
    str | None,
    typer.Option("--timeout", help='longest time that --wait waits, as in "10m"; the work continues after it'),
]
ModeOption = Annotated[
    WantedMode | None,
    typer.Option("--mode", help="how writers are treated while rows are copied; default: the bundle's"),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="only say what would start, or why nothing would")]


class Failed(BalancerError):
    """What was waited for did not succeed."""


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """How to give a request."""

    wait: bool
    timeout: float | None
    dry_run: bool
    directory: str | None
    config: Path | None
    output: Output


def move(
    tablet: Annotated[str, typer.Argument(help="the tablet's id")],
    node: Annotated[str, typer.Argument(help="the node it should go to")],
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    dry_run: DryRunOption = False,
    mode: ModeOption = None,
    reason: ReasonOption = "",
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Moves a tablet to another node."""
    arguments = {"tablet": tablet, "node": node, "reason": reason, **_mode(mode)}
    _give("move", arguments, CommandOptions(wait, seconds(timeout), dry_run, directory, config, output))


def split(
    tablet: Annotated[str, typer.Argument(help="the tablet's id")],
    at: Annotated[list[str] | None, typer.Option("--at", help="where to cut a range; may be repeated")] = None,
    parts: Annotated[int, typer.Option(min=2, help="how many parts, if no keys are given")] = 2,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    dry_run: DryRunOption = False,
    mode: ModeOption = None,
    reason: ReasonOption = "",
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Splits a tablet: a vbucket into 2, 4, 8 … parts, a range at keys (`5,x` for two columns) or in equal parts."""
    arguments: dict[str, Any] = {"tablet": tablet, "parts": parts, "reason": reason, **_mode(mode)}
    if at:
        with directory_of(directory, config) as opened:
            snapshot = opened.snapshot()
        arguments["keys"] = [encoded_key(snapshot, tablet, text).hex() for text in at]
    _give("split", arguments, CommandOptions(wait, seconds(timeout), dry_run, directory, config, output))


def merge(
    tablets: Annotated[list[str], typer.Argument(help="the tablets' ids, in any order")],
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    dry_run: DryRunOption = False,
    mode: ModeOption = None,
    reason: ReasonOption = "",
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Merges neighbouring ranges, or the two halves of a vbucket. They must be on one node."""
    arguments = {"tablets": tablets, "reason": reason, **_mode(mode)}
    _give("merge", arguments, CommandOptions(wait, seconds(timeout), dry_run, directory, config, output))


def _mode(mode: WantedMode | None) -> dict[str, str]:
    return {} if mode is None else {"mode": str(mode)}


def encoded_key(snapshot: Snapshot, tablet: str, text: str) -> bytes:
    """A key as a person writes it, with commas between its columns, as the directory keeps it."""
    if not tablet.isdigit():
        raise UserError(f"{tablet!r} is not a tablet's id: ids are numbers, see `balancer tablets`")
    columns = len(snapshot.tables[snapshot.tablet(int(tablet)).table].key_types)
    words = [text] if columns == 1 else next(csv.reader([text], skipinitialspace=True))
    return encoded_prefix(snapshot, int(tablet), words)


def check_dry(directory: Directory, verb: str, arguments: dict[str, Any]) -> str:
    """What would be done, in words. Raises `Refused` if the leader would refuse."""
    return would_do(directory.snapshot(), verb, arguments, author=operator(), now=SystemClock().now())


def _give(verb: str, arguments: dict[str, Any], manner: CommandOptions) -> None:
    with directory_of(manner.directory, manner.config) as directory:
        if manner.dry_run:
            _answer({"dry_run": True, "result": check_dry(directory, verb, arguments)}, manner.output)
            return
        answered = give(directory, verb, arguments)
        if not manner.wait:
            document = {"command": answered.id, "state": answered.state, "result": answered.result}
            _answer({**document, "migration": answered.migration}, manner.output)
            return
        last = _followed(directory, answered.migration, manner)
    if manner.output is Output.JSON:
        show_json(last)
    else:
        show_rows([finished_row(last)], FINISHED, manner.output)
    if last["state"] != "done":
        raise Failed(f"migration {last['id']} is {last['state']}: {last['error'] or 'no error is known'}")


def _answer(document: dict[str, Any], output: Output) -> None:
    if output is Output.JSON:
        show_json(document)
    else:
        say(("would be done: " if "dry_run" in document else "") + document["result"])


def _followed(directory: Directory, migration: str, manner: CommandOptions) -> dict[str, Any]:
    """Waits for the end; on a terminal with a moving line, otherwise with a line for each phase."""
    output = manner.output
    try:
        if output is Output.TEXT and console.is_terminal:
            with console.status(f"migration {migration}") as status:
                return _until_finished(
                    directory, migration, manner.timeout, lambda row: status.update(Text(_line(row)))
                )
        seen: list[str] = []

        def each_phase(row: Row) -> None:
            if output is Output.TEXT and row["phase"] not in seen[-1:]:
                seen.append(row["phase"])
                tell(f"migration {migration}: {row['phase']}")

        return _until_finished(directory, migration, manner.timeout, each_phase)
    except KeyboardInterrupt:
        tell(f"migration {migration} continues: `balancer moves` shows it, `balancer cancel {migration}` undoes it")
        raise


def _until_finished(
    directory: Directory, migration: str, timeout: float | None, show: Callable[[Row], object]
) -> dict[str, Any]:
    clock = SystemClock()
    began = clock.monotonic()
    while True:
        snapshot = directory.snapshot()
        record = snapshot.migrations[migration]
        note = {} if record.finished else directory.published(TOPIC).get(migration) or {}
        document = migration_document(record, snapshot.tables.get(record.table), note)
        if record.finished:
            return document
        show(running_row(document))
        if timeout is not None and clock.monotonic() - began > timeout:
            raise Unavailable(
                f"migration {migration} has not ended within {format_duration(timeout)} and continues:"
                f" `balancer moves` shows it, `balancer cancel {migration}` undoes it"
            )
        clock.sleep(REFRESH)


def _line(row: Row) -> str:
    words = (row[name] for name in ("id", "phase", "for", "done", "rate", "left", "waits_for"))
    return "  ".join(str(word) for word in words if word)


def drain(
    node: str,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="wait until it is empty, showing progress")] = False,
    timeout: TimeoutOption = None,
    dry_run: DryRunOption = False,
    reason: ReasonOption = "",
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Empties a node: its tablets move away, within the schedule and the budgets."""
    arguments = {"node": node, "reason": reason}
    longest = seconds(timeout)
    with directory_of(directory, config) as opened:
        if dry_run:
            document = {"dry_run": True, "result": check_dry(opened, "drain", arguments)}
        else:
            answered = give(opened, "drain", arguments)
            document = {"command": answered.id, "state": answered.state, "result": answered.result}
            if wait:
                if output is Output.TEXT:
                    say(answered.result)
                until_empty(opened, node, longest, quiet=output is Output.JSON)
                document["result"] = f"node {node} is empty: it may be removed"
    if output is Output.JSON:
        show_json(document)
    else:
        say(("would be done: " if dry_run else "") + str(document["result"]))


def until_empty(directory: Directory, node: str, timeout: float | None, *, quiet: bool) -> None:
    """Waits until no tablet and no migration needs the node."""
    clock = SystemClock()
    began, said, whole = clock.monotonic(), -1, tablets_on(directory.snapshot(), node)
    while left := _left(directory.snapshot(), node):
        if left != said and not quiet:
            tell(f"node {node}: {max(0, whole - left)} of {whole} tablets have left, {left} to go")
            said = left
        if timeout is not None and clock.monotonic() - began > timeout:
            raise Unavailable(
                f"{left} tablets or migrations are still on node {node} after {format_duration(timeout)}; it is"
                f" still being drained: `balancer status` shows it, `balancer undrain {node}` ends it"
            )
        clock.sleep(REFRESH)


def _left(snapshot: Snapshot, node: str) -> int:
    found = snapshot.nodes.get(node)
    if found is not None and found.state is not NodeState.DRAINING:
        raise Refused(f"node {node} is {found.state} and not draining any more: somebody ended that")
    running = sum(
        not record.finished and node in (record.source_node, record.target_node)
        for record in snapshot.migrations.values()
    )
    return tablets_on(snapshot, node) or running
