"""Tablets ahead of the front: a table with `every` and `premake` is cut before its data comes. The plan calls this.

Only the last tablet, the one without an end, is looked at. In a table that is up to date it begins in the future and is
empty, so cutting it costs nothing, and its parts move to their nodes while they are empty: new data lands where there
is room for it. If the front has overtaken it, it does contain rows, and it is cut like any other.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from balancer.policies.bundle_view import Action, ActionKind, BundleView, NodeCondition, Part, Rejection, TableView
from balancer.policies.options import BundleOptions, Placement, TableOptions
from balancer.policies.periods import cuts, in_words, is_time, key_at, start_of_bound
from balancer.policies.sizes_scope import Proposals, blocked_tablets

MOST_CUTS: Final = 32
"""Per split: writers wait a few milliseconds per tablet for its swap."""
CODE: Final = "premake"
NOT_A_TIME: Final = "not-a-time"


def plan_premake(view: BundleView, options: BundleOptions) -> Proposals:
    """A split for each table whose last tablet begins too soon."""
    actions: list[Action] = []
    rejections: list[Rejection] = []
    blocked = blocked_tablets(view)
    for table in view.tables:
        wished = options.table(table.name)
        if wished.every is None or wished.premake is None or table.hash or table.first == table.last:
            continue
        found = _of_table(view, table, wished)
        if found is None:
            continue
        why = _obstacle(view, table, options, blocked)
        if isinstance(found, Rejection):
            rejections.append(found)
        elif why is not None:
            rejections.append(Rejection(found.kind, found.tablets, why[0], f"{found.reason}; but {why[1]}"))
        else:
            actions.append(found)
    return Proposals(tuple(actions), tuple(rejections))


def timeless(options: BundleOptions) -> BundleOptions:
    """For the simulator, whose keys are not times: nothing is made ahead, and nothing expires."""
    tables = {name: replace(table, premake=None, expire_after=None) for name, table in options.tables.items()}
    return replace(options, tables=tables)


def _of_table(view: BundleView, table: TableView, wished: TableOptions) -> Action | Rejection | None:
    assert wished.every is not None
    assert wished.premake is not None
    row = table.last - 1
    tablet = int(view.tablets.ids[row])
    if not is_time(table.key_types, wished.key_unit):
        return Rejection(ActionKind.SPLIT, (tablet,), NOT_A_TIME, _no_time(table))
    start = start_of_bound(table.key_types, wished.key_unit, view.tablets.lowers[row])
    moments = cuts(start, view.now, wished.every, wished.premake, MOST_CUTS)
    bounds = [bound for moment in moments if (bound := key_at(table.key_types, wished.key_unit, moment)) is not None]
    bounds = [bound for bound in bounds if bound > view.tablets.lowers[row]]
    if not bounds:
        return None
    future = start is not None and start >= view.now
    nodes = _nodes(view, table, wished, len(bounds) - (not future), None if future else int(view.tablets.node[row]))
    given = [*([] if future else [""]), *nodes, ""]
    home = view.nodes[int(view.tablets.node[row])].id
    lowers = (view.tablets.lowers[row], *bounds)
    parts = tuple(Part(lower, node=node) for lower, node in zip(lowers, given, strict=True))
    reason = (
        f"{table.name} has tablets up to {'its beginning' if start is None else in_words(start)}, and premake wants"
        f" them up to {in_words(moments[-1])}: {len(parts)} parts of tablet {tablet}"
    )
    return Action(
        ActionKind.SPLIT, table.name, (tablet,), reason, CODE, home, home, parts, len(parts),
        float(view.tablets.sizes[row]),
    )  # fmt: skip


def _no_time(table: TableView) -> str:
    return (
        f"the key of {table.name} begins with {table.key_types[0]}: every, premake and expire_after need a date, a"
        " timestamp with time zone, or a bigint with key_unit"
    )


def _obstacle(
    view: BundleView, table: TableView, options: BundleOptions, blocked: dict[int, tuple[str, str]]
) -> tuple[str, str] | None:
    row = table.last - 1
    found = blocked.get(int(view.tablets.ids[row]))
    node = view.nodes[int(view.tablets.node[row])]
    if found is None and node.condition is NodeCondition.DOWN:
        return "source-down", f"its node {node.id} is down"
    if found is None and not options.group(table.name).enable_reshard:
        return "group-off", f"enable_reshard of group {options.group_name(table.name)} is false or its schedule shut"
    return found


def _nodes(view: BundleView, table: TableView, wished: TableOptions, count: int, busy: int | None) -> list[str]:
    """A node for each new tablet: the one with the fewest of the table's current and coming tablets for its weight, and
    of these the one with the fewest bytes. `busy`: the node of the current one, if that has no end yet."""
    able = [at for at, node in enumerate(view.nodes) if _may_receive(wished, view, at)]
    if not able or not wished.enable_auto_tablet_move or wished.placement is not Placement.BALANCED:
        return [""] * count
    ahead = _ahead(view, table, wished)
    if busy is not None:
        ahead[busy] += 1
    sizes = [float(view.tablets.sizes[view.tablets.node == at].sum()) for at in range(len(view.nodes))]
    chosen: list[str] = []
    for _ in range(count):
        best = min(able, key=lambda at: ((ahead[at] + 1) / view.nodes[at].weight, sizes[at] / view.nodes[at].weight))
        ahead[best] += 1
        chosen.append(view.nodes[best].id)
    return chosen


def _may_receive(wished: TableOptions, view: BundleView, at: int) -> bool:
    node = view.nodes[at]
    return (
        node.condition is NodeCondition.ACTIVE and node.weight > 0 and (not wished.zones or node.zone in wished.zones)
    )


def _ahead(view: BundleView, table: TableView, wished: TableOptions) -> list[int]:
    """By node: tablets of the table that end in the future, without the one that has no end."""
    now = key_at(table.key_types, wished.key_unit, view.now)
    found = [0] * len(view.nodes)
    uppers: Sequence[bytes] = view.tablets.lowers[table.first + 1 : table.last]
    for row, upper in enumerate(uppers, table.first):
        if now is None or upper > now:
            found[int(view.tablets.node[row])] += 1
    return found
