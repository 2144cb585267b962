"""The objective: all dimensions at once, the tightest resource decides, as few bytes as possible.

`plan` calls `balance` on the state that urgent moves and YT's movers have left. Moves start when some node is
`start_threshold` above its due share (or that far below it, on average over the dimensions) and go on, over as many
plans as the budgets make of it, until no node is more than `stop_threshold` above it. Large bundles are brought close
in bulk, by columns; then, as for small ones, single moves, exchanges and chains do the rest. It repeats until nothing
changes: planning again from its result gives nothing.
"""

from dataclasses import replace

import numpy as np

from balancer.policies.budgets import bytes_per_second
from balancer.policies.bundle_view import Floats
from balancer.policies.options import BundleOptions, PlacementOptions
from balancer.policies.placement_fill import Spread, fill
from balancer.policies.placement_loads import Bools, LoadState, Problem, excess, tension, underuse
from balancer.policies.placement_refine import Able, Effort, Goal, Refinement
from balancer.policies.placement_shed import choose_rows

_BULK_TABLETS = 200  # fewer are planned by single steps from the start: each is the best there is
_ROUNDS = 6


def is_unbalanced(problem: Problem, held: Floats, above: float, below: float) -> bool:
    """Whether some node is that far above its due share, or that far below it on average over the dimensions."""
    return bool((tension(problem, held) > above).any() or (underuse(problem, held) > below).any())


def moves_from(problem: Problem, settings: PlacementOptions) -> float:
    """How far above its due share a node must be for moves: less once they have begun, so that they come to an end."""
    return settings.stop_threshold if problem.view.balancing else settings.start_threshold


def balance(
    problem: Problem, state: LoadState, able: Able, options: BundleOptions, spread: Spread | None = None
) -> bool:
    """Changes the state until it is balanced, or as balanced as the movable tablets allow; whether there was need."""
    settings = options.placement
    start, stop = settings.start_threshold, settings.stop_threshold
    if not is_unbalanced(problem, state.held, moves_from(problem, settings), start):
        return False
    effort = Effort.of(problem)
    for _ in range(_ROUNDS):
        before = state.owner.copy()
        movable = able.movable & pays_back(problem, state, options)
        if len(problem.ids) > _BULK_TABLETS:
            _bulk(problem, state, movable, settings, spread)
        refinement = Refinement(
            problem,
            state,
            replace(able, movable=movable),
            Goal(stop, start, settings.min_gain, bytes_per_second(problem.view, options), settings.payback_horizon),
            spread=spread,
            effort=effort,
        )
        refinement.run()
        if not is_unbalanced(problem, state.held, stop, start) or np.array_equal(before, state.owner):
            break
    return True


def pays_back(problem: Problem, state: LoadState, options: BundleOptions) -> Bools:
    """T: whether a move of the tablet from where it is would be worth its bytes.

    Relief of a disk or a memory budget always is. Otherwise the part of a node's load that goes away, over the horizon,
    must exceed the seconds of copying.
    """
    over: Bools = np.any(excess(problem, state.held)[:, ~problem.rates()] > 0, axis=1)
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
    kept = problem.rates()
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
