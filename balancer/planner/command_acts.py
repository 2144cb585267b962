"""The verbs that start migrations: move, split, merge, expire; and what holds expiry. See `commands`."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from balancer.directory.model import EXPIRY, Pause, Put, RangeBounds, RecordKind, Remove, Table, Tablet
from balancer.errors import Refused
from balancer.planner.command_context import CommandContext, Outcome
from balancer.planner.rules_kept import refuse_against_rules, refuse_over_bounds
from balancer.policies.bundle_view import Action, ActionKind, Part
from balancer.policies.hash_leaves import Leaf
from balancer.policies.options import BundleOptions
from balancer.settings import WantedMode

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
