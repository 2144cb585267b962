"""Which tablets may move at all, and who decides about them: one mover per table, so that no two movers fight.

`balance`, the movers and the explanations ask here. A tablet's standing is a small number: 0 is free; the codes up
to `LAST_HARD` hold for every caller; those above hold for balancing, not for a drain or a full disk.

A node's hard limits in addition to disk and memory: zones and rules, tablets kept apart, capacities for rates.

Everything that gives a tablet to a node asks `may_take`; `violations` are the tablets that a rule wants elsewhere.
"""

from enum import StrEnum

import numpy as np
import numpy.typing as npt

from balancer.policies.options import BundleOptions, GroupOptions, InMemoryMode, Mover, Placement
from balancer.policies.placement.problem import Bools, LoadState, Problem, keeps
from balancer.policies.reasons import Left
from balancer.policies.view import BundleView, Floats, Ints, NodeCondition, TabletHistory, TableView

Standings = npt.NDArray[np.int8]

STANDINGS: tuple[Left | None, ...] = (
    None,
    Left.PINNED,
    Left.QUARANTINED,
    Left.IN_FLIGHT,
    Left.BACKING_OFF,
    Left.SOURCE_DOWN,
    Left.SOURCE_CLOSED,
    Left.COOLING_DOWN,
    Left.TABLE_OFF,
    Left.MOVER_OFF,
    Left.GROUP_OFF,
)
_NUMBER = {code: number for number, code in enumerate(STANDINGS) if code is not None}
LAST_HARD = _NUMBER[Left.SOURCE_DOWN]


class Decider(StrEnum):
    """What decides where a table's tablets live."""

    OBJECTIVE = "objective"
    COUNT = "count"
    IN_MEMORY = "in-memory"
    METRIC = "metric"
    FUNCTION = "function"


def group_of(options: BundleOptions, table: str) -> tuple[str, GroupOptions]:
    """The group of a table, by name."""
    return options.group_name(table), options.group(table)


def decider(options: BundleOptions, table: TableView) -> Decider:
    """What decides about this table."""
    settings = options.table(table.name)
    if settings.placement is not Placement.BALANCED and table.hash:
        return Decider.FUNCTION
    if options.metric(table.name):
        return Decider.METRIC
    if settings.in_memory_mode is not InMemoryMode.NONE:
        return Decider.IN_MEMORY
    return Decider.COUNT if options.placement.ordinary_mover is Mover.COUNT else Decider.OBJECTIVE


def table_standing(options: BundleOptions, table: TableView) -> Left | None:
    """Why balancing may not move this table's tablets, if it may not."""
    if not options.table(table.name).enable_auto_tablet_move:
        return Left.TABLE_OFF
    if not group_of(options, table.name)[1].enable_move:
        return Left.GROUP_OFF
    who = decider(options, table)
    if who is Decider.IN_MEMORY and not options.balancer.enable_in_memory_cell_balancer:
        return Left.MOVER_OFF
    if who in (Decider.OBJECTIVE, Decider.COUNT) and not options.balancer.enable_cell_balancer:
        return Left.MOVER_OFF
    return None


def standings(problem: Problem, options: BundleOptions) -> Standings:
    """T: each tablet's standing. The strongest reason wins: a pinned tablet is pinned, whatever else it is."""
    view = problem.view
    out = switches(problem, options)
    for tablet, history in view.history.items():
        code = history_standing(view, options, history)
        if code is not None:
            _mark(problem, out, [tablet], code)
    kept = np.array([keeps(node) for node in problem.nodes], dtype=np.bool_)
    out[kept[problem.home] & ((out == 0) | (out > LAST_HARD))] = _NUMBER[Left.SOURCE_CLOSED]
    out[problem.conditions(NodeCondition.DOWN)[problem.home]] = _NUMBER[Left.SOURCE_DOWN]
    _mark(problem, out, [tablet for migration in view.in_flight for tablet in migration.tablets], Left.IN_FLIGHT)
    _mark(problem, out, sorted(view.quarantined), Left.QUARANTINED)
    _mark(problem, out, sorted(view.pinned), Left.PINNED)
    return out


def switches(problem: Problem, options: BundleOptions) -> Standings:
    """T: the standing that an operator's switches give each tablet, whatever else keeps it; 0 if none is off."""
    by_table = [table_standing(options, table) for table in problem.view.tables]
    numbers = np.array([_NUMBER[code] if code else 0 for code in by_table] or [0], dtype=np.int8)
    out: Standings = numbers[problem.tables]
    return out


def is_resting(standing: Standings) -> Bools:
    """T: which tablets will be able to move soon: their migration runs, or has just ended."""
    return np.isin(standing, [_NUMBER[Left.IN_FLIGHT], _NUMBER[Left.COOLING_DOWN]])


def is_cooling(standing: Standings) -> Bools:
    """T: which tablets were migrated a short time ago."""
    cooling: Bools = standing == _NUMBER[Left.COOLING_DOWN]
    return cooling


def history_standing(view: BundleView, options: BundleOptions, history: TabletHistory) -> Left | None:
    """What a tablet's past forbids now."""
    budgets = options.budgets
    if history.failures >= budgets.quarantine_after:
        return Left.QUARANTINED
    if history.failures and history.last_failed is not None:
        wait = back_off_seconds(options, history.failures)
        if view.now < history.last_failed + wait:
            return Left.BACKING_OFF
    if history.last_migrated is not None and view.now < history.last_migrated + budgets.cool_down:
        return Left.COOLING_DOWN
    return None


def back_off_seconds(options: BundleOptions, failures: int) -> float:
    """How long a tablet waits after this many failures in a row: doubled with each."""
    return options.budgets.back_off * float(2 ** (failures - 1))


def deciders(problem: Problem, options: BundleOptions, who: Decider) -> Bools:
    """T: tablets whose table this one decides about."""
    mine = np.array([decider(options, table) is who for table in problem.view.tables] or [False], dtype=np.bool_)
    out: Bools = mine[problem.tables]
    return out


def _mark(problem: Problem, out: Standings, tablets: list[int], code: Left) -> None:
    wanted = np.array(tablets, dtype=np.int64)
    at = np.searchsorted(problem.ids, wanted)
    inside = at < len(problem.ids)
    at, wanted = at[inside], wanted[inside]
    at = at[problem.ids[at] == wanted]
    number = np.int8(_NUMBER[code])
    if number > LAST_HARD:
        at = at[(out[at] == 0) | (out[at] > number)]
    out[at] = number


def may_take(problem: Problem, state: LoadState, rows: Ints, nodes: Ints) -> Bools:
    """Rows×nodes (each row's own, if there are several): what rules and capacities for rates allow."""
    across = nodes[None, :] if nodes.ndim == 1 else nodes
    able: Bools = problem.allowed[problem.kinds[rows][:, None], across]
    if problem.limits:
        able = able & within(problem.limited[rows][:, None, :], state.limit_room[across])
    if problem.rivals is not None:
        able = able & ~crowded(problem, state.counts)[problem.kinds[rows][:, None], across]
    return able


def within(more: Floats, room: Floats) -> Bools:
    """Whether this much more (…×K) fits into the room; what adds nothing always does."""
    return np.asarray(((more <= room) | (more <= 0)).all(axis=-1), np.bool_)


def crowded(problem: Problem, counts: Ints) -> Bools:
    """Kinds×N: whether a node has a tablet that one of this kind must not share a node with."""
    if problem.rivals is None:
        return np.zeros(problem.allowed.shape, dtype=np.bool_)
    found: Bools = problem.rivals.astype(np.int64) @ counts > 0
    return found


def violations(problem: Problem, state: LoadState) -> Ints:
    """Tablets that must not be where they are. Of those that must not share a node, the largest may stay."""
    outside = ~problem.allowed[problem.kinds, state.owner]
    if problem.rivals is None:
        return np.flatnonzero(outside)
    near = np.flatnonzero(~outside & crowded(problem, state.counts)[problem.kinds, state.owner])
    kept: dict[int, set[int]] = {}
    for row in near[np.lexsort((near, -problem.sizes[near]))].tolist():
        mine = kept.setdefault(int(state.owner[row]), set())
        if any(problem.rivals[problem.kinds[row], kind] for kind in mine):
            outside[row] = True
        else:
            mine.add(int(problem.kinds[row]))
    return np.flatnonzero(outside)


def over_capacity(problem: Problem, state: LoadState) -> Ints:
    """Nodes that do more of something than they can."""
    if not problem.limits:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero((state.limit_room < -1e-9 * (1.0 + np.abs(state.limit_room))).any(axis=1))
