"""Moves that help only together: exchanges, and chains whose first move alone would make things worse.

`order` asks when no single move of the plan helps any more. From a move that may start, those that gain most beside it
are added, one by one, until the whole set is worth its load; then what it can do without is left out again. The set is
ordered so that each of its moves is the best of those that are left: the states in between are as good as they can be.
"""

from dataclasses import dataclass

import numpy as np

from balancer.policies.bundle_view import Ints
from balancer.policies.objective import joint_floor, move_gains
from balancer.policies.placement_loads import LoadState, tension
from balancer.policies.wanted_moves import Moves

_MOST = 8  # moves of one set
_STARTS = 24  # moves from which a set is looked for


@dataclass(frozen=True, slots=True)
class Joint:
    """A set of moves in the order in which they should be made, and what all of them gain."""

    rows: tuple[int, ...]
    gain: float


def joint_moves(moves: Moves, state: LoadState, rows: Ints, able: Ints, min_gain: float) -> Joint | None:
    """The first set found that is worth it, begun by one of `able`; None where there is none."""
    if len(rows) < 2 or not len(able):
        return None
    gains = move_gains(moves.problem, state, able, moves.after.owner[able])
    for first in able[np.argsort(-gains, kind="stable")][:_STARTS].tolist():
        found = _grown(moves, state, rows, first, min_gain)
        if found is not None:
            return found
    return None


def _grown(moves: Moves, state: LoadState, rows: Ints, first: int, min_gain: float) -> Joint | None:
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
        if _worthwhile(moves, (state, changed), chosen, total, min_gain):
            return _trimmed(moves, state, chosen, min_gain)
    return None


def _near(moves: Moves, rows: Ints, chosen: list[int]) -> Ints:
    """Other moves that touch a node of the chosen ones: the gains of all others are their own, whatever is chosen."""
    before, after = moves.before.owner, moves.after.owner
    nodes = np.concatenate([before[chosen], after[chosen]])
    touching = np.isin(before[rows], nodes) | np.isin(after[rows], nodes)
    return rows[touching & ~np.isin(rows, chosen)]


def _worthwhile(
    moves: Moves, states: tuple[LoadState, LoadState], chosen: list[int], total: float, min_gain: float
) -> bool:
    """Whether the set gains enough for the load that it carries, and leaves no node worse than the worst was."""
    problem = moves.problem
    floor = float(joint_floor(problem.loads[chosen].sum(axis=0), problem.floors, min_gain))
    if total <= max(floor, 1e-12):
        return False
    before, after = (tension(problem, one.held).max(initial=0.0) for one in states)
    return bool(after <= before + 1e-12)


def _trimmed(moves: Moves, state: LoadState, chosen: list[int], min_gain: float) -> Joint:
    """The set without what it can do without, in order."""
    for row in chosen[1:-1]:
        fewer = [one for one in chosen if one != row]
        changed = state.copy()
        total = sum(_move(moves, changed, one) for one in fewer)
        if _worthwhile(moves, (state, changed), fewer, total, min_gain):
            chosen = fewer
    changed = state.copy()
    ordered, total = [chosen[0]], _move(moves, changed, chosen[0])
    rest = chosen[1:]
    while rest:
        at = np.array(rest)
        best = rest[int(move_gains(moves.problem, changed, at, moves.after.owner[at]).argmax())]
        total += _move(moves, changed, best)
        ordered.append(best)
        rest.remove(best)
    return Joint(tuple(ordered), total)


def _move(moves: Moves, state: LoadState, row: int) -> float:
    """Makes a move and says what it gains."""
    target = int(moves.after.owner[row])
    gain = float(move_gains(moves.problem, state, np.array([row]), np.array([target]))[0])
    state.move(moves.problem, row, target)
    return gain
