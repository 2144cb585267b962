"""Operators' commands: what each verb needs, and what the leader makes of it. A command is carried out exactly once.

The command line and HTTP both `submit`: what the leader would refuse is refused at once, the rest goes into the
directory as a `Command`. The leader finds it and calls `decide`, which only decides: it returns changes of the
directory, actions to start, or migrations to steer, and the sentence for the operator. The leader has the last word,
because only it knows the newest directory.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

from balancer.directory.contract import Directory
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
from balancer.directory.record_rules import HELD_BY_CHANGE
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Refused, UserError
from balancer.planner import orders
from balancer.planner.command_acts import expire, hold_expiry, merge, move, release_expiry, split
from balancer.planner.command_context import CommandContext, Ending, Outcome
from balancer.planner.command_nodes import close, drain, lost, rejoin, tablet_lost, undrain
from balancer.planner.memory import FORGIVEN, failures_of
from balancer.planner.rounds import run_now
from balancer.policies.options import BundleOptions
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
