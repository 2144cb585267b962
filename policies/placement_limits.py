"""A node's hard limits in addition to disk and memory: zones and rules, tablets kept apart, capacities for rates.

Everything that gives a tablet to a node asks `may_take`; `violations` are the tablets that a rule wants elsewhere.
"""

import numpy as np

from balancer.policies.bundle_view import Floats, Ints
from balancer.policies.placement_loads import Bools, LoadState, Problem


def may_take(problem: Problem, state: LoadState, rows: Ints, nodes: Ints) -> Bools:
    """Rows×nodes (each row's own, if there are several): what rules and capacities for rates allow."""
    across = nodes[None, :] if nodes.ndim == 1 else nodes
    able: Bools = problem.allowed[problem.kinds[rows][:, None], across]
    if problem.limits:
        able = able & within(problem.limited[rows][:, None, :], state.limit_room[across])
    if problem.rivals is not None:
        able = able & ~crowded(problem, state.counts)[problem.kinds[rows][:, None], across]
    return able


def within(more: Floats, room: Floats) -> Bools:
    """Whether this much more (…×K) fits into the room; what adds nothing always does."""
    return np.asarray(((more <= room) | (more <= 0)).all(axis=-1), np.bool_)


def crowded(problem: Problem, counts: Ints) -> Bools:
    """Kinds×N: whether a node has a tablet that one of this kind must not share a node with."""
    if problem.rivals is None:
        return np.zeros(problem.allowed.shape, dtype=np.bool_)
    found: Bools = problem.rivals.astype(np.int64) @ counts > 0
    return found


def violations(problem: Problem, state: LoadState) -> Ints:
    """Tablets that must not be where they are. Of those that must not share a node, the largest may stay."""
    outside = ~problem.allowed[problem.kinds, state.owner]
    if problem.rivals is None:
        return np.flatnonzero(outside)
    near = np.flatnonzero(~outside & crowded(problem, state.counts)[problem.kinds, state.owner])
    kept: dict[int, set[int]] = {}
    for row in near[np.lexsort((near, -problem.sizes[near]))].tolist():
        mine = kept.setdefault(int(state.owner[row]), set())
        if any(problem.rivals[problem.kinds[row], kind] for kind in mine):
            outside[row] = True
        else:
            mine.add(int(problem.kinds[row]))
    return np.flatnonzero(outside)


def over_capacity(problem: Problem, state: LoadState) -> Ints:
    """Nodes that do more of something than they can."""
    if not problem.limits:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero((state.limit_room < -1e-9 * (1.0 + np.abs(state.limit_room))).any(axis=1))
