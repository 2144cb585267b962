"""Operators' commands: what each verb needs, and what the leader makes of it. A command is carried out exactly once.

The command line puts a `Command` into the directory (`request`); the leader finds it and calls `carry_out`, which only
decides: it returns changes of the directory, actions to start, or migrations to steer, and the sentence for the
operator. Wrong arguments are refused with a sentence, by the leader, because only it knows the newest directory.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import uuid4

from balancer.directory.model import (
    Change,
    Command,
    CommandState,
    Kind,
    Layout,
    Node,
    NodeState,
    Pause,
    Pin,
    Plan,
    Put,
    RangeBounds,
    Remove,
    Table,
    Tablet,
    TabletState,
)
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Refused
from balancer.planner import orders
from balancer.settings import WantedMode
from policies.leaves import Leaf
from policies.model import Action, ActionKind, Part

MOST_PARTS = 1000  # of one split: all of them are made at once on the tablet's node


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command comes to."""

    result: str
    changes: tuple[Change, ...] = ()
    actions: tuple[Action, ...] = ()
    steer: tuple[tuple[str, str], ...] = ()  # (cancel | pause | resume, migration id)
    replan: str = ""  # a bundle whose plan should be made anew at once
    mode: WantedMode | None = None  # of the actions; None: the bundle's


@dataclass(frozen=True, slots=True)
class Context:
    """What a verb may look at."""

    snapshot: Snapshot
    arguments: Mapping[str, Any]
    author: str
    now: datetime

    def word(self, name: str) -> str:
        """A required argument."""
        value = self.arguments.get(name)
        if value in (None, ""):
            raise Refused(f"the command needs {name!r}")
        return str(value)

    def tablet(self, name: str = "tablet") -> Tablet:
        """The tablet that an argument names."""
        return self.snapshot.tablet(self.number(self.word(name)))

    def node(self, name: str = "node") -> Node:
        """The node that an argument names."""
        wanted = self.word(name)
        if wanted not in self.snapshot.nodes:
            known = ", ".join(sorted(self.snapshot.nodes)) or "none"
            raise Refused(f"there is no node {wanted!r}; there are: {known}")
        return self.snapshot.nodes[wanted]

    def until(self) -> float | None:
        """When a pin or a pause ends, as seconds since 1970; None: never by itself."""
        seconds = self.arguments.get("seconds")
        return None if seconds is None else self.now.timestamp() + float(seconds)

    @staticmethod
    def number(text: str) -> int:
        """A tablet's id."""
        if not (text.isascii() and text.isdigit()):
            raise Refused(f"{text!r} is not a tablet's id: ids are numbers, see `balancer tablets`")
        return int(text)


def request(verb: str, arguments: Mapping[str, Any], author: str, now: datetime) -> Command:
    """A new command for the directory."""
    if verb not in VERBS:
        raise Refused(f"there is no command {verb!r}; there are: {', '.join(sorted(VERBS))}")
    return Command(uuid4().hex[:12], verb, dict(arguments), author, now.timestamp())


def carry_out(command: Command, snapshot: Snapshot, now: datetime) -> tuple[Command, Outcome]:
    """The command as it is kept in the history, and what is to be done. Errors of ours become its refusal."""
    context = Context(snapshot, command.arguments, command.author, now)
    try:
        outcome = VERBS[command.verb](context)
    except BalancerError as error:
        return refused(command, str(error)), Outcome(str(error))
    except (KeyError, TypeError, ValueError, OverflowError):
        # Arguments come from anywhere, also from newer versions: no wish of one operator may end the leader.
        text = f"{command.verb} with {dict(command.arguments)!r} is not understood by the leader"
        return refused(command, text), Outcome(text)
    return replace(command, state=CommandState.DONE, result=outcome.result), outcome


def refused(command: Command, why: str) -> Command:
    """The command as it is kept when it cannot be carried out."""
    return replace(command, state=CommandState.REFUSED, result=why)


def tablets_on(snapshot: Snapshot, node: str) -> int:
    """How many tablets a node owns."""
    total = 0
    for table in snapshot.tables:
        columns = snapshot.columns(table)
        if node in columns.nodes:
            total += columns.node.count(columns.nodes.index(node))
    return total


def _drain(context: Context) -> Outcome:
    node = context.node()
    if node.state is NodeState.DRAINING:
        return Outcome(f"node {node.id} is draining already")
    reason = f"drained by {context.author}: {context.arguments.get('reason') or 'no reason given'}"
    count = tablets_on(context.snapshot, node.id)
    return Outcome(
        f"node {node.id} is draining: {count} tablets will leave it; `balancer status` says when it may be taken away",
        (Put(replace(node, state=NodeState.DRAINING, reason=reason)),),
        replan=node.bundle,
    )


def _undrain(context: Context) -> Outcome:
    node = context.node()
    if node.state not in (NodeState.DRAINING, NodeState.CLOSED):
        return Outcome(f"node {node.id} is {node.state} already")
    return Outcome(
        f"node {node.id} is active again", (Put(replace(node, state=NodeState.ACTIVE, reason="")),), replan=node.bundle
    )


def _close(context: Context) -> Outcome:
    node = context.node()
    changed = replace(node, state=NodeState.CLOSED, reason=f"closed by {context.author}")
    return Outcome(f"node {node.id} gets no new tablets; `balancer undrain {node.id}` opens it", (Put(changed),))


def _pin(context: Context) -> Outcome:
    tablet = context.tablet()
    pin = Pin(tablet.id, context.until(), context.author, str(context.arguments.get("reason", "")))
    return Outcome(f"tablet {tablet.id} stays on {tablet.node}{_until_words(pin.until)}", (Put(pin),))


def _unpin(context: Context) -> Outcome:
    tablet = context.tablet()
    if tablet.id not in context.snapshot.pins:
        return Outcome(f"tablet {tablet.id} is not pinned")
    return Outcome(f"tablet {tablet.id} may move again", (Remove(Kind.PIN, str(tablet.id)),))


def _pause(context: Context) -> Outcome:
    migration = context.arguments.get("migration")
    if migration:
        if context.arguments.get("seconds") is not None:
            raise Refused("a single migration is paused until it is resumed: leave the duration out")
        return Outcome(f"migration {migration} pauses at its next safe point", steer=(("pause", str(migration)),))
    bundle = _bundle(context)
    pause = Pause(bundle, context.until(), context.author, str(context.arguments.get("reason", "")))
    return Outcome(f"bundle {bundle} starts nothing new{_until_words(pause.until)}; what runs goes on", (Put(pause),))


def _resume(context: Context) -> Outcome:
    migration = context.arguments.get("migration")
    if migration:
        return Outcome(f"migration {migration} goes on", steer=(("resume", str(migration)),))
    bundle = _bundle(context)
    if bundle not in context.snapshot.pauses:
        return Outcome(f"bundle {bundle} is not paused")
    return Outcome(f"bundle {bundle} goes on", (Remove(Kind.PAUSE, bundle),), replan=bundle)


def _cancel(context: Context) -> Outcome:
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


def _release(context: Context) -> Outcome:
    tablet = context.tablet()
    if tablet.state is not TabletState.QUARANTINED:
        return Outcome(f"tablet {tablet.id} is not quarantined")
    return Outcome(f"tablet {tablet.id} may be migrated again", (Put(replace(tablet, state=TabletState.OWNED)),))


def _move(context: Context) -> Outcome:
    tablet, node = context.tablet(), context.node("node")
    _must_be_free(context, tablet)
    if tablet.node == node.id:
        raise Refused(f"tablet {tablet.id} is on node {node.id} already")
    table = context.snapshot.tables[tablet.table]
    if node.bundle != table.bundle:
        raise Refused(f"node {node.id} belongs to bundle {node.bundle}, the table {table.name} to {table.bundle}")
    return _act(
        context, Action(ActionKind.MOVE, table.name, (tablet.id,), _why(context), "operator", tablet.node, node.id)
    )


def _split(context: Context) -> Outcome:
    tablet = context.tablet()
    _must_be_free(context, tablet)
    table = context.snapshot.tables[tablet.table]
    parts: tuple[Part, ...] = ()
    if isinstance(tablet.bounds, Leaf):
        parts = tuple(Part(leaf=leaf) for leaf in tablet.bounds.children())
    else:
        keys = sorted(bytes.fromhex(text) for text in context.arguments.get("keys", ()))
        if any(not tablet.bounds.lower < key < tablet.bounds.upper for key in keys):
            raise Refused(f"every key must lie strictly inside tablet {tablet.id}")
        if keys:
            parts = tuple(Part(lower=lower) for lower in (tablet.bounds.lower, *keys))
    count = len(parts) or int(context.arguments.get("parts") or 2)
    if not 2 <= count <= MOST_PARTS:
        raise Refused(f"a split makes two parts or more, and at most {MOST_PARTS}")
    action = Action(
        ActionKind.SPLIT, table.name, (tablet.id,), _why(context), "operator", tablet.node, "", parts, count
    )
    return _act(context, action)


def _merge(context: Context) -> Outcome:
    numbers = [Context.number(str(text)) for text in context.arguments.get("tablets", ())]
    if len(numbers) < 2:
        raise Refused("a merge needs two tablets or more")
    tablets = [context.snapshot.tablet(number) for number in numbers]
    for tablet in tablets:
        _must_be_free(context, tablet)
    table = context.snapshot.tables[tablets[0].table]
    tablets, part = _joined(table, tablets)
    nodes = {tablet.node for tablet in tablets}
    if len(nodes) > 1:
        raise Refused(f"the tablets are on different nodes ({', '.join(sorted(nodes))}): move them together first")
    action = Action(
        ActionKind.MERGE,
        table.name,
        tuple(tablet.id for tablet in tablets),
        _why(context),
        "operator",
        tablets[0].node,
        "",
        (part,),
        1,
    )
    return _act(context, action)


def _joined(table: Table, tablets: list[Tablet]) -> tuple[list[Tablet], Part]:
    """The tablets in key order and what they become, or a refusal: they must be neighbours or siblings."""
    if any(tablet.table != table.id for tablet in tablets):
        raise Refused("the tablets belong to different tables")
    if table.layout is Layout.HASH:
        return _joined_leaves({tablet.bounds: tablet for tablet in tablets if isinstance(tablet.bounds, Leaf)})
    return _joined_ranges({tablet.bounds: tablet for tablet in tablets if isinstance(tablet.bounds, RangeBounds)})


def _joined_leaves(tablets: Mapping[Leaf, Tablet]) -> tuple[list[Tablet], Part]:
    leaves = sorted(tablets, key=Leaf.start)
    parent = leaves[0].parent()
    if len(leaves) != 2 or parent is None or leaves[0].sibling() != leaves[1]:
        raise Refused("only two sibling vbuckets can be merged: (m, r) and (m, r + m/2)")
    return [tablets[leaf] for leaf in leaves], Part(leaf=parent)


def _joined_ranges(tablets: Mapping[RangeBounds, Tablet]) -> tuple[list[Tablet], Part]:
    ranges = sorted(tablets, key=lambda bounds: bounds.lower)
    for left, right in pairwise(ranges):
        if left.upper != right.lower:
            raise Refused(f"tablets {tablets[left].id} and {tablets[right].id} are not neighbours")
    return [tablets[bounds] for bounds in ranges], Part(lower=ranges[0].lower)


def _plan(context: Context) -> Outcome:
    bundle = _bundle(context)
    return Outcome(f"bundle {bundle} is being planned anew; `balancer plan {bundle}` shows it", replan=bundle)


def _apply(context: Context) -> Outcome:
    wanted = context.word("plan")
    plan = context.snapshot.plans.get(wanted)
    if plan is None:
        raise Refused(f"there is no plan {wanted!r}: a newer one may have taken its place, see `balancer plan`")
    if plan.state != "proposed":
        raise Refused(f"plan {wanted} is {plan.state}, not proposed")
    approved: Plan = replace(plan, state="approved")
    return Outcome(
        f"plan {wanted} is approved and starts when the schedule allows it", (Put(approved),), replan=plan.bundle
    )


def _order(context: Context, what: str) -> Outcome:
    bundle, name = _bundle(context), context.word("table")
    table = context.snapshot.table(name)
    if table.bundle != bundle:
        raise Refused(f"table {name} belongs to bundle {table.bundle}, not to {bundle}")
    at_once = bool(context.arguments.get("at_once"))
    order = orders.place(context.snapshot, table, what, context.now.timestamp(), at_once=at_once, author=context.author)
    when = "at once" if at_once else "when the schedule allows it"
    return Outcome(
        f"order {order.id}: {orders.sentence(order, context.snapshot)}; it begins {when}", (Put(order),), replan=bundle
    )


def _act(context: Context, action: Action) -> Outcome:
    return Outcome(f"{action.kind} of {_names(action.tablets)} starts", actions=(action,), mode=_mode(context))


def _mode(context: Context) -> WantedMode | None:
    asked = context.arguments.get("mode")
    if asked is None:
        return None
    if asked not in list(WantedMode):
        raise Refused(f"there is no mode {asked!r}; there are: {', '.join(WantedMode)}")
    return WantedMode(asked)


def _names(tablets: tuple[int, ...]) -> str:
    return f"tablet{'s' if len(tablets) > 1 else ''} {', '.join(map(str, tablets))}"


def _why(context: Context) -> str:
    return f"asked for by {context.author}: {context.arguments.get('reason') or 'no reason given'}"


def _bundle(context: Context) -> str:
    name = context.word("bundle")
    if name not in context.snapshot.bundles:
        known = ", ".join(sorted(context.snapshot.bundles)) or "none"
        raise Refused(f"there is no bundle {name!r}; there are: {known}")
    return name


def _must_be_free(context: Context, tablet: Tablet) -> None:
    running = context.snapshot.migration_of(tablet.id)
    if running is not None:
        raise Refused(f"tablet {tablet.id} is part of migration {running.id} ({running.state})")


def _until_words(until: float | None) -> str:
    return "" if until is None else f" until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M:%S} UTC"


VERBS: Mapping[str, Callable[[Context], Outcome]] = {
    "apply": _apply,
    "cancel": _cancel,
    "close": _close,
    "double": partial(_order, what=orders.DOUBLE),
    "drain": _drain,
    "halve": partial(_order, what=orders.HALVE),
    "merge": _merge,
    "move": _move,
    "pause": _pause,
    "pin": _pin,
    "plan": _plan,
    "release": _release,
    "resume": _resume,
    "split": _split,
    "undrain": _undrain,
    "unpin": _unpin,
}
