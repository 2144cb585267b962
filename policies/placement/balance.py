"""The objective: all dimensions at once, the tightest resource decides, as few bytes as possible.

`plan` calls `balance` on the state that urgent moves and YT's movers have left. Moves start when some node is
`start_threshold` above its due share (or that far below it, on average over the dimensions) and continue, over as many
plans as the budgets require, until no node is more than `stop_threshold` above it. Large bundles are brought close in
bulk, by columns; then, as for small ones, single moves, exchanges and chains do the rest. For a small bundle the last
act is to look once more as the next plan will, and to find nothing: planning again from its result gives nothing,
unless its effort has run out. For a large one the next plan, which begins in bulk, may find something.

The same balance for fewer bytes: what a plan need not move stays, and what it must is swapped for something smaller.

`balance` asks once its steps are done. Each of those was the best at its moment; seen from the end, some tablets left
their node for nothing, some could have been a smaller one that carries as much, and some made room for others that
could have gone on instead. This makes no node tighter than the stop threshold, or than it is; only a node that is
neither within the threshold nor the worst may become a hair tighter, if that saves a whole copy.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from balancer.policies.budgets import bytes_per_second
from balancer.policies.options import BundleOptions, PlacementOptions
from balancer.policies.placement.bulk import Spread, choose_rows, fill
from balancer.policies.placement.candidates import crowded, may_take, within
from balancer.policies.placement.problem import Bools, LoadState, Problem, excess, tension, underuse
from balancer.policies.placement.refine import Effort, Goal, MoveMask, Refinement
from balancer.policies.view import Floats, Ints

_BULK_TABLETS = 200  # fewer are planned by single steps from the start: each is the best there is
_BULK_WORTH = 0.5  # least part of the strain that a round in bulk takes away, for the part of all bytes it copies
_ROUNDS = 20  # until one finds nothing: each makes the objective smaller, and few are needed
_BULK_ROUNDS = 3  # of a large bundle: what they leave, the next plan finds


def is_unbalanced(problem: Problem, held: Floats, above: float, below: float) -> bool:
    """Whether some node is that far above its due share, or that far below it on average over the dimensions."""
    return bool((tension(problem, held) > above).any() or (underuse(problem, held) > below).any())


def moves_from(problem: Problem, settings: PlacementOptions) -> float:
    """How far above its due share a node must be for moves: less once they have begun, so that they come to an end."""
    return settings.stop_threshold if problem.view.balancing > 0 else settings.start_threshold


def balance(
    problem: Problem, state: LoadState, able: MoveMask, options: BundleOptions, spread: Spread | None = None
) -> bool:
    """Changes the state until it is balanced, or as balanced as the movable tablets allow; says whether it had to."""
    start = options.placement.start_threshold
    if not is_unbalanced(problem, state.held, moves_from(problem, options.placement), start):
        return False
    home = state.owner.copy()
    work = _Work(problem, able, options, Effort.of(problem), spread)
    bulk = len(problem.ids) > _BULK_TABLETS
    if bulk:
        begun = state.copy()
        _bulk(problem, state, work.movable(state), settings=options.placement, spread=spread)
        work.refine(state)
        if not _worthwhile(problem, begun, state, options.placement.stop_threshold):
            work.restore(state, begun)
    work.come_to_rest(state, confirm=not bulk)
    save_bytes(problem, state, home, work.movable(state), settings=options.placement, spread=spread)
    if not bulk:
        # What has stayed at home may open the way to a new step. It is made at once: otherwise the next plan would
        # begin with it, and the one after that again.
        work.come_to_rest(state, confirm=True)
    return True


@dataclass(slots=True)
class _Work:
    """What the rounds of one plan have in common."""

    problem: Problem
    able: MoveMask
    options: BundleOptions
    effort: Effort
    spread: Spread | None
    refined: tuple[Ints, Bools] | None = None  # the owners that single steps led to, and what was allowed to move then

    def come_to_rest(self, state: LoadState, *, confirm: bool) -> None:
        """Rounds of single steps until there is nothing to do. To `confirm` that, the last begins as the next plan
        would, with fresh sums; with many tablets that would cost as much as all before it."""
        settings = self.options.placement
        for _ in range(_ROUNDS if confirm else _BULK_ROUNDS):
            if confirm:
                state.recount(self.problem)
            elif self._is_done(state):
                return
            if not is_unbalanced(self.problem, state.held, settings.stop_threshold, settings.start_threshold):
                return
            if not self.refine(state) or self.effort.steps <= 0:
                return

    def _is_done(self, state: LoadState) -> bool:
        """Whether single steps have led here, and nothing else may move now."""
        if self.refined is None or not np.array_equal(self.refined[0], state.owner):
            return False
        return np.array_equal(self.refined[1], self.movable(state))

    def restore(self, state: LoadState, before: LoadState) -> None:
        """Undoes what was done since."""
        if self.spread is not None:
            np.subtract.at(self.spread.counts, (self.problem.tables, state.owner), 1)
            np.add.at(self.spread.counts, (self.problem.tables, before.owner), 1)
        state.take(before)

    def movable(self, state: LoadState) -> Bools:
        """T: what may move and would be worth its bytes."""
        return self.able.movable & pays_back(self.problem, state, self.options)

    def refine(self, state: LoadState) -> int:
        """Single steps until none helps; returns how many."""
        settings = self.options.placement
        goal = Goal(
            settings.stop_threshold,
            settings.start_threshold,
            settings.min_gain,
            bytes_per_second(self.problem.view, self.options),
            settings.payback_horizon,
        )
        able = replace(self.able, movable=self.movable(state), company=self.able.movable)
        steps = Refinement(self.problem, state, able, goal, spread=self.spread, effort=self.effort).run()
        self.refined = state.owner.copy(), able.movable
        return steps


def _worthwhile(problem: Problem, before: LoadState, after: LoadState, stop: float) -> bool:
    """Whether a round in bulk was worth its bytes: it must take away a part of the strain, for the part it copies."""
    was, left = (_strain(problem, state, stop) for state in (before, after))
    copied = float(problem.sizes[before.owner != after.owner].sum()) / max(float(problem.sizes.sum()), 1.0)
    return was - left >= _BULK_WORTH * copied * was


def _strain(problem: Problem, state: LoadState, stop: float) -> float:
    """How much too much, and too little, the nodes have in total."""
    over, under = tension(problem, state.held) - stop, underuse(problem, state.held)
    return float(np.maximum(over, 0.0).sum() + np.maximum(under, 0.0).sum())


def pays_back(problem: Problem, state: LoadState, options: BundleOptions) -> Bools:
    """T: whether a move of the tablet from where it is would be worth its bytes.

    Relief of a disk or a memory budget always is. Otherwise the part of a node's load that goes away, over the horizon,
    must exceed the seconds of copying.
    """
    over: Bools = np.any(excess(problem, state.held)[:, ~problem.kept] > 0, axis=1)
    seconds = payback_seconds(problem, options)
    pays: Bools = over[state.owner] | (seconds <= options.placement.payback_horizon)
    return pays


def payback_seconds(problem: Problem, options: BundleOptions) -> Floats:
    """T: seconds of copying, divided by the part of a node's load that the tablet carries off with it."""
    carried = carried_share(problem)
    copying = problem.sizes / bytes_per_second(problem.view, options)
    return np.divide(copying, carried, out=np.where(copying > 0, np.inf, 0.0), where=carried > 0)


def carried_share(problem: Problem) -> Floats:
    """T: the part of an average node's load (rates and numbers, not bytes) that each tablet is, at its heaviest."""
    kept = problem.kept
    nodes = max(int((problem.due > 0).any(axis=1).sum()), 1)
    weighted = problem.loads[:, kept] * problem.weights[kept] * nodes
    share: Floats = weighted.max(axis=1, initial=0.0)
    return share


def ceilings(problem: Problem, threshold: float) -> Floats:
    """N×D: what a node may hold and count as balanced. A dimension with half the weight may deviate twice as far."""
    ceiling: Floats = problem.due * (1.0 + threshold / problem.weights)
    return ceiling


def _bulk(
    problem: Problem, state: LoadState, movable: Bools, settings: PlacementOptions, spread: Spread | None
) -> None:
    """Brings a large bundle close: overfull nodes lose the cheapest tablets that make the difference."""
    ceiling = ceilings(problem, settings.stop_threshold * 0.99)
    donors = np.minimum(ceiling, _levels(problem, state, settings.start_threshold))
    rows = choose_rows(problem, state, movable, donors)
    fill(problem, state, rows, ceiling, spread)


def _levels(problem: Problem, state: LoadState, threshold: float) -> Floats:
    """N×D: how far the fuller nodes must come down to lift those that have far too little."""
    hungry = underuse(problem, state.held) > threshold
    if not hungry.any():
        return np.full_like(problem.due, np.inf)
    wanted = (np.maximum(problem.due * (1.0 - threshold) - state.held, 0.0) * hungry[:, None]).sum(axis=0)
    low, high = np.full(len(wanted), -threshold), np.full(len(wanted), 1.0)
    for _ in range(40):
        middle = (low + high) / 2
        given = (np.maximum(state.held - problem.due * (1.0 + middle), 0.0) * (problem.due > 0)).sum(axis=0)
        enough = given >= wanted
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    levels: Floats = problem.due * (1.0 + low)
    return levels


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
