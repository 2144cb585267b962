"""Where tablets that have left their nodes go: to the nodes with the most room for what these tablets carry.

Many at a time: the receiving nodes are dealt into as many groups as a round places tablets, each group with one node
of every level of room, and each tablet takes the node of its group that it fills least. A node gets at most one tablet
per round, so every check is exact. With few tablets there is one group of all nodes, and this is plain best fit.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np

from balancer.policies.bundle_view import Floats, Ints
from balancer.policies.placement_limits import crowded, within
from balancer.policies.placement_loads import Bools, LoadState, Problem, sums

_CHOICES = 8  # nodes per group: more choose better and cost more
_EPSILON = 1e-15


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
        self.due = np.maximum(problem.due[self.receivers], _EPSILON)
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
            return cast(Floats, (loads / np.maximum(slack, _EPSILON)).sum(axis=2))
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
