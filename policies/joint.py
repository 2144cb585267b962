"""Moves that help only together: exchanges, and chains whose first move alone would make things worse.

`order` asks when no single move of the plan helps any more. Starting from a move that may start, those that gain most
in addition are added, one by one, until the whole set is worth its load; then unnecessary moves are dropped again: a
move too many keeps its nodes' slots from what would relieve them. The set begins with the move, and continues in the
order, that leave the worst node least bad in between.
"""

from dataclasses import dataclass

import numpy as np

from balancer.policies.bundle_view import Ints
from balancer.policies.objective import joint_floor, move_gains
from balancer.policies.options import PlacementOptions
from balancer.policies.placement_loads import LoadState, tension
from balancer.policies.wanted_moves import Moves

_MOST = 8  # moves of one set
_STARTS = 24  # moves from which a search for a set starts


@dataclass(frozen=True, slots=True)
class Joint:
    """A set of moves in the order in which they should be made, and what all of them gain."""

    rows: tuple[int, ...]
    gain: float


def joint_moves(moves: Moves, state: LoadState, rows: Ints, able: Ints, settings: PlacementOptions) -> Joint | None:
    """The first set found that is worth it, begun by one of `able`; None if there is none."""
    if len(rows) < 2 or not len(able):
        return None
    gains = move_gains(moves.problem, state, able, moves.after.owner[able])
    for first in able[np.argsort(-gains, kind="stable")][:_STARTS].tolist():
        found = _grown(moves, state, rows, first, settings)
        if found is not None:
            chosen = _trimmed(moves, state, found, able, settings)
            begun = [_ordered(moves, state, chosen, row) for row in chosen if row in able]
            return min(begun, key=lambda one: one[0])[1]
    return None


def _grown(moves: Moves, state: LoadState, rows: Ints, first: int, settings: PlacementOptions) -> list[int] | None:
    changed = state.copy()
    chosen, total = [first], _move(moves, changed, first)
    while len(chosen) < _MOST:
        near = _near(moves, rows, chosen)
        if not len(near):
            return None
        gains = move_gains(moves.problem, changed, near, moves.after.owner[near])
        best = int(near[gains.argmax()])
        chosen.append(best)
        total += _move(moves, changed, best)
        if _worthwhile(moves, (state, changed), chosen, total, settings):
            return chosen
    return None


def _near(moves: Moves, rows: Ints, chosen: list[int]) -> Ints:
    """Other moves that touch a node of the chosen ones: the gains of all others are their own, whatever is chosen."""
    before, after = moves.before.owner, moves.after.owner
    nodes = np.concatenate([before[chosen], after[chosen]])
    touching = np.isin(before[rows], nodes) | np.isin(after[rows], nodes)
    return rows[touching & ~np.isin(rows, chosen)]


def _worthwhile(
    moves: Moves, states: tuple[LoadState, LoadState], chosen: list[int], total: float, settings: PlacementOptions
) -> bool:
    """Whether the set gains enough for the load that it carries, and leaves no node worse than the worst was."""
    problem = moves.problem
    sources = tension(problem, states[0].held)[moves.before.owner[chosen]]
    pressing = bool(sources.max() > settings.start_threshold)
    carried = problem.loads[chosen].sum(axis=0)
    floor = float(joint_floor(carried, problem.floors, settings.min_gain, pressing=pressing))
    if total <= max(floor, 1e-12):
        return False
    before, after = (tension(problem, one.held).max(initial=0.0) for one in states)
    return bool(after <= before + 1e-12)


def _trimmed(moves: Moves, state: LoadState, chosen: list[int], able: Ints, settings: PlacementOptions) -> list[int]:
    """The set without unnecessary moves; one of those that may start stays in it."""
    for row in chosen[:-1]:
        fewer = [one for one in chosen if one != row]
        if not np.isin(fewer, able).any():
            continue
        changed = state.copy()
        total = sum(_move(moves, changed, one) for one in fewer)
        if _worthwhile(moves, (state, changed), fewer, total, settings):
            chosen = fewer
    return chosen


def _ordered(moves: Moves, state: LoadState, chosen: list[int], first: int) -> tuple[float, Joint]:
    """The set in order, begun by one of it, and how bad the worst node is in between."""
    changed, worst = state.copy(), 0.0
    ordered, total, rest = [first], _move(moves, changed, first), [row for row in chosen if row != first]
    while rest:
        worst = max(worst, float(tension(moves.problem, changed.held).max(initial=0.0)))
        at = np.array(rest)
        best = rest[int(move_gains(moves.problem, changed, at, moves.after.owner[at]).argmax())]
        total += _move(moves, changed, best)
        ordered.append(best)
        rest.remove(best)
    return worst, Joint(tuple(ordered), total)


def _move(moves: Moves, state: LoadState, row: int) -> float:
    """Makes a move and says what it gains."""
    target = int(moves.after.owner[row])
    gain = float(move_gains(moves.problem, state, np.array([row]), np.array([target]))[0])
    state.move(moves.problem, row, target)
    return gain
