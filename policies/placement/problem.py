"""A bundle as numbers: each tablet's share of every dimension, what each node holds and what it should hold.

`balance` and the movers build a `Problem` from a `BundleView` once and work on a `LoadState` of it. Tablets are in
the order of their ids and nodes in the order of theirs, so that the order of the input does not affect the plan.

Capacities for reads and writes as columns: what each tablet counts for, and what each node has left.

`problem` asks when it builds a problem. If a plan is made for the day, a capacity holds in every part of it as
well as now: a node that can bear its tablets at three in the morning must also bear them at noon.

The objective itself: what one node's load costs, given what it should hold.

The squared weighted excess of every dimension, plus an extra price (a fourth power) for what is above the due share:
the tightest resource decides. Both the steps of a plan and the picks within the budgets must make the sum smaller;
since it is the same sum each time, nothing goes round in circles.
"""

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from balancer.policies.day.dimensions import (
    NAMES,
    DimensionColumn,
    day_columns,
    day_rates,
    plans_by_profile,
    without_doubles,
)
from balancer.policies.day.profile import LOADS
from balancer.policies.options import BundleOptions
from balancer.policies.placement.rules import TabletPlaces, tablet_kinds
from balancer.policies.view import BundleView, DaySpan, Floats, Ints, NodeCondition, NodeView, base_of, span_text

_CAPACITIES = {"write_rate": "write_capacity", "read_rate": "read_capacity"}


@dataclass(frozen=True, slots=True)
class RateLimit:
    """One capacity: of reads or writes, now or in a part of the day."""

    rate: str
    span: DaySpan | None = None

    @property
    def text(self) -> str:
        """As sentences name it: `writes`, `reads from 18 to 21 h`."""
        return NAMES[self.rate] + (f" {span_text(self.span)}" if self.span else "")

    def capacity(self, node: NodeView) -> float:
        """What a node may do of it per second; infinite if nothing is said."""
        found: float | None = getattr(node, _CAPACITIES[self.rate])
        return np.inf if found is None else found


def rate_limits(
    view: BundleView, options: BundleOptions, nodes: tuple[NodeView, ...], rows: Ints, home: Ints
) -> tuple[tuple[RateLimit, ...], Floats, Floats]:
    """The limits (K), what each tablet counts for (T×K), and what each node has left (N×K), in the problem's order."""
    limits: list[RateLimit] = []
    loads: list[Floats] = []
    for rate, name in _CAPACITIES.items():
        if all(getattr(node, name) is None for node in nodes):
            continue
        now = view.tablets.write_rate if rate == "write_rate" else view.tablets.read_rate
        limits.append(RateLimit(rate))
        loads.append(now[rows])
        if plans_by_profile(view, options) and view.profile is not None:
            limits += [RateLimit(rate, span) for span in view.profile.spans]
            loads += [day_rates(view, rate, at)[rows] for at in range(len(view.profile.spans))]
    if not limits:
        return (), np.zeros((len(rows), 0)), np.zeros((len(nodes), 0))
    held = np.stack([np.bincount(home, weights=load, minlength=len(nodes)) for load in loads], axis=1)
    capacity = np.array([[limit.capacity(node) for limit in limits] for node in nodes])
    return tuple(limits), np.stack(loads, axis=1), capacity - held


Bools = npt.NDArray[np.bool_]

DIMENSIONS = ("bytes", "memory", "write_rate", "read_rate", "tablets")
CAPACITIES = ("bytes", "memory")


@dataclass(frozen=True, slots=True)
class Problem:
    """What does not change while a plan is made. T tablets, N nodes, D dimensions."""

    view: BundleView
    nodes: tuple[NodeView, ...]  # by id
    dimensions: tuple[str, ...]
    weights: Floats  # D: how much an excess counts
    portions: Floats  # D: how much a dimension adds to sums; the parts of a day together count little more than one
    floors: Floats  # D: what load counts for in the least gain of a move
    ids: Ints  # T, ascending
    rows: Ints  # T: the tablet's row in the view
    tables: Ints  # T: index into the view's tables
    home: Ints  # T: owner, with migrations in flight credited
    loads: Floats  # T×D: share of the whole bundle's load
    sizes: Floats  # T: bytes
    costs: Floats  # T: bytes, plus those of its last move as far as it has not paid them back
    memory: Floats  # T: bytes that count against nodes' memory
    due: Floats  # N×D: the share of the whole that the node should hold; 0 where it should hold nothing
    units: Floats  # N×D: what an excess is measured in: the due share, or the largest of any node where nothing is due
    scales: Floats  # N×D: how much an excess over the due share counts
    kept: Bools  # D: which dimensions are recurring work (rates, numbers), not occupied room
    receiving: Bools  # N: may be given tablets
    kinds: Ints  # T: tablets of one kind are of one table and named by the same rules; index of `allowed`
    allowed: Bools  # kinds×N: by zones and rules
    rivals: Bools | None  # kinds×kinds: which must not share a node; None: no rule says so
    limited: Floats  # T×K: rows per second that count against nodes' capacities, one column for each of them
    limits: tuple[RateLimit, ...]  # K
    disk_used: Floats  # N: bytes in use, with what is in flight
    disk_room: Floats  # N: bytes it may be given before it would be closed
    memory_room: Floats  # N: bytes of memory left for in-memory tables
    limit_room: Floats  # N×K: rows per second left below the nodes' capacities

    def index(self, node: str) -> int:
        """The index of a node, by its id."""
        return next(i for i, known in enumerate(self.nodes) if known.id == node)

    def row_of(self, tablet: int) -> int:
        """The index of a tablet, by its id."""
        at = int(np.searchsorted(self.ids, tablet))
        if at == len(self.ids) or self.ids[at] != tablet:
            raise KeyError(tablet)
        return at

    def conditions(self, *wanted: NodeCondition) -> Bools:
        """Which nodes are in one of these conditions."""
        return np.array([node.condition in wanted for node in self.nodes], dtype=np.bool_)


@dataclass(slots=True)
class LoadState:
    """Who holds what while a plan is made; `home` plus the moves chosen so far."""

    owner: Ints  # T
    held: Floats  # N×D
    disk_room: Floats  # N
    memory_room: Floats  # N
    limit_room: Floats  # N×K
    counts: Ints  # kinds×N: tablets of each kind on each node; no rows if no rule keeps tablets apart

    def move(self, problem: Problem, row: int, target: int) -> None:
        """Gives one tablet to another node."""
        source = self.owner[row]
        self.held[source] -= problem.loads[row]
        self.held[target] += problem.loads[row]
        self.disk_room[source] += problem.sizes[row]
        self.disk_room[target] -= problem.sizes[row]
        self.memory_room[source] += problem.memory[row]
        self.memory_room[target] -= problem.memory[row]
        if problem.limits:
            self.limit_room[source] += problem.limited[row]
            self.limit_room[target] -= problem.limited[row]
        if problem.rivals is not None:
            self.counts[problem.kinds[row], source] -= 1
            self.counts[problem.kinds[row], target] += 1
        self.owner[row] = target

    def recount(self, problem: Problem) -> None:
        """Sums up again what every node holds.

        Steps add and subtract, and what they leave differs in its last bit from the sums that the next plan begins
        with: if two choices are equal, it would choose the other one.
        """
        self.held[:] = sums(self.owner, problem.loads, len(problem.nodes))

    def take(self, other: "LoadState") -> None:
        """Becomes equal to another state."""
        self.owner[:], self.held[:] = other.owner, other.held
        self.disk_room[:], self.memory_room[:] = other.disk_room, other.memory_room
        self.limit_room[:], self.counts[:] = other.limit_room, other.counts

    def copy(self) -> "LoadState":
        """Another state that may change on its own."""
        return LoadState(*(getattr(self, known.name).copy() for known in fields(self)))


def build_problem(view: BundleView, options: BundleOptions) -> Problem:
    """All the numbers of a bundle, in canonical order."""
    order = sorted(range(len(view.nodes)), key=lambda at: view.nodes[at].id)
    nodes = tuple(view.nodes[at] for at in order)
    rank = np.empty(max(len(order), 1), dtype=np.int64)
    rank[order] = np.arange(len(order))
    columns = view.tablets
    rows = np.argsort(columns.ids, kind="stable")
    ids = columns.ids[rows]
    sizes, memory = columns.sizes[rows], columns.memory[rows]
    owner = rank[columns.node[rows]]
    home = _credited(view, ids, owner, {node.id: at for at, node in enumerate(nodes)})
    found = _dimensions(view, options, rows, _playing(nodes)[home])
    names = tuple(one.name for one in found)
    weights, portions, floors = (
        np.array([getattr(one, name) for one in found], dtype=np.float64) for name in ("weight", "portion", "floor")
    )
    raw = np.stack([one.load for one in found], axis=1) if found else np.zeros((len(rows), 0))
    due = _due(nodes, names, home, raw)
    units = np.where(due > 0, due, due.max(axis=0, initial=1e-300))
    # What a node reports as used was measured before what is in flight has landed.
    credit = sums(home, sizes[:, None], len(nodes))[:, 0] - sums(owner, sizes[:, None], len(nodes))[:, 0]
    held = sums(home, sizes[:, None], len(nodes))[:, 0]
    used = np.array(
        [held[at] if node.disk_used is None else node.disk_used + credit[at] for at, node in enumerate(nodes)]
    )
    tables = _table_of(view)[rows]
    kinds = tablet_kinds(view, options, nodes, TabletPlaces(rows, tables, home, sizes))
    limits, limited, room = rate_limits(view, options, nodes, rows, home)
    return Problem(
        view=view,
        nodes=nodes,
        dimensions=names,
        weights=weights,
        portions=portions,
        floors=weights**2 * floors,
        ids=ids,
        rows=rows,
        tables=tables,
        home=home,
        loads=raw,
        sizes=sizes,
        costs=sizes * (1.0 + _unpaid(view, ids, options.placement.payback_horizon)),
        memory=memory,
        due=due,
        units=units,
        scales=weights / units,
        kept=np.array([base_of(name) not in CAPACITIES for name in names], dtype=np.bool_),
        receiving=np.array([node.condition is NodeCondition.ACTIVE for node in nodes], dtype=np.bool_),
        kinds=kinds.of,
        allowed=kinds.allowed,
        rivals=kinds.rivals,
        limited=limited,
        limits=limits,
        limit_room=room,
        disk_used=used,
        disk_room=_disk_room(nodes, used, options.placement.close_at_disk_share),
        memory_room=_memory_room(
            nodes, sums(home, memory[:, None], len(nodes))[:, 0], options.balancer.safe_used_tablet_static_ratio
        ),
    )


def initial_state(problem: Problem) -> LoadState:
    """Everything where it is, or will be when what is in flight has landed."""
    held = sums(problem.home, problem.loads, len(problem.nodes))
    counts: Ints = np.zeros((0, len(problem.nodes)), dtype=np.int64)
    if problem.rivals is not None:
        shape = problem.allowed.shape
        places = problem.kinds * shape[1] + problem.home
        counts = np.bincount(places, minlength=shape[0] * shape[1]).reshape(shape).astype(np.int64)
    rooms = (problem.disk_room.copy(), problem.memory_room.copy(), problem.limit_room.copy())
    return LoadState(problem.home.copy(), held, *rooms, counts)


def excess(problem: Problem, held: Floats) -> Floats:
    """N×D: how far each node is above (or below) its due share, relative to it; 0 if nothing is due."""
    due = problem.due
    return np.divide(held - due, due, out=np.zeros_like(held), where=due > 0)


def tension(problem: Problem, held: Floats) -> Floats:
    """N: each node's weighted excess in its tightest dimension. The tightest resource decides."""
    if not problem.dimensions:
        return np.zeros(len(problem.nodes))
    worst: Floats = (excess(problem, held) * problem.weights).max(axis=1)
    return worst


def underuse(problem: Problem, held: Floats) -> Floats:
    """N: how far below its due share each receiving node is on the weighted average of the dimensions."""
    weights = problem.weights * problem.portions
    total = weights.sum()
    if not total:
        return np.zeros(len(problem.nodes))
    mean = (excess(problem, held) * weights).sum(axis=1) / total
    return np.where(problem.receiving, -mean, 0.0)


def _playing(nodes: tuple[NodeView, ...]) -> Bools:
    """Nodes whose tablets count: a node that is down can neither give nor take."""
    return np.array([node.condition is not NodeCondition.DOWN for node in nodes], dtype=np.bool_)


def sums(owner: Ints, values: Floats, nodes: int) -> Floats:
    """N×D: the values' sums per owner."""
    if not values.shape[1]:
        return np.zeros((nodes, 0))
    columns = [np.bincount(owner, weights=values[:, d], minlength=nodes) for d in range(values.shape[1])]
    return np.stack(columns, axis=1).astype(np.float64, copy=False)


def _table_of(view: BundleView) -> Ints:
    out = np.zeros(len(view.tablets), dtype=np.int64)
    for at, table in enumerate(view.tables):
        out[table.first : table.last] = at
    return out


def _credited(view: BundleView, ids: Ints, owner: Ints, index: dict[str, int]) -> Ints:
    """Owners as they will be when everything in flight has landed."""
    out = owner.copy()
    for migration in view.in_flight:
        for tablet in migration.tablets:
            at = int(np.searchsorted(ids, tablet))
            if at < len(ids) and ids[at] == tablet and migration.target in index:
                out[at] = index[migration.target]
    return out


def _unpaid(view: BundleView, ids: Ints, horizon: float) -> Floats:
    """T: the part of its last move that each tablet has not paid back yet.

    Of two tablets that would help equally, the one that has not been moved lately goes: where load wanders, what has
    settled once stays, and it is not carried back and forth for the sake of another dimension.
    """
    out = np.zeros(len(ids))
    for tablet, history in view.history.items():
        if history.last_migrated is not None and view.now < history.last_migrated + horizon:
            at = int(np.searchsorted(ids, tablet))
            if at < len(ids) and ids[at] == tablet:
                out[at] = min(1.0, 1.0 - (view.now - history.last_migrated) / horizon)
    return out


def _dimensions(view: BundleView, options: BundleOptions, rows: Ints, counted: Bools) -> list[DimensionColumn]:
    """The dimensions with a weight and a load, and each tablet's share of the whole in each."""
    columns = view.tablets
    by_day = plans_by_profile(view, options)
    values = {
        "bytes": columns.sizes,
        "memory": columns.memory,
        "write_rate": columns.write_rate,
        "read_rate": columns.read_rate,
        "tablets": np.ones(len(columns)),
    }
    found: list[DimensionColumn] = []
    for name in DIMENSIONS:
        weight = options.placement.dimensions.get(name, 0.0)
        if weight <= 0:
            continue
        for column in day_columns(view, name) if by_day and name in LOADS else [DimensionColumn(name, values[name])]:
            load = column.load[rows]
            total = float(load[counted].sum())
            if total > 0:
                found.append(replace(column, load=load / total, weight=weight * column.weight))
    return without_doubles(found, len(view.nodes)) if by_day else found


def node_shares(nodes: tuple[NodeView, ...], dimension: str) -> Floats:
    """What each node should hold of a dimension, relative to the others.

    The operator's weights, where they differ. If they are all the same, the nodes' own capacities for it, if they are
    known for every node.
    """
    weights = np.array([node.weight for node in nodes], dtype=np.float64)
    if len(nodes) and np.all(weights == weights[0]):
        capacities = {
            "bytes": [node.disk_capacity for node in nodes],
            "memory": [node.memory for node in nodes],
            "write_rate": [node.write_capacity for node in nodes],
            "read_rate": [node.read_capacity for node in nodes],
        }
        known = [value for value in capacities.get(dimension, []) if value]
        if known and len(known) == len(nodes):
            return np.array(known, dtype=np.float64)
    return weights


def _due(nodes: tuple[NodeView, ...], names: tuple[str, ...], home: Ints, loads: Floats) -> Floats:
    """Each node's due share. A node that an operator closed keeps what it has; the others share the rest."""
    held = sums(home, loads, len(nodes))
    keeping = np.array([keeps(node) for node in nodes], dtype=np.bool_)
    sharing = np.array([node.condition in (NodeCondition.ACTIVE, NodeCondition.CLOSED) for node in nodes], np.bool_)
    counted = _playing(nodes) & ~keeping
    due = np.where(keeping[:, None], held, 0.0)
    # Tablet by tablet, not node by node: the sum must not depend on who holds what, down to the last bit.
    shared = loads[counted[home]].sum(axis=0)
    for d, name in enumerate(names):
        shares = node_shares(nodes, base_of(name)) * (sharing & ~keeping)
        if shares.any():
            due[:, d] += shares / shares.sum() * shared[d]
    return due


def keeps(node: NodeView) -> bool:
    """Whether a node was closed by an operator: then it keeps what it has. One that the daemon closed still gives."""
    return node.condition is NodeCondition.CLOSED and not node.closed_by_daemon


def _disk_room(nodes: tuple[NodeView, ...], used: Floats, close_at: float) -> Floats:
    """Bytes each node may still be given before its disk is so full that it is closed."""
    capacity = np.array([node.disk_capacity * close_at if node.disk_capacity else np.inf for node in nodes])
    room: Floats = capacity - used
    return room


def _memory_room(nodes: tuple[NodeView, ...], used: Floats, safe: float) -> Floats:
    budgets = np.array([np.inf if node.memory is None else node.memory * safe for node in nodes])
    room: Floats = budgets - used
    return room


_OVERLOAD = 16.0  # from a quarter above the due share on, overload counts more than the square
# From here on the extra price grows linearly: if it were steeper, one tablet too hot for any node would drive all the
# cold ones off its node, for next to nothing.
_STEEPEST = 0.5
_JOINT, _PRESSING = 0.5, 0.25  # what joint moves must gain, as a part of what each would have to gain alone
_OVERHEAD = 0.5  # what every move costs in addition to its bytes, as a part of an average tablet's


def node_costs(problem: Problem, state: LoadState, nodes: Ints, change: Floats) -> Floats:
    """…×nodes: what each of the nodes would cost after a change of its load (…×nodes×dimensions).

    A draining node has no share of its own: everything it holds counts as excess over a node's share.
    """
    over = state.held[nodes] + change
    over -= problem.due[nodes]
    over *= problem.scales[nodes]
    above = np.maximum(over, 0.0)
    bend = np.minimum(above, _STEEPEST)
    bent = _OVERLOAD * bend
    bent *= bend
    bent *= bend
    bent *= 4.0 * above - 3.0 * bend
    over *= over
    bent += over
    costs: Floats = np.einsum("...nd,nd->...n", bent, problem.units[nodes])
    return costs


def move_gains(problem: Problem, state: LoadState, rows: Ints, targets: Ints) -> Floats:
    """How much smaller the objective becomes by each of these moves on its own."""
    sources, loads = state.owner[rows], problem.loads[rows]
    nothing = np.zeros_like(loads)
    before = node_costs(problem, state, sources, nothing) + node_costs(problem, state, targets, nothing)
    after = node_costs(problem, state, sources, -loads) + node_costs(problem, state, targets, loads)
    gains: Floats = before - after
    return gains


def move_overhead(sizes: Floats) -> float:
    """Bytes that every move counts on top of its own: of two ways to copy as much, the one with fewer moves wins."""
    return _OVERHEAD * float(sizes.mean()) + 1.0 if len(sizes) else 1.0


def joint_floor(carried: Floats, floors: Floats, min_gain: float, *, pressing: bool) -> Floats:
    """The least gain that is worth moves that help only together: a part of what each would have to gain alone.

    `carried` is the load of all of them (…×dimensions). Only the difference of the loads helps; counted by that alone,
    two large tablets would change places for nothing; counted in full, an overload of less than a tablet would stay.
    `pressing`: a node over the start threshold takes part, which would otherwise be stuck there.
    """
    floor: Floats = (_PRESSING if pressing else _JOINT) * min_gain * 2.0 * (carried * floors).sum(axis=-1)
    return floor
