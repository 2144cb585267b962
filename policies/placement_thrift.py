"""The same balance for fewer bytes: what a plan need not move stays, and what it must is swapped for something smaller.

`placement` asks once its steps are done. Each of those was the best at its moment; seen from the end, some tablets left
their node for nothing, some could have been a smaller one that carries as much, and some made room for others that
could have gone on instead. This makes no node tighter than the stop threshold, or than it is; only a node that is
neither within the threshold nor the worst may become a hair tighter, if that saves a whole copy.
"""

from dataclasses import dataclass, field

import numpy as np

from balancer.policies.bundle_view import Floats, Ints
from balancer.policies.options import PlacementOptions
from balancer.policies.placement_fill import Spread
from balancer.policies.placement_limits import crowded, may_take, within
from balancer.policies.placement_loads import Bools, LoadState, Problem

_MOST_TABLETS = 5_000  # of bundles in which it is worth the time: on a node with many tablets they are all alike
_MOST_MOVES = 500
_SWEEPS = 4
_HAIR = 0.005  # tablets that differ by less of a node's share count as alike


def save_bytes(
    problem: Problem, state: LoadState, home: Ints, movable: Bools, *, settings: PlacementOptions, spread: Spread | None
) -> None:
    """Changes the state; `home` is where everything was before the steps."""
    if len(problem.ids) <= _MOST_TABLETS:
        _Thrift(problem, state, home, movable, settings=settings, spread=spread).run()


@dataclass(slots=True)
class _Thrift:
    """One run over a state."""

    problem: Problem
    state: LoadState
    home: Ints
    movable: Bools
    settings: PlacementOptions
    spread: Spread | None
    tightest: Floats = field(init=False)  # N: how tight each node may become
    emptiest: Floats = field(init=False)  # N: and how empty, on average over the dimensions

    def __post_init__(self) -> None:
        levels = self._levels(np.arange(len(self.problem.nodes)), self.state.held)
        levels[~(self.problem.due > 0).any(axis=1)] = 0.0  # a node that is emptied is not the worst: it has no share
        self.tightest = _limits(levels.max(axis=1), self.settings.stop_threshold)
        self.emptiest = _limits(self._emptiness(levels), self.settings.start_threshold)

    def run(self) -> None:
        """Sweeps over the moves, the largest first, until one changes nothing."""
        for _ in range(_SWEEPS):
            rows = np.flatnonzero(self.state.owner != self.home)
            rows = rows[np.argsort(-self.problem.costs[rows], kind="stable")][:_MOST_MOVES]
            changed = [self._stays(row) or self._is_replaced(row) for row in rows.tolist()]
            if not any(changed):
                return

    def _stays(self, row: int) -> bool:
        """Leaves a tablet where it was, if its node has room for it after all."""
        back, here = int(self.home[row]), int(self.state.owner[row])
        load = self.problem.loads[[row]]
        if (
            not self._limits_fit(row, back)
            or here == back
            or not self._may_return(row)
            or self._is_full(row, back)
            or not self._fits(back, load, here, -load)[0]
        ):
            return False
        self._move(row, back)
        return True

    def _is_replaced(self, row: int) -> bool:
        """Leaves a tablet where it was and moves another one instead, which costs less or has to move anyway."""
        back, here = int(self.home[row]), int(self.state.owner[row])
        if here == back or not self._may_return(row):
            return False
        others = self._others(row, back, here)
        prices = self._prices(others, here)
        cheaper = prices < self.problem.costs[row]
        others, prices = others[cheaper], prices[cheaper]
        change = self.problem.loads[[row]] - self.problem.loads[others]
        able = self._fits(back, change, here, -change)
        if not able.any():
            return False
        other = int(others[np.where(able, prices, np.inf).argmin()])
        self._move(row, back)
        self._move(other, here)
        return True

    def _may_return(self, row: int) -> bool:
        """Whether its node may keep it: one that is being emptied, or that a rule forbids, may not."""
        problem, back = self.problem, int(self.home[row])
        if problem.rivals is not None and crowded(problem, self.state.counts)[problem.kinds[row], back]:
            return False
        return bool((problem.due[back] > 0).any()) and bool(problem.allowed[problem.kinds[row], back])

    def _is_full(self, row: int, back: int) -> bool:
        """Whether its node has as many tablets of its table by now as it may have."""
        table = self.problem.tables[[row]]
        return self.spread is not None and bool(self.spread.full(table, np.array([back]))[0])

    def _limits_fit(self, row: int, back: int) -> bool:
        problem = self.problem
        return not problem.limits or bool(within(problem.limited[row], self.state.limit_room[back]))

    def _others(self, row: int, back: int, here: int) -> Ints:
        """Tablets on the node that may go instead, as far as zones, room and the spread of tables allow."""
        problem, state = self.problem, self.state
        others = np.flatnonzero((state.owner == back) & self.movable)
        tables = problem.tables[others]
        able = may_take(problem, state, others, np.array([here]))[:, 0] & problem.receiving[here]
        if problem.limits:
            more = problem.limited[others] - problem.limited[row]
            able &= within(more, state.limit_room[here]) & within(-more, state.limit_room[back])
        if self.spread is not None:
            able &= tables == problem.tables[row]
        for amounts, room in ((problem.sizes, state.disk_room), (problem.memory, state.memory_room)):
            more = amounts[others] - amounts[row]
            able &= ((more <= 0) | (more <= room[here])) & ((more >= 0) | (-more <= room[back]))
        found: Ints = others[able]
        return found

    def _prices(self, others: Ints, here: int) -> Floats:
        """What it costs to have each of them there: nothing if it has to move anyway, less if it stays."""
        at_home = self.state.owner[others] == self.home[others]
        returns = self.home[others] == here
        costs = self.problem.costs[others]
        prices: Floats = np.where(at_home, costs, np.where(returns, -costs, 0.0))
        return prices

    def _fits(self, one: int, change: Floats, other: int, opposite: Floats) -> Bools:
        """Which of the changes make neither of two nodes tighter, or emptier, than it may be."""
        return self._level_fits(one, change) & self._level_fits(other, opposite)

    def _level_fits(self, node: int, change: Floats) -> Bools:
        after = self._levels(np.array([node]), self.state.held[node] + change)
        fits: Bools = (after.max(axis=1) <= self.tightest[node]) & (self._emptiness(after) <= self.emptiest[node])
        return fits

    def _levels(self, nodes: Ints, held: Floats) -> Floats:
        """…×D: how far above their due share nodes would be with these loads, weighted."""
        due = np.maximum(self.problem.due[nodes], 1e-300)
        levels: Floats = (held / due - 1.0) * self.problem.weights
        return levels

    def _emptiness(self, levels: Floats) -> Floats:
        weights = float((self.problem.weights * self.problem.portions).sum())
        below: Floats = -(levels * self.problem.portions).sum(axis=1) / max(weights, 1e-300)
        return below

    def _move(self, row: int, target: int) -> None:
        if self.spread is not None:
            self.spread.move(int(self.problem.tables[row]), int(self.state.owner[row]), target)
        self.state.move(self.problem, row, target)


def _limits(now: Floats, threshold: float) -> Floats:
    """N: how far each node may go: to the threshold, or a hair further than it is and no further than the worst."""
    limits: Floats = np.maximum(threshold, np.minimum(now + _HAIR, now.max(initial=0.0)))
    return limits
