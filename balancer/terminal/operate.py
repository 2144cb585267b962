"""Operators' commands: put into the directory, so that they work from any host, and carried out by the leader."""

from pathlib import Path
from typing import Annotated, Any

import typer

from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import Command, CommandState
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused, Unavailable, UserError
from balancer.planner.commands import submit
from balancer.settings.units import parse_duration
from balancer.terminal.options import ConfigOption, DirectoryOption, directory_of, operator
from balancer.terminal.output import SILENCE, Output, OutputOption, say, show_json, tell

AcceptOption = Annotated[bool, typer.Option("--accept-loss", help="do it, and give up what was named as lost")]

PATIENCE = 30.0

ReasonOption = Annotated[str, typer.Option("--reason", help="recorded in the history")]
DurationOption = Annotated[str | None, typer.Option(help='how long, as in "90m" or "2d"; default: until unpinned')]


def give(directory: Directory, verb: str, arguments: dict[str, Any], patience: float = PATIENCE) -> Command:
    """Submits a command and waits until the leader has answered it."""
    clock = SystemClock()
    command, _ = submit(directory, directory.snapshot(), verb, arguments, author=operator(), now=clock.now())
    follower = directory.follow()
    try:
        deadline = clock.monotonic() + patience
        seen, said = follower.snapshot, False
        while (answered := _answer(seen, command.id)) is None:
            left = deadline - clock.monotonic()
            if left <= 0:
                leader = directory.leader()
                who = f"the leader {leader} has not answered" if leader else "no instance has led"
                raise Unavailable(
                    f"{who} within {patience:.0f} s; the command {command.id} waits in the directory until one does"
                )
            seen = follower.wait(seen.version, min(left, SILENCE))
            if not said and clock.monotonic() - deadline + patience >= SILENCE:
                said = True
                tell(f"waiting for the leader{_called(directory.leader())}, at most {patience:.0f} s …")
    finally:
        follower.close()
    if answered.state is CommandState.REFUSED:
        raise Refused(answered.result)
    return answered


def _called(leader: str | None) -> str:
    return f" {leader}" if leader else ", and nobody leads at this moment"


def _answer(snapshot: Snapshot, command: str) -> Command | None:
    found = snapshot.commands.get(command)
    return None if found is None or found.state is CommandState.WAITING else found


def _give(verb: str, arguments: dict[str, Any], directory: str | None, config: Path | None, output: Output) -> None:
    with directory_of(directory, config) as opened:
        answered = give(opened, verb, {name: value for name, value in arguments.items() if value is not None})
    if output is Output.JSON:
        show_json({"command": answered.id, "state": answered.state, "result": answered.result})
    else:
        say(answered.result)


def seconds(text: str | None) -> float | None:
    """A duration as people write it; None: none was given."""
    if text is None:
        return None
    try:
        return float(str(parse_duration(text)))
    except ValueError as error:
        raise UserError(str(error)) from None


def undrain(
    node: str,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Makes a draining or closed node active again."""
    _give("undrain", {"node": node}, directory, config, output)


def close(
    node: str,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Closes a node to new tablets; it keeps what it has."""
    _give("close", {"node": node}, directory, config, output)


def pin(
    tablet: str,
    until: DurationOption = None,
    reason: ReasonOption = "",
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Keeps a tablet where it is."""
    _give("pin", {"tablet": tablet, "seconds": seconds(until), "reason": reason}, directory, config, output)


def unpin(
    tablet: str,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Lets a pinned tablet move again."""
    _give("unpin", {"tablet": tablet}, directory, config, output)


def pause(
    target: Annotated[str, typer.Argument(help="a bundle, or a migration's id with --migration")],
    for_: Annotated[str | None, typer.Option("--for", help='how long, as in "2h"')] = None,
    migration: Annotated[bool, typer.Option("--migration", help="the name is a migration's id")] = False,
    reason: ReasonOption = "",
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Starts nothing new in a bundle, or holds one migration at its next safe point."""
    kind = "migration" if migration else "bundle"
    _give("pause", {kind: target, "seconds": seconds(for_), "reason": reason}, directory, config, output)


def resume(
    target: Annotated[str, typer.Argument(help="a bundle, or a migration's id with --migration")],
    migration: Annotated[bool, typer.Option("--migration", help="the name is a migration's id")] = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Ends a pause."""
    _give("resume", {"migration" if migration else "bundle": target}, directory, config, output)


def cancel(
    migration: Annotated[str, typer.Argument(help="the id of a migration, or of an order")],
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Cancels a migration before its commit, so that the source keeps the tablet; or the rest of an order."""
    _give("cancel", {"migration": migration}, directory, config, output)


def release(
    tablet: str,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Ends the quarantine of a tablet."""
    _give("release", {"tablet": tablet}, directory, config, output)


def apply(
    plan: str,
    action: Annotated[
        list[int] | None, typer.Option("--action", min=1, help="only this action; may be repeated")
    ] = None,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Approves a proposed plan of a bundle in mode `approve`, or some of its actions."""
    _give("apply", {"plan": plan, "actions": action or None}, directory, config, output)
