"""Which tablets have expired: a table with `expire_after` loses its oldest ones. The plan and `balancer expire` ask.

A tablet has expired when every key that its bounds allow is older than `expire_after`. Expired tablets go from the
lowest key upwards, so that what is left stays one range: the first tablet that has not expired ends the list. They are
replaced by one empty tablet, from the lowest key on, that takes no rows; its state is `expired` in the directory, and
it is replaced, with the next that expire, by one that reaches further.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from balancer.policies.bundle_view import Action, ActionKind, BundleView, NodeCondition, Rejection, TableView
from balancer.policies.figures import duration_text
from balancer.policies.options import BundleOptions, TableOptions
from balancer.policies.periods import end_of_bound, in_words, is_time
from balancer.policies.sizes_scope import Proposals, blocked_tablets

AT_ONCE: Final = 8
"""Tablets that one migration retires: all on one node, swapped in one transaction."""
CODE: Final = "expire"
HELD: Final = "expiry-held"


@dataclass(frozen=True, slots=True)
class ExpiredTablet:
    """One that has expired: every key in it is from before `end`."""

    table: str
    row: int
    tablet: int
    node: str
    end: float


def expired_tablets(view: BundleView, table: TableView, wished: TableOptions) -> list[ExpiredTablet]:
    """A table's expired tablets, the lowest first, without the empty one that replaced earlier ones."""
    if wished.expire_after is None or table.hash or not is_time(table.key_types, wished.key_unit):
        return []
    found = []
    for row in range(table.first, table.last - 1):  # the last one has no end
        end = end_of_bound(table.key_types, wished.key_unit, view.tablets.lowers[row + 1])
        if end is None or end + wished.expire_after > view.now:
            break
        tablet = int(view.tablets.ids[row])
        if tablet not in view.expired:
            node = view.nodes[int(view.tablets.node[row])].id
            found.append(ExpiredTablet(table.name, row, tablet, node, end))
    return found


def plan_expiry(view: BundleView, options: BundleOptions) -> Proposals:
    """An action for each table with expired tablets: the lowest of them, as many as are together on one node."""
    actions: list[Action] = []
    rejections: list[Rejection] = []
    blocked = blocked_tablets(view)
    for table in view.tables:
        action = next_expiry(view, table, options.table(table.name))
        if action is None:
            continue
        why = _obstacle(view, table, action, options, blocked)
        if why is None:
            actions.append(action)
        else:
            rejections.append(Rejection(action.kind, action.tablets, why[0], f"{action.reason}; but {why[1]}"))
    return Proposals(tuple(actions), tuple(rejections))


def next_expiry(view: BundleView, table: TableView, wished: TableOptions) -> Action | None:
    """What to retire next in a table; None: nothing has expired."""
    going = [*_together(expired_tablets(view, table, wished))]
    if not going:
        return None
    below = int(view.tablets.ids[table.first])
    floor = (below,) if below in view.expired else ()
    ids = tuple(one.tablet for one in going)
    names = ", ".join(map(str, ids))
    assert wished.expire_after is not None
    reason = (
        f"tablet{'s' if len(ids) > 1 else ''} {names} of {table.name}: every key is from before"
        f" {in_words(going[-1].end)}, more than {duration_text(wished.expire_after)} ago (expire_after)"
    )
    return Action(ActionKind.EXPIRE, table.name, (*floor, *ids), reason, CODE, going[0].node, going[0].node)


def _together(found: list[ExpiredTablet]) -> Iterator[ExpiredTablet]:
    for place, one in enumerate(found):
        if place == AT_ONCE or one.node != found[0].node or one.row != found[0].row + place:
            return
        yield one


def _obstacle(
    view: BundleView, table: TableView, action: Action, options: BundleOptions, blocked: dict[int, tuple[str, str]]
) -> tuple[str, str] | None:
    if view.expiry_held:
        return HELD, "an operator holds it: `balancer expire --release` releases it"
    if not options.group(table.name).enable_reshard:
        return "group-off", f"enable_reshard of group {options.group_name(table.name)} is false or its schedule shut"
    ids = set(action.tablets)
    for row in range(table.first, table.last):
        tablet = int(view.tablets.ids[row])
        if tablet in ids:
            node = view.nodes[int(view.tablets.node[row])]
            if tablet in blocked:
                return blocked[tablet]
            if node.condition is NodeCondition.DOWN:
                return "source-down", f"node {node.id} of tablet {tablet} is down"
    return None
