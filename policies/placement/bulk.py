"""Which tablets leave nodes that hold too much, so that as few bytes as possible are moved. Columns only.

Each overfull node must lose a certain load in one or more dimensions: a covering problem. A price per dimension and
node, found by a few rounds of dual ascent, says what a unit of that load is worth in bytes; tablets leave in the order
of worth per byte until some need is met, then the prices are found again for what remains. `least_bytes` is the dual's
own value: no choice of tablets needs fewer bytes.

Where tablets that have left their nodes go: to the nodes with the most room for what these tablets carry.

Many at a time: the receiving nodes are dealt into as many groups as a round places tablets, each group with one node
of every level of room, and each tablet takes the node of its group that it fills least. A node gets at most one tablet
per round, so every check is exact. With few tablets there is one group of all nodes, and this is plain best fit.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np

from balancer.policies.placement.candidates import crowded, within
from balancer.policies.placement.problem import Bools, LoadState, Problem, excess, sums
from balancer.policies.view import Floats, Ints

_SAMPLE = 100_000
_ROUNDS = 12
_NEEDS = 6  # needs met one after the other: of a day's many dimensions the last few are left to single moves
# A node should keep what it need not lose: load that leaves needlessly fills up the receivers. The price is small, so
# that it decides only between tablets of nearly equal worth.
_SIDE_PRICE = 0.2
_EPSILON = 1e-12


def choose_rows(problem: Problem, state: LoadState, movable: Bools, ceiling: Floats) -> Ints:
    """The tablets to remove so that no node holds more than its ceiling, as far as possible."""
    need = needs(problem, state, ceiling)
    rows = np.flatnonzero(movable & _some(need > 0)[state.owner])
    side = (np.minimum(excess(problem, state.held), 1.0) - 1.0) * _SIDE_PRICE
    chosen = []
    for _ in range(min(len(problem.dimensions), _NEEDS)):
        active = need > _EPSILON
        rows = rows[_some(active)[state.owner[rows]]]
        rows = rows[_some(problem.loads[rows] * active[state.owner[rows]] > 0)]
        if not rows.size:
            break
        taken = _take(problem, state.owner[rows], rows, need, side)
        chosen.append(rows[taken])
        need = need - sums(state.owner[rows[taken]], problem.loads[rows[taken]], len(need))
        rows = rows[~taken]
    return np.concatenate(chosen) if chosen else np.zeros(0, dtype=np.int64)


def needs(problem: Problem, state: LoadState, ceiling: Floats) -> Floats:
    """N×D: the load each node must lose."""
    return np.where(problem.due > 0, np.maximum(state.held - ceiling, 0.0), 0.0)


def least_bytes(problem: Problem, state: LoadState, movable: Bools, ceiling: Floats, rounds: int = 60) -> float:
    """Bytes that must leave the overfull nodes, whatever the plan: the best dual value found for each node."""
    need = needs(problem, state, ceiling)
    rows = np.flatnonzero(movable & _some(need > 0)[state.owner])
    held = _Held.of(problem, rows, state.owner[rows])
    best = np.zeros(len(need))
    singles = [need * (np.arange(need.shape[1]) == d) for d in range(need.shape[1])]
    for target in (need, *singles):
        prices = _first_prices(held, target)
        for step in range(rounds):
            best = np.maximum(best, _dual_value(held, target, prices))
            prices = _ascend(held, target, prices, power=0.5 / (1 + step / 20))
    return float(best.sum())


@dataclass(frozen=True, slots=True)
class _Held:
    """The tablets that could leave, in columns of their own: each is read a dozen times to find the prices."""

    owner: Ints  # T
    loads: tuple[Floats, ...]  # D columns of T
    sizes: Floats  # T

    @classmethod
    def of(cls, problem: Problem, rows: Ints, owner: Ints) -> "_Held":
        columns = tuple(problem.loads[rows, d] for d in range(len(problem.dimensions)))
        return cls(owner, columns, problem.sizes[rows])

    def totals(self, nodes: int, counted: Bools | None = None) -> Floats:
        """N×D: the loads' sums per owner, of all the rows or of those that count."""
        if not self.loads:
            return np.zeros((nodes, 0))
        columns = self.loads if counted is None else [column * counted for column in self.loads]
        return np.stack([np.bincount(self.owner, weights=column, minlength=nodes) for column in columns], axis=1)

    def worth(self, prices: Floats) -> Floats:
        """T: what each tablet's load is worth in bytes at its node's prices."""
        worth = np.zeros(len(self.owner))
        for d, column in enumerate(self.loads):
            worth += prices[:, d].take(self.owner) * column
        return worth


def _take(problem: Problem, owner: Ints, rows: Ints, need: Floats, side: Floats) -> Bools:
    """Which of the rows leave in this pass: per node the worthiest ones, until one of its needs is met."""
    active = need > _EPSILON
    step = max(1, len(rows) // _SAMPLE)
    held = _Held.of(problem, rows, owner)
    sample = held if step == 1 else _Held.of(problem, rows[::step], owner[::step])
    scaled = np.where(active, need, 0.0) * _kept(owner, sample.owner, len(need))[:, None]
    prices = _first_prices(sample, scaled)
    unit = _bytes_per_load(sample, len(need))
    for _ in range(_ROUNDS):
        prices = _ascend(sample, scaled, prices, power=0.5)
    prices = np.where(active, prices, side * unit)
    worth = held.worth(prices) / np.maximum(held.sizes, 1.0)
    return _prefixes(owner, worth, problem.loads[rows], np.where(active, need, np.inf))


def _prefixes(owner: Ints, worth: Floats, loads: Floats, need: Floats) -> Bools:
    """Per node, the rows in order of worth before any need is met (the row that meets it included)."""
    order = np.argsort(-worth, kind="stable")
    # 16 bits are sorted by digits, in a fraction of the time.
    narrow = np.int16 if len(need) < 1 << 15 else np.int64
    order = order[np.argsort(owner[order].astype(narrow), kind="stable")]
    nodes = owner[order]
    before = np.cumsum(loads[order], axis=0) - loads[order]
    first = np.flatnonzero(np.r_[True, nodes[1:] != nodes[:-1]])
    lengths = np.diff(np.r_[first, len(nodes)])
    before -= np.repeat(before[first], lengths, axis=0)
    taken = np.zeros(len(owner), dtype=np.bool_)
    taken[order] = (before < need[nodes]).all(axis=1)
    return taken


def _some(flags: Bools) -> Bools:
    """Which rows have a flag set."""
    found: Bools = np.any(flags, axis=1)
    return found


def _kept(owner: Ints, sampled: Ints, nodes: int) -> Floats:
    """The part of each node's rows that is in the sample."""
    everything = np.maximum(np.bincount(owner, minlength=nodes), 1)
    share: Floats = np.bincount(sampled, minlength=nodes) / everything
    return share


def _bytes_per_load(held: _Held, nodes: int) -> Floats:
    """N×D: bytes per unit of load on each node, the natural scale of a price."""
    loads = held.totals(nodes)
    total = np.bincount(held.owner, weights=held.sizes, minlength=nodes)[:, None]
    return np.divide(total, loads, out=np.zeros_like(loads), where=loads > 0)


def _first_prices(held: _Held, need: Floats) -> Floats:
    parts = (need > 0).sum(axis=1, keepdims=True)
    scale = np.divide(1.0, parts, out=np.zeros(parts.shape), where=parts > 0)
    prices: Floats = _bytes_per_load(held, len(need)) * scale * (need > 0)
    return prices


def _ascend(held: _Held, need: Floats, prices: Floats, *, power: float) -> Floats:
    """One round of dual ascent: a dimension that is not covered by what is worth moving becomes more expensive."""
    got = held.totals(len(need), held.worth(prices) > held.sizes)
    ratio = np.clip(need / np.maximum(got, _EPSILON), 0.25, 4.0)
    return np.where(need > 0, prices * ratio**power, 0.0)


def _dual_value(held: _Held, need: Floats, prices: Floats) -> Floats:
    """A lower bound of the bytes each node must lose, for any prices: Lagrange's."""
    surplus = np.maximum(held.worth(prices) - held.sizes, 0.0)
    value: Floats = (prices * need).sum(axis=1) - np.bincount(held.owner, weights=surplus, minlength=len(need))
    return value


_CHOICES = 8  # nodes per group: more choose better and cost more
_FILL_EPSILON = 1e-15


@dataclass(slots=True)
class Spread:
    """How many tablets of each table a node holds, and the most it may be given."""

    counts: Ints  # tables×N
    limits: Ints  # tables

    def full(self, tables: Ints, nodes: Ints) -> Bools:
        """Which of these pairs would be over the limit with one more."""
        over: Bools = self.counts[tables, nodes] >= self.limits[tables]
        return over

    def move(self, table: int, source: int, target: int) -> None:
        """Keeps the counts when a tablet changes nodes."""
        self.counts[table, source] -= 1
        self.counts[table, target] += 1


def make_spread(problem: Problem, owner: Ints, spread: float | None) -> Spread | None:
    """The counts that `table_spread` needs; None if it is unset."""
    if spread is None:
        return None
    tables, nodes = len(problem.view.tables), len(problem.nodes)
    counts = np.bincount(problem.tables * nodes + owner, minlength=tables * nodes).reshape(tables, nodes)
    even = counts.sum(axis=1) / max(int(problem.receiving.sum()), 1)
    return Spread(counts.astype(np.int64), np.ceil(even * max(spread, 1.0)).astype(np.int64))


def fill(problem: Problem, state: LoadState, rows: Ints, ceiling: Floats | None, spread: Spread | None) -> Ints:
    """Gives the rows to receiving nodes and returns those that found none.

    With a ceiling no node is filled above it in any dimension; without one only the hard limits hold: zones, disks,
    memory, the spread of a table.
    """
    if not problem.receiving.any() or not len(rows):
        return rows
    order = np.argsort(-(problem.loads[rows] * problem.weights).max(axis=1, initial=0.0), kind="stable")
    return _Filling(problem, state, rows, ceiling, spread).place(rows[order])


class _Filling:
    """One run of `fill`: the receivers' figures, changed round by round and booked in the state at the end."""

    def __init__(
        self, problem: Problem, state: LoadState, rows: Ints, ceiling: Floats | None, spread: Spread | None
    ) -> None:
        self.problem, self.state, self.spread = problem, state, spread
        self.strict = ceiling is not None
        self.receivers = np.flatnonzero(problem.receiving)
        # The rows count as gone from where they are: their room is free.
        rest = state.held - sums(state.owner[rows], problem.loads[rows], len(problem.nodes))
        self.slack = ((problem.due if ceiling is None else ceiling) - rest)[self.receivers]
        self.due = np.maximum(problem.due[self.receivers], _FILL_EPSILON)
        self.disk_room = state.disk_room[self.receivers]
        self.memory_room = state.memory_room[self.receivers]
        self.any_zone = bool(problem.allowed.all())
        self.limit_room = state.limit_room[self.receivers]
        self.counts = state.counts.copy()
        if problem.rivals is not None:
            np.subtract.at(self.counts, (problem.kinds[rows], state.owner[rows]), 1)
        self.bounded = bool(np.isfinite(self.disk_room).any())
        self.in_memory = bool(np.isfinite(self.memory_room).any() and problem.memory.any())

    def place(self, rows: Ints) -> Ints:
        nodes = len(self.receivers)
        groups = max(1, nodes // _CHOICES) if len(rows) > 4 * nodes else 1
        target = np.full(len(rows), -1, dtype=np.int64)
        for start in range(0, len(rows), groups):
            batch = rows[start : start + groups]
            target[start : start + groups] = self._round(batch, self._deal(groups)[: len(batch)])
        placed = target >= 0
        self._book(rows[placed], self.receivers[target[placed]])
        return rows[~placed]

    def _deal(self, groups: int) -> Ints:
        """The receivers by room, dealt like cards: group g has the g-th best, the (g + groups)-th best, and so on."""
        room = (self.slack / self.due).min(axis=1, initial=np.inf)
        order = np.argsort(-room, kind="stable")
        depth = len(order) // groups
        return order[: depth * groups].reshape(depth, groups).T

    def _round(self, batch: Ints, choices: Ints) -> Ints:
        """The receiver of each row of the batch, -1 if its group has none. All receivers are different."""
        loads = self.problem.loads[batch]
        slack = self.slack[choices]
        fits = self._fits(batch, choices, loads[:, None, :], slack)
        cost = np.where(fits, self._cost(loads[:, None, :], slack, choices), np.inf)
        best = cost.argmin(axis=1)
        at = np.arange(len(batch))
        placed = np.isfinite(cost[at, best])
        chosen = choices[at, best]
        used = chosen[placed]
        self.slack[used] -= loads[placed]
        self.disk_room[used] -= self.problem.sizes[batch[placed]]
        self.memory_room[used] -= self.problem.memory[batch[placed]]
        if self.problem.limits:
            self.limit_room[used] -= self.problem.limited[batch[placed]]
        if self.problem.rivals is not None:
            self.counts[self.problem.kinds[batch[placed]], self.receivers[used]] += 1
        if self.spread is not None:
            self.spread.counts[self.problem.tables[batch[placed]], self.receivers[used]] += 1
        return np.where(placed, chosen, -1)

    def _cost(self, loads: Floats, slack: Floats, choices: Ints) -> Floats:
        """The part of a node's room that the tablet would use up; without a ceiling, how tight the node would be."""
        if self.strict:
            return cast(Floats, (loads / np.maximum(slack, _FILL_EPSILON)).sum(axis=2))
        tight = ((loads - slack) / self.due[choices] * self.problem.weights).max(axis=2, initial=-np.inf)
        return np.where(np.isfinite(tight), tight, 0.0)

    def _fits(self, batch: Ints, choices: Ints, loads: Floats, slack: Floats) -> Bools:
        problem, nodes = self.problem, self.receivers[choices]
        fits: Bools = nodes != self.state.owner[batch][:, None]
        if self.strict:
            fits &= (loads <= slack).all(axis=2)
        if not self.any_zone:
            fits &= problem.allowed[problem.kinds[batch][:, None], nodes]
        fits &= self._rules_fit(batch, choices)
        if self.bounded:
            fits &= problem.sizes[batch][:, None] <= self.disk_room[choices]
        if self.in_memory:
            memory = problem.memory[batch][:, None]
            fits &= (memory <= self.memory_room[choices]) | (memory == 0)
        if self.spread is not None:
            fits &= ~self.spread.full(problem.tables[batch][:, None], nodes)
        return fits

    def _rules_fit(self, batch: Ints, choices: Ints) -> Bools:
        problem = self.problem
        fits = np.ones(choices.shape, dtype=np.bool_)
        if problem.limits:
            fits &= within(problem.limited[batch][:, None, :], self.limit_room[choices])
        if problem.rivals is not None:
            fits &= ~crowded(problem, self.counts)[problem.kinds[batch][:, None], self.receivers[choices]]
        return fits

    def _book(self, rows: Ints, targets: Ints) -> None:
        problem, state, nodes = self.problem, self.state, len(self.problem.nodes)
        sources = state.owner[rows]
        moved = np.column_stack([problem.loads[rows], problem.sizes[rows], problem.memory[rows]])
        change = sums(targets, moved, nodes) - sums(sources, moved, nodes)
        state.held += change[:, :-2]
        state.disk_room -= change[:, -2]
        state.memory_room -= change[:, -1]
        if problem.limits:
            moved = problem.limited[rows]
            state.limit_room -= sums(targets, moved, nodes) - sums(sources, moved, nodes)
        if problem.rivals is not None:
            np.subtract.at(state.counts, (problem.kinds[rows], sources), 1)
            np.add.at(state.counts, (problem.kinds[rows], targets), 1)
        state.owner[rows] = targets
        if self.spread is not None:
            np.subtract.at(self.spread.counts, (problem.tables[rows], sources), 1)
