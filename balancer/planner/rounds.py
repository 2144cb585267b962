"""Rounds outside the schedule, on an operator's word (`balancer run-now`): the next plan starts as if all windows were
open, once.

The command itself waits in the directory until a tick of the leader has acted on it, so that a new leader finds it and
carries it out, and the operator is told what was started. What a round has started belongs to no window: it is not
parked.
"""

from collections.abc import Sequence
from dataclasses import replace

from balancer.directory.model import Command, CommandState, Migration
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused
from balancer.planner import plans
from balancer.planner.command_context import CommandContext, Outcome
from balancer.settings import Mode

VERB = "run-now"
_STARTED = "migrations"  # what a round has started, among the arguments of its command


def run_now(context: CommandContext) -> Outcome:
    """A round of a bundle; refused if the next tick could start nothing anyway."""
    name = context.free_bundle()
    pause = context.snapshot.pauses.get(name)
    if pause is not None and (pause.until is None or pause.until > context.now.timestamp()):
        raise Refused(f"bundle {name} is paused: `balancer resume {name}` ends that")
    if context.modes and name not in context.modes:
        raise Refused(f"bundle {name} is not in the leader's configuration")
    mode = context.modes.get(name)
    if mode is Mode.OBSERVE:
        raise Refused(f"the mode of bundle {name} is observe, in which nothing is started: change it in its file first")
    if mode is Mode.APPROVE and plans.in_state(context.snapshot, name, plans.APPROVED) is None:
        raise Refused(f"bundle {name} starts only what was approved, and no approved plan waits: see `balancer plan`")
    return Outcome(f"a round of bundle {name} is about to start", round=name)


def waiting(snapshot: Snapshot, bundle: str) -> tuple[Command, ...]:
    """The rounds of a bundle that were asked for and have not been carried out."""
    return tuple(
        command
        for command in snapshot.commands.values()
        if command.verb == VERB and command.state is CommandState.WAITING and command.arguments.get("bundle") == bundle
    )


def answered(command: Command, started: Sequence[Migration], refused: Sequence[str]) -> Command:
    """The command as it is kept once a tick has acted on it."""
    ids = [record.id for record in started]
    done = f"{len(ids)} migration{'s' if len(ids) > 1 else ''} started: {', '.join(ids)}" if ids else "nothing to start"
    failed = f"; {len(refused)} could not be: {refused[0]}" if refused else ""
    result = f"a round of bundle {command.arguments['bundle']}: {done}{failed}"
    arguments = {**command.arguments, _STARTED: ids}
    return replace(command, state=CommandState.DONE, result=result, arguments=arguments)


def unscheduled(snapshot: Snapshot, migration: str) -> bool:
    """Whether a round has started this migration."""
    # Until it is answered, a command's arguments are whatever somebody has written.
    done = (one for one in snapshot.commands.values() if one.verb == VERB and one.state is CommandState.DONE)
    return any(migration in command.arguments[_STARTED] for command in done)
