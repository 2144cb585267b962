"""`balancer drain`: empties a node, and waits until it may be taken away if that is wanted."""

from typing import Annotated

import typer

from balancer.cli.migrate import DryRunOption, TimeoutOption, check_dry
from balancer.cli.moves import REFRESH
from balancer.cli.operate import ReasonOption, give, seconds
from balancer.cli.output import Output, OutputOption, say, show_json, tell
from balancer.cli.places import ConfigOption, DirectoryOption, directory_of
from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import NodeState
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused, Unavailable
from balancer.planner.command_nodes import tablets_on
from balancer.settings.units import format_duration


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
