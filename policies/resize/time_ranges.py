"""Times as keys: for a range table whose key begins with a time, where periods begin, and when a key's time has passed.

A table with `every` has a tablet for each period: a day, a week, an hour. Periods are counted from midnight UTC of
Monday, 5 January 1970, so weeks begin on Mondays. Times are seconds since 1970, always passed in.

Tablets ahead of the front: a table with `every` and `premake` is cut before its data comes. The plan calls this.

Only the last tablet, the one without an end, is looked at. In a table that is up to date it begins in the future and is
empty, so cutting it costs nothing, and its parts move to their nodes while they are empty: new data lands where there
is room for it. If the front has overtaken it, it does contain rows, and it is cut like any other.

Which tablets have expired: a table with `expire_after` loses its oldest ones. The plan and `balancer expire` ask.

A tablet has expired when every key that its bounds allow is older than `expire_after`. Expired tablets go from the
lowest key upwards, so that what is left stays one range: the first tablet that has not expired ends the list. They are
replaced by one empty tablet, from the lowest key on, that takes no rows; its state is `expired` in the directory, and
it is replaced, with the next that expire, by one that reaches further.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Final

from balancer.policies.keyspace.keys import KeyMismatch, KeyType, KeyValue, decode_bound, encode_key
from balancer.policies.options import BundleOptions, Placement, TableOptions
from balancer.policies.reasons import duration_text
from balancer.policies.resize.scope import Proposals, blocked_tablets
from balancer.policies.view import Action, ActionKind, BundleView, NodeCondition, Part, Rejection, TableView

DAY: Final = 86400.0
UNITS: Final = {"s": 1, "ms": 1000, "us": 1_000_000}
"""What a bigint key may count since 1970, and how many make a second."""
LAST_ZONE: Final = 43200.0
"""A date ends last twelve hours west of Greenwich: only then is the day over everywhere."""
_MONDAY = 4 * DAY
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_time(types: Sequence[KeyType], unit: str) -> bool:
    """Whether the first part of such a key is a time: a date, a timestamptz, or a bigint whose unit is known."""
    return types[0] in (KeyType.DATE, KeyType.TIMESTAMPTZ) or (types[0] is KeyType.BIGINT and unit in UNITS)


def key_at(types: Sequence[KeyType], unit: str, moment: float) -> bytes | None:
    """The bound below every key of this moment or later; None: it is out of the type's range."""
    try:
        value: KeyValue
        if types[0] is KeyType.BIGINT:
            value = round(moment * UNITS[unit])
        else:
            time = _EPOCH + timedelta(seconds=moment)
            value = time.date() if types[0] is KeyType.DATE else time
        return encode_key(types, (value,), prefix=True)
    except (KeyMismatch, OverflowError):
        return None


def start_of_bound(types: Sequence[KeyType], unit: str, bound: bytes) -> float | None:
    """The moment at which the keys from this bound on begin; None: it names none."""
    values, _ = decode_bound(types, bound)
    return _moment(types[0], unit, values[0]) if values else None


def end_of_bound(types: Sequence[KeyType], unit: str, bound: bytes) -> float | None:
    """The moment from which every key below this bound lies in the past; None: it names none, or infinity.

    A bound that continues after the time, (day, 500), has keys of that very day below it.
    """
    values, highest = decode_bound(types, bound)
    if not values:
        return None
    moment = _moment(types[0], unit, values[0])
    if moment is None:
        return None
    if len(values) > 1 or highest:
        moment += {KeyType.DATE: DAY, KeyType.TIMESTAMPTZ: 1e-6}.get(types[0], 1 / UNITS.get(unit, 1))
    return moment + LAST_ZONE if types[0] is KeyType.DATE else moment


def next_period(moment: float, every: float) -> float:
    """The first beginning of a period after this moment."""
    return (math.floor((moment - _MONDAY) / every) + 1) * every + _MONDAY


def cuts(start: float | None, now: float, every: float, ahead: float, most: int) -> list[float]:
    """Where to cut a last tablet that begins at `start` so that the new last one begins `ahead` of now, or later.

    Without a start nothing is known about the past: only the future is cut. At most the newest `most` cuts.
    """
    first = next_period(now if start is None else start, every)
    last = next_period(now + ahead, every)
    number = round((last - first) / every) + 1
    return [last - every * place for place in reversed(range(min(number, most)))] if number > 0 else []


def in_words(moment: float) -> str:
    """A moment for people, as short as possible."""
    try:
        time = _EPOCH + timedelta(seconds=moment)
    except OverflowError:
        return "the beginning" if moment < 0 else "the end"
    return f"{time:%Y-%m-%d}" if moment % DAY == 0 else f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _moment(kind: KeyType, unit: str, value: KeyValue) -> float | None:
    if isinstance(value, float):
        return None if value > 0 else -math.inf
    if isinstance(value, int):
        return value / UNITS[unit]
    if kind is KeyType.DATE and isinstance(value, date):
        return (value - _EPOCH.date()).days * DAY
    return (value - _EPOCH).total_seconds() if isinstance(value, datetime) else None


MOST_CUTS: Final = 32
"""Per split: writers wait a few milliseconds per tablet for its swap."""
PREMAKE: Final = "premake"
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
        ActionKind.SPLIT, table.name, (tablet,), reason, PREMAKE, home, home, parts, len(parts),
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


AT_ONCE: Final = 8
"""Tablets that one migration retires: all on one node, swapped in one transaction."""
EXPIRE: Final = "expire"
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
        why = _expiry_obstacle(view, table, action, options, blocked)
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
    return Action(ActionKind.EXPIRE, table.name, (*floor, *ids), reason, EXPIRE, going[0].node, going[0].node)


def _together(found: list[ExpiredTablet]) -> Iterator[ExpiredTablet]:
    for place, one in enumerate(found):
        if place == AT_ONCE or one.node != found[0].node or one.row != found[0].row + place:
            return
        yield one


def _expiry_obstacle(
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
