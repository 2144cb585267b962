"""What the verbs of operators' commands look at, and what they result in. See `commands`.

The verbs that start migrations: move, split, merge, expire; and what holds expiry. See `commands`.

The verbs about nodes: drain, close, nodes that went back in time, and lost nodes. See `commands`.

Whether an operator's move or merge violates a rule of its bundle. Pure: needs only the directory's map.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

from balancer.directory.invariants import HELD_BY_CHANGE
from balancer.directory.model import (
    EXPIRY,
    Change,
    Node,
    NodeState,
    Pause,
    Put,
    RangeBounds,
    RecordKind,
    Remove,
    Table,
    Tablet,
)
from balancer.directory.snapshot import NotFound, Snapshot
from balancer.errors import Refused, UserError
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.options import BundleOptions
from balancer.policies.resize.rule_splits import names_of, rule_against
from balancer.policies.view import Action, ActionKind, BundleView, Part
from balancer.polling.poller import ClusterPoll
from balancer.polling.rates import first_rates
from balancer.polling.view import Remembered, build_view
from balancer.settings import Mode, WantedMode


@dataclass(frozen=True, slots=True)
class Revival:
    """A lost tablet that gets a new owner, on an operator's word."""

    tablet: Tablet
    """As it is in the directory, with its former owner."""
    node: str
    empty: bool = False
    """Made without rows; otherwise the node opens the copy that it still has."""
    former: bool = False
    """It opens the tablets from which a split or merge made this one."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A transaction over several nodes that an operator ends because its home cannot say how."""

    transaction: str
    home: str
    commits: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command results in."""

    result: str
    changes: tuple[Change, ...] = ()
    actions: tuple[Action, ...] = ()
    steer: tuple[tuple[str, str], ...] = ()  # (cancel | pause | resume, migration id)
    replan: str = ""  # a bundle whose plan should be made again at once
    mode: WantedMode | None = None  # of the actions; None: the bundle's
    round: str = ""  # a bundle whose next tick acts whatever the schedule, and answers the command
    end: Ending | None = None  # a transaction whose parts are ended; what was done is the answer
    revive: Revival | None = None  # a tablet that is made ready on its new node; what changes with it is found there


@dataclass(frozen=True, slots=True)
class CommandContext:
    """What a verb may look at."""

    snapshot: Snapshot
    arguments: Mapping[str, Any]
    author: str
    now: datetime
    modes: Mapping[str, Mode] = field(default_factory=dict)
    """Bundle → its mode, as the leader's configuration has it; one that is not here is not known."""
    options: Mapping[str, BundleOptions] = field(default_factory=dict)
    """Bundle → its options, as the leader's configuration has them; one that is not here is not known."""

    def word(self, name: str) -> str:
        """A required argument."""
        value = self.arguments.get(name)
        if value in (None, ""):
            raise UserError(f"the command needs {name!r}")
        return str(value)

    def tablet(self, name: str = "tablet") -> Tablet:
        """The tablet that an argument names."""
        return self.snapshot.tablet(self.number(self.word(name)))

    def node(self, name: str = "node") -> Node:
        """The node that an argument names."""
        return self.snapshot.node(self.word(name))

    def bundle(self) -> str:
        """The bundle that the command names."""
        name = self.word("bundle")
        if name not in self.snapshot.bundles:
            known = ", ".join(sorted(self.snapshot.bundles)) or "none"
            raise NotFound(f"there is no bundle {name!r}; there are: {known}")
        return name

    def free_bundle(self) -> str:
        """The bundle; refused if a schema change holds it, since that looked for migrations only once."""
        bundle = self.bundle()
        pause = self.snapshot.pauses.get(bundle)
        if pause is not None and pause.reason.startswith(HELD_BY_CHANGE):
            raise Refused(
                f"bundle {bundle} is held by {pause.reason} until that has ended: `balancer ddl status {bundle}`"
                f" shows its progress, `balancer ddl apply {bundle} --continue` or `--undo` ends it"
            )
        return bundle

    def until(self) -> float | None:
        """When a pin or a pause ends, as seconds since 1970; None: never by itself."""
        seconds = self.arguments.get("seconds")
        return None if seconds is None else self.now.timestamp() + float(seconds)

    @staticmethod
    def number(text: str) -> int:
        """A tablet's id."""
        if not (text.isascii() and text.isdigit()):
            raise UserError(f"{text!r} is not a tablet's id: ids are numbers, see `balancer tablets`")
        return int(text)


MOST_PARTS = 1000  # of one split: all of them are made at once on the tablet's node


def move(context: CommandContext) -> Outcome:
    """A tablet to another node of its bundle."""
    tablet, node = context.tablet(), context.node("node")
    _must_be_free(context, tablet)
    if tablet.node == node.id:
        raise Refused(f"tablet {tablet.id} is on node {node.id} already")
    table = context.snapshot.tables[tablet.table]
    if node.bundle != table.bundle:
        raise Refused(f"node {node.id} belongs to bundle {node.bundle}, the table {table.name} to {table.bundle}")
    options = context.options.get(table.bundle, BundleOptions())
    refuse_against_rules(context.snapshot, table.bundle, options, tablet.id, node.id)
    return _act(
        context, Action(ActionKind.MOVE, table.name, (tablet.id,), _why(context), "operator", tablet.node, node.id)
    )


def split(context: CommandContext) -> Outcome:
    """A tablet into parts: at keys or into this many for a range, by doubling the modulus for a vbucket."""
    tablet = context.tablet()
    _must_be_free(context, tablet)
    table = context.snapshot.tables[tablet.table]
    if table.whole:
        raise Refused(f"table {table.name} is whole: it is never split")
    keys = sorted(bytes.fromhex(text) for text in context.arguments.get("keys", ()))
    count = len(keys) + 1 if keys else int(context.arguments.get("parts") or 2)
    if not 2 <= count <= MOST_PARTS:
        raise Refused(f"a split makes two parts or more, and at most {MOST_PARTS}")
    if isinstance(tablet.bounds, Leaf):
        parts = _leaves(tablet.id, tablet.bounds, count, keys)
    else:
        if any(not tablet.bounds.lower < key < tablet.bounds.upper for key in keys):
            raise Refused(f"every key must lie strictly inside tablet {tablet.id}")
        parts = tuple(Part(lower=lower) for lower in (tablet.bounds.lower, *keys)) if keys else ()
    action = Action(
        ActionKind.SPLIT, table.name, (tablet.id,), _why(context), "operator", tablet.node, "", parts, count
    )
    return _act(context, action)


def _leaves(tablet: int, leaf: Leaf, count: int, keys: Sequence[bytes]) -> tuple[Part, ...]:
    """The parts of a vbucket: its modulus is doubled until there are this many."""
    if keys:
        raise Refused(f"tablet {tablet} is a vbucket: it is split by its modulus, not at keys")
    if count & (count - 1):
        raise Refused(f"tablet {tablet} is a vbucket: it can be split into 2, 4, 8 … parts, not into {count}")
    leaves = [leaf]
    while len(leaves) < count:
        leaves = [child for one in leaves for child in one.children()]
    return tuple(Part(leaf=one) for one in leaves)


def merge(context: CommandContext) -> Outcome:
    """Neighbouring ranges, or two sibling vbuckets, of one node into one."""
    numbers = [CommandContext.number(str(text)) for text in context.arguments.get("tablets", ())]
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
    options = context.options.get(table.bundle, BundleOptions())
    refuse_over_bounds(context.snapshot, table.bundle, options, [tablet.id for tablet in tablets])
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


def expire(context: CommandContext) -> Outcome:
    """The lowest tablets of a table, which have expired; whether they have is judged where they are retired."""
    tablets = [context.snapshot.tablet(context.number(str(text))) for text in context.arguments.get("tablets", ())]
    if not tablets:
        raise Refused("name at least one tablet that can expire")
    for tablet in tablets:
        _must_be_free(context, tablet)
    table, node = context.snapshot.tables[tablets[0].table], tablets[-1].node
    ids = tuple(tablet.id for tablet in tablets)
    return _act(context, Action(ActionKind.EXPIRE, table.name, ids, _why(context), "operator", node, node))


def hold_expiry(context: CommandContext) -> Outcome:
    """Nothing expires in a bundle until it is released."""
    bundle = context.bundle()
    pause = Pause(bundle, None, context.author, str(context.arguments.get("reason", "")), EXPIRY)
    return Outcome(f"nothing expires in bundle {bundle} until it is released", (Put(pause),))


def release_expiry(context: CommandContext) -> Outcome:
    """Expired tablets are retired again, within the schedule."""
    bundle = context.bundle()
    key = f"{bundle} {EXPIRY}"
    if key not in context.snapshot.pauses:
        return Outcome(f"expiry in bundle {bundle} is not held")
    return Outcome(
        f"expired tablets of bundle {bundle} are retired again", (Remove(RecordKind.PAUSE, key),), replan=bundle
    )


def _joined(table: Table, tablets: list[Tablet]) -> tuple[list[Tablet], Part]:
    """The tablets in key order and what they become, or a refusal: they must be neighbours or siblings."""
    if any(tablet.table != table.id for tablet in tablets):
        raise Refused("the tablets belong to different tables")
    if table.hashed:
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


def _act(context: CommandContext, action: Action) -> Outcome:
    return Outcome(f"{action.kind} of {_names(action.tablets)} starts", actions=(action,), mode=_mode(context))


def _mode(context: CommandContext) -> WantedMode | None:
    asked = context.arguments.get("mode")
    if asked is None:
        return None
    if asked not in list(WantedMode):
        raise Refused(f"there is no mode {asked!r}; there are: {', '.join(WantedMode)}")
    return WantedMode(asked)


def _names(tablets: tuple[int, ...]) -> str:
    return f"tablet{'s' if len(tablets) > 1 else ''} {', '.join(map(str, tablets))}"


def _why(context: CommandContext) -> str:
    return f"asked for by {context.author}: {context.arguments.get('reason') or 'no reason given'}"


def _must_be_free(context: CommandContext, tablet: Tablet) -> None:
    running = context.snapshot.migration_of(tablet.id)
    if running is not None:
        raise Refused(f"tablet {tablet.id} is part of migration {running.id} ({running.state})")


def tablets_on(snapshot: Snapshot, node: str) -> int:
    """How many tablets a node owns."""
    total = 0
    for table in snapshot.tables:
        columns = snapshot.columns(table)
        if node in columns.nodes:
            total += columns.node.count(columns.nodes.index(node))
    return total


def drain(context: CommandContext) -> Outcome:
    """Everything leaves the node."""
    node = context.node()
    if node.state is NodeState.DRAINING:
        return Outcome(f"node {node.id} is draining already")
    reason = f"drained by {context.author}: {context.arguments.get('reason') or 'no reason given'}"
    count = tablets_on(context.snapshot, node.id)
    return Outcome(
        f"node {node.id} is draining: {count} tablets will leave it; `balancer status` says when it may be removed",
        (Put(replace(node, state=NodeState.DRAINING, reason=reason)),),
        replan=node.bundle,
    )


def undrain(context: CommandContext) -> Outcome:
    """The node is like any other again."""
    node = context.node()
    if node.state not in (NodeState.DRAINING, NodeState.CLOSED, NodeState.LOST):
        return Outcome(f"node {node.id} is {node.state} already")
    return Outcome(
        f"node {node.id} is active again", (Put(replace(node, state=NodeState.ACTIVE, reason="")),), replan=node.bundle
    )


def close(context: CommandContext) -> Outcome:
    """The node keeps what it has and gets no more."""
    node = context.node()
    changed = replace(node, state=NodeState.CLOSED, reason=f"closed by {context.author}")
    return Outcome(f"node {node.id} gets no new tablets; `balancer undrain {node.id}` opens it", (Put(changed),))


def rejoin(context: CommandContext) -> Outcome:
    """Accepts a node that has gone back in time as it is. What was closed is opened after the next poll."""
    node = context.node()
    if not node.rewound:
        return Outcome(f"node {node.id} has not gone back in time: there is nothing to accept")
    if not context.arguments.get("accept_loss"):
        raise Refused(
            f"node {node.id} has gone back in time: {node.rewound}; use --accept-loss to continue"
            " without what is missing"
        )
    accepted = replace(node, rewound="", generation=node.generation + 1)
    count = tablets_on(context.snapshot, node.id)
    return Outcome(
        f"node {node.id} is accepted as it is: its {count} tablets are opened after the next poll",
        (Put(accepted),),
        replan=node.bundle,
    )


def lost(context: CommandContext) -> Outcome:
    """A node that will not come back. Its tablets stay its own in the directory until each has a new owner."""
    node = context.node()
    if node.state is NodeState.LOST:
        return Outcome(f"node {node.id} is lost already")
    count = tablets_on(context.snapshot, node.id)
    if not context.arguments.get("accept_loss"):
        raise Refused(f"node {node.id} owns {count} tablets; use --accept-loss to continue without the node")
    return Outcome(
        f"node {node.id} is lost, and {count} tablets with it: `balancer tablet lost TABLET` gives each a new owner;"
        " migrations that need the node are ended",
        (Put(replace(node, state=NodeState.LOST, reason=f"lost, says {context.author}")),),
        replan=node.bundle,
    )


def tablet_lost(context: CommandContext) -> Outcome:
    """A lost tablet gets a new owner: an empty one, or a node that still has an older copy."""
    tablet, node = context.tablet(), context.node()
    running = context.snapshot.migration_of(tablet.id)
    if running is not None:
        raise Refused(f"tablet {tablet.id} is part of migration {running.id}, which is {running.state}: end it first")
    if node.state is NodeState.LOST:
        raise Refused(f"node {node.id} is lost itself")
    if node.bundle != context.snapshot.tables[tablet.table].bundle:
        raise Refused(f"node {node.id} belongs to another bundle, {node.bundle}")
    if not context.arguments.get("accept_loss"):
        raise Refused(
            f"use --accept-loss to continue without the rows that tablet {tablet.id} had on node {tablet.node}"
        )
    empty, former = bool(context.arguments.get("empty")), bool(context.arguments.get("former"))
    how = "without rows" if empty else "as it was before it was split or merged" if former else "with the copy it has"
    return Outcome(
        f"tablet {tablet.id} is on node {node.id} now, {how}; it is opened after the next poll",
        replan=node.bundle,
        revive=Revival(tablet, node.id, empty=empty, former=former),
    )


def refuse_against_rules(snapshot: Snapshot, bundle: str, options: BundleOptions, tablet: int, node: str) -> None:
    """Raises `Refused` if a rule, or its table's zones, keep the tablet off the node: it would not stay there."""
    table, zone = snapshot.tables[snapshot.tablet(tablet).table].name, snapshot.nodes[node].zone
    zones = options.table(table).zones
    if zones and zone not in zones:
        lives = f"table {table} lives in {', '.join(zones)}"
        raise Refused(f"tablet {tablet} may not go to {node}: it is in zone {zone or '(none)'}, and {lives}")
    if options.rules:
        against = rule_against(_map(snapshot, bundle, options), options, tablet, node)
        if against:
            raise Refused(f"tablet {tablet} may not go to {node}: {against}")


def refuse_over_bounds(snapshot: Snapshot, bundle: str, options: BundleOptions, tablets: Sequence[int]) -> None:
    """Raises `Refused` if a rule ends between tablets that are to be merged."""
    if options.rules:
        names = names_of(_map(snapshot, bundle, options), options)
        found = {names.get(tablet, frozenset()) for tablet in tablets}
        if len(found) > 1:
            which = ", ".join(sorted(frozenset.union(*found) - frozenset.intersection(*found)))
            raise Refused(f"rule {which} ends between these tablets: they must stay apart")


def _map(snapshot: Snapshot, bundle: str, options: BundleOptions) -> BundleView:
    nothing = ClusterPoll(0.0, snapshot.version, {}, first_rates())
    return build_view(snapshot, bundle, nothing, options=options, capacities={}, remembered=Remembered())
