"""Operators' commands: what each verb needs, and what the leader makes of it. A command is carried out exactly once.

The command line and HTTP both `submit`: what the leader would refuse is refused at once, the rest goes into the
directory as a `Command`. The leader finds it and calls `decide`, which only decides: it returns changes of the
directory, actions to start, or migrations to steer, and the sentence for the operator. The leader has the last word,
because only it knows the newest directory.

A command before it is given: what the leader would do, in words, and how to write it on the command line.

`balancer … --dry-run` and the page ask here, and this calls the same code as the leader: `commands.outcome_of`.
"""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from uuid import uuid4

from balancer.directory.contract import Directory
from balancer.directory.invariants import HELD_BY_CHANGE
from balancer.directory.model import (
    Command,
    CommandState,
    Pause,
    Pin,
    Plan,
    Put,
    RecordKind,
    Remove,
    TabletState,
    Transaction,
)
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Refused, UserError
from balancer.planner import orders
from balancer.planner.memory import FORGIVEN, failures_of
from balancer.planner.verbs import (
    CommandContext,
    Ending,
    Outcome,
    close,
    drain,
    expire,
    hold_expiry,
    lost,
    merge,
    move,
    rejoin,
    release_expiry,
    split,
    tablet_lost,
    undrain,
)
from balancer.planner.windows import run_now
from balancer.policies.options import BundleOptions
from balancer.policies.view import Action, ActionKind
from balancer.settings import Mode


def request(verb: str, arguments: Mapping[str, Any], author: str, now: datetime) -> Command:
    """A new command for the directory."""
    if verb not in VERBS:
        raise UserError(f"there is no command {verb!r}; there are: {', '.join(sorted(VERBS))}")
    return Command(uuid4().hex[:12], verb, dict(arguments), author, now.timestamp())


def submit(
    directory: Directory, snapshot: Snapshot, verb: str, arguments: Mapping[str, Any], *, author: str, now: datetime
) -> tuple[Command, int]:
    """Puts a command into the directory, for the leader; returns it, and the directory's version that has it.

    Raises with the leader's own words if it would refuse: nothing is left waiting when nobody leads.
    """
    command = request(verb, arguments, author, now)
    outcome_of(command, snapshot, now)
    transaction = Transaction((Put(command),), snapshot.version, f"{verb} asked for", author)
    return command, directory.commit(transaction)


def decide(
    command: Command,
    snapshot: Snapshot,
    now: datetime,
    modes: Mapping[str, Mode] | None = None,
    options: Mapping[str, BundleOptions] | None = None,
) -> tuple[Command, Outcome]:
    """The command as it is kept in the history, and what to do. Our errors become its refusal."""
    try:
        outcome = outcome_of(command, snapshot, now, modes, options)
    except BalancerError as error:
        return refused(command, str(error)), Outcome(str(error))
    return replace(command, state=CommandState.DONE, result=outcome.result), outcome


def outcome_of(
    command: Command,
    snapshot: Snapshot,
    now: datetime,
    modes: Mapping[str, Mode] | None = None,
    options: Mapping[str, BundleOptions] | None = None,
) -> Outcome:
    """What to do. Raises `Refused`, or `UserError` if it names something that does not exist."""
    context = CommandContext(snapshot, command.arguments, command.author, now, modes or {}, options or {})
    try:
        return VERBS[command.verb](context)
    except BalancerError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError):
        # Arguments come from anywhere, even from newer versions: no operator's request may end the leader.
        text = f"{command.verb} with {dict(command.arguments)!r} is not understood by the leader"
        raise Refused(text) from None


def refused(command: Command, why: str) -> Command:
    """The command as it is kept when it cannot be carried out."""
    return replace(command, state=CommandState.REFUSED, result=why)


def _pin(context: CommandContext) -> Outcome:
    tablet = context.tablet()
    pin = Pin(tablet.id, context.until(), context.author, str(context.arguments.get("reason", "")))
    return Outcome(f"tablet {tablet.id} stays on {tablet.node}{_until_words(pin.until)}", (Put(pin),))


def _unpin(context: CommandContext) -> Outcome:
    tablet = context.tablet()
    if tablet.id not in context.snapshot.pins:
        return Outcome(f"tablet {tablet.id} is not pinned")
    return Outcome(f"tablet {tablet.id} may move again", (Remove(RecordKind.PIN, str(tablet.id)),))


def _pause(context: CommandContext) -> Outcome:
    migration = context.arguments.get("migration")
    if migration:
        if context.arguments.get("seconds") is not None:
            raise Refused("a single migration is paused until it is resumed: leave the duration out")
        return Outcome(f"migration {migration} pauses at its next safe point", steer=(("pause", str(migration)),))
    bundle = context.free_bundle()
    reason = str(context.arguments.get("reason", ""))
    if reason.startswith(HELD_BY_CHANGE):
        raise Refused(f"a reason that begins with {HELD_BY_CHANGE!r} belongs to `balancer ddl apply`: use another")
    pause = Pause(bundle, context.until(), context.author, reason)
    return Outcome(
        f"bundle {bundle} starts nothing new{_until_words(pause.until)}; running migrations continue", (Put(pause),)
    )


def _resume(context: CommandContext) -> Outcome:
    migration = context.arguments.get("migration")
    if migration:
        return Outcome(f"migration {migration} continues", steer=(("resume", str(migration)),))
    bundle = context.free_bundle()
    if bundle not in context.snapshot.pauses:
        return Outcome(f"bundle {bundle} is not paused")
    return Outcome(f"bundle {bundle} continues", (Remove(RecordKind.PAUSE, bundle),), replan=bundle)


def _cancel(context: CommandContext) -> Outcome:
    wanted = context.word("migration")
    migration = context.snapshot.migrations.get(wanted)
    order = context.snapshot.plans.get(wanted)
    if order is not None and order.state == orders.ORDERED:
        left = replace(order, state=orders.WITHDRAWN)
        return Outcome(f"order {wanted} is withdrawn: {orders.sentence(order, context.snapshot)}", (Put(left),))
    if migration is None:
        raise Refused(f"there is no migration or order {wanted!r}: see `balancer moves`, `balancer status`")
    if migration.finished:
        raise Refused(f"migration {wanted} has finished already: {migration.state}")
    return Outcome(f"migration {wanted} is being cancelled", steer=(("cancel", wanted),))


def _release(context: CommandContext) -> Outcome:
    """Also for one that only waits after a failure: earlier failures no longer count, or it would be quarantined again
    at the next tick."""
    tablet = context.tablet()
    failed = failures_of(context.snapshot.migrations.values(), tablet.id)
    if tablet.state is not TabletState.QUARANTINED and not failed:
        return Outcome(f"tablet {tablet.id} is not quarantined")
    forgiven = [Put(replace(record, detail={**record.detail, FORGIVEN: True})) for record in failed]
    count = f"; {len(failed)} failure{'s are' if len(failed) > 1 else ' is'} forgiven" if failed else ""
    return Outcome(
        f"tablet {tablet.id} may be migrated again{count}",
        (Put(replace(tablet, state=TabletState.OWNED)), *forgiven),
        replan=context.snapshot.tables[tablet.table].bundle,
    )


def _plan(context: CommandContext) -> Outcome:
    bundle = context.bundle()
    return Outcome(f"bundle {bundle} is being planned again; `balancer plan {bundle}` shows it", replan=bundle)


_UNAPPROVED = {
    Mode.OBSERVE: 'observe, in which nothing is started; write mode = "approve" into its file first',
    Mode.AUTONOMOUS: "autonomous, in which plans start by themselves when the schedule allows it",
}


def _apply(context: CommandContext) -> Outcome:
    wanted = context.word("plan")
    plan = context.snapshot.plans.get(wanted)
    if plan is None:
        raise Refused(f"there is no plan {wanted!r}: a newer one may have taken its place, see `balancer plan`")
    if plan.state != "proposed":
        raise Refused(f"plan {wanted} is {plan.state}, not proposed")
    if (reason := _UNAPPROVED.get(context.modes.get(plan.bundle, Mode.APPROVE))) is not None:
        raise Refused(f"plan {wanted} cannot be approved: the mode of bundle {plan.bundle} is {reason}")
    chosen = _chosen(plan, context.arguments.get("actions"))
    written = plan.document.get("actions", [])
    some = "" if len(chosen) == len(written) else f"{len(chosen)} of {len(written)} actions of "
    verb = "are" if some else "is"
    approved: Plan = replace(plan, state="approved", document={**plan.document, "actions": chosen})
    return Outcome(
        f"{some}plan {wanted} {verb} approved and start{'' if some else 's'} when the schedule allows it",
        (Put(approved),),
        replan=plan.bundle,
    )


def _chosen(plan: Plan, numbers: Any) -> list[Any]:
    """The approved actions, in the plan's order; the rest is planned again once they have started."""
    written: list[Any] = plan.document.get("actions", [])
    if numbers is None:
        return written
    wanted = {int(number) for number in numbers}
    if unknown := sorted(wanted - set(range(1, len(written) + 1))):
        raise Refused(f"plan {plan.id} has actions 1 to {len(written)}, and no action {unknown[0]}")
    if not wanted:
        raise Refused("no action is chosen")
    return [action for number, action in enumerate(written, 1) if number in wanted]


def _order(context: CommandContext, what: str) -> Outcome:
    bundle, name = context.bundle(), context.word("table")
    table = context.snapshot.table(name)
    if table.bundle != bundle:
        raise Refused(f"table {name} belongs to bundle {table.bundle}, not to {bundle}")
    at_once = bool(context.arguments.get("at_once"))
    order = orders.place(context.snapshot, table, what, context.now.timestamp(), at_once=at_once, author=context.author)
    when = "at once" if at_once else "when the schedule allows it"
    return Outcome(
        f"order {order.id}: {orders.sentence(order, context.snapshot)}; it begins {when}", (Put(order),), replan=bundle
    )


def _decide(context: CommandContext) -> Outcome:
    wanted, reason = context.word("transaction"), context.word("reason")
    commits = context.arguments.get("commit")
    if not isinstance(commits, bool):
        raise Refused("the command needs 'commit', true or false")
    word = "commit" if commits else "abort"
    ending = Ending(wanted, context.word("home"), commits, f"{context.author}: {reason}")
    return Outcome(f"transaction {wanted}: {word}, because {reason}", end=ending)


def _until_words(until: float | None) -> str:
    return "" if until is None else f" until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M:%S} UTC"


VERBS: Mapping[str, Callable[[CommandContext], Outcome]] = {
    "apply": _apply,
    "cancel": _cancel,
    "close": close,
    "decide": _decide,
    "double": partial(_order, what=orders.DOUBLE),
    "drain": drain,
    "expire": expire,
    "halve": partial(_order, what=orders.HALVE),
    "hold-expiry": hold_expiry,
    "lost": lost,
    "merge": merge,
    "move": move,
    "pause": _pause,
    "pin": _pin,
    "plan": _plan,
    "rejoin": rejoin,
    "release": _release,
    "release-expiry": release_expiry,
    "resume": _resume,
    "run-now": run_now,
    "split": split,
    "tablet-lost": tablet_lost,
    "undrain": undrain,
    "unpin": _unpin,
}


def would_do(
    snapshot: Snapshot,
    verb: str,
    arguments: Mapping[str, Any],
    *,
    author: str,
    now: datetime,
    modes: Mapping[str, Mode] | None = None,
    options: Mapping[str, BundleOptions] | None = None,
) -> str:
    """What would be done, in words. Raises if the leader would refuse."""
    outcome = outcome_of(request(verb, arguments, author, now), snapshot, now, modes, options)
    return "; ".join(map(_in_words, outcome.actions)) or outcome.result


def _in_words(action: Action) -> str:
    tablets = ", ".join(map(str, action.tablets))
    if action.kind is ActionKind.MOVE:
        return f"move of tablet {tablets} of {action.table} from {action.source} to {action.target}"
    noun = "tablet" if len(action.tablets) == 1 else "tablets"
    if action.kind is ActionKind.EXPIRE:
        return f"expiry of {noun} {tablets} of {action.table} on {action.source}"
    return f"{action.kind} of {noun} {tablets} of {action.table} into {action.count} on {action.source}"


def command_line(verb: str, arguments: Mapping[str, Any]) -> str:
    """The same command for a shell; empty: it cannot be written there, or not with these arguments."""
    writer = _WRITERS.get(verb)
    try:
        words = [] if writer is None else writer(arguments)
    except (KeyError, TypeError, ValueError, OverflowError):
        return ""
    return shlex.join(["balancer", verb, *words]) if words else ""


def _named(*names: str, options: tuple[str, ...] = ()) -> Callable[[Mapping[str, Any]], list[str]]:
    """Positional arguments, then options."""

    def write(arguments: Mapping[str, Any]) -> list[str]:
        return _safe([str(arguments[name]) for name in names], *(_option(arguments, name) for name in options))

    return write


def _safe(places: list[str], *options: list[str]) -> list[str]:
    """A name that begins like an option goes after `--`."""
    said = [word for option in options for word in option]
    return [*said, "--", *places] if any(place.startswith("-") for place in places) else [*places, *said]


def _option(arguments: Mapping[str, Any], name: str) -> list[str]:
    value = arguments.get(name)
    return [f"--{name}={value}"] if value not in (None, "") else []


def _target(arguments: Mapping[str, Any]) -> list[str]:
    """Pause and resume: of a bundle, or of a migration."""
    length = _length(arguments, "for")
    if arguments.get("migration"):
        return _safe([str(arguments["migration"])], ["--migration"], length)
    return _safe([str(arguments["bundle"])], length, _option(arguments, "reason"))


def _length(arguments: Mapping[str, Any], option: str) -> list[str]:
    seconds = arguments.get("seconds")
    return [] if seconds is None else [f"--{option}={float(seconds):g}s"]


def _would_pin(arguments: Mapping[str, Any]) -> list[str]:
    return _safe([str(arguments["tablet"])], _length(arguments, "until"), _option(arguments, "reason"))


def _split(arguments: Mapping[str, Any]) -> list[str]:
    if arguments.get("keys"):
        raise ValueError("keys are written as people write them there, not as the directory keeps them")
    return _safe([str(arguments["tablet"])], *(_option(arguments, name) for name in ("parts", "reason", "mode")))


def _merge(arguments: Mapping[str, Any]) -> list[str]:
    return _safe(
        [str(tablet) for tablet in arguments["tablets"]], *(_option(arguments, name) for name in ("reason", "mode"))
    )


def _would_apply(arguments: Mapping[str, Any]) -> list[str]:
    numbers = arguments.get("actions") or ()
    return _safe([str(arguments["plan"])], [f"--action={int(number)}" for number in numbers])


def _would_plan(arguments: Mapping[str, Any]) -> list[str]:
    return _safe([str(arguments["bundle"])], ["--replan"])


_WRITERS: Final[Mapping[str, Callable[[Mapping[str, Any]], list[str]]]] = {
    "apply": _would_apply,
    "cancel": _named("migration"),
    "close": _named("node"),
    "drain": _named("node", options=("reason",)),
    "merge": _merge,
    "move": _named("tablet", "node", options=("reason", "mode")),
    "pause": _target,
    "pin": _would_pin,
    "plan": _would_plan,
    "release": _named("tablet"),
    "resume": _target,
    "run-now": _named("bundle"),
    "split": _split,
    "undrain": _named("node"),
    "unpin": _named("tablet"),
}
