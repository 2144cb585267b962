"""The objective: all dimensions at once, the tightest resource decides, as few bytes as possible.

`plan` calls `balance` on the state that urgent moves and YT's movers have left. Moves start when some node is
`start_threshold` above its due share (or that far below it, on average over the dimensions) and continue, over as many
plans as the budgets require, until no node is more than `stop_threshold` above it. Large bundles are brought close in
bulk, by columns; then, as for small ones, single moves, exchanges and chains do the rest. For a small bundle the last
act is to look once more as the next plan will, and to find nothing: planning again from its result gives nothing,
unless its effort has run out. For a large one the next plan, which begins in bulk, may find something.
"""

from dataclasses import dataclass, replace

import numpy as np

from balancer.policies.budgets import bytes_per_second
from balancer.policies.bundle_view import Floats, Ints
from balancer.policies.options import BundleOptions, PlacementOptions
from balancer.policies.placement_fill import Spread, fill
from balancer.policies.placement_loads import Bools, LoadState, Problem, excess, tension, underuse
from balancer.policies.placement_refine import Able, Effort, Goal, Refinement
from balancer.policies.placement_shed import choose_rows
from balancer.policies.placement_thrift import save_bytes

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
    problem: Problem, state: LoadState, able: Able, options: BundleOptions, spread: Spread | None = None
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
    able: Able
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
