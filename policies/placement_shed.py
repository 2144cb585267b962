"""Which tablets leave nodes that hold too much, so that as few bytes as possible are moved. Columns only.

Each overfull node must lose a certain load in one or more dimensions: a covering problem. A price per dimension and
node, found by a few rounds of dual ascent, says what a unit of that load is worth in bytes; tablets leave in the order
of worth per byte until some need is met, then the prices are found again for what remains. `least_bytes` is the dual's
own value: no choice of tablets needs fewer bytes.
"""

from dataclasses import dataclass

import numpy as np

from balancer.policies.bundle_view import Floats, Ints
from balancer.policies.placement_loads import Bools, LoadState, Problem, excess, sums

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
