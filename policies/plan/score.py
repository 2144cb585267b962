"""How balanced a bundle is, from 0 to 100, and the best that a plan within the budgets could make of it.

The score is the mean load divided by the tightest node's, in its tightest dimension (a dimension with half the weight
counts half), times the part of the load that is not on draining nodes: 100 is even, 50 is a node with twice its share.
"""

import numpy as np

from balancer.policies.budgets import Admission
from balancer.policies.placement.problem import Bools, LoadState, Problem, sums, tension
from balancer.policies.view import Floats, NodeCondition

_CROWDED = 100  # tablets per node from which one more or less makes no real difference


def score(problem: Problem, state: LoadState) -> float:
    """The score of a state."""
    worst = float(tension(problem, state.held).max(initial=0.0))
    return _score(worst, _stranded_share(problem, state.held))


def bound(problem: Problem, state: LoadState, movable: Bools, admission: Admission) -> float:
    """No plan within the budgets can reach a better score than this.

    The most a node can lose is its heaviest free tablets, as many as may leave it at once; and some node must hold the
    heaviest tablet, and the mean.
    """
    if not problem.dimensions:
        return 100.0
    tight = tension(problem, state.held)
    floor = max(0.0, _heaviest_tablet(problem))
    slots = admission.free_total
    for node in np.argsort(-tight, kind="stable").tolist():
        if tight[node] <= floor:
            break
        able = min(slots, admission.free_slots(problem.nodes[node].id))
        floor = max(floor, _lightest(problem, state, node, movable, able))
    return _score(floor, _left_draining(problem, state, movable, admission, slots))


def limit(problem: Problem) -> float:
    """No placement that leaves pinned tablets where they are has a better score, whatever else is moved.

    A node keeps its pinned tablets; some node must hold the mean, some node the heaviest tablet; and with N nodes of
    one size, of any k·N + 1 tablets some node holds at least k + 1: no fewer than the k + 1 lightest of the k·N + 1
    heaviest.
    """
    if not problem.dimensions:
        return 100.0
    return _score(max(0.0, _heaviest_tablet(problem), _crowding(problem), _pinned(problem)), 0.0)


def _pinned(problem: Problem) -> float:
    """The tension of the node with the heaviest pinned tablets, if it held nothing else."""
    if not problem.view.pinned:
        return -1.0
    rows = np.flatnonzero(np.isin(problem.ids, np.array(sorted(problem.view.pinned), dtype=np.int64)))
    return float(tension(problem, sums(problem.home[rows], problem.loads[rows], len(problem.nodes))).max(initial=-1.0))


def _crowding(problem: Problem) -> float:
    """The least tension that the number of tablets forces on some node, by the pigeonhole principle."""
    due = problem.due[problem.receiving]
    if not len(due) or not np.allclose(due, due[0], rtol=1e-9) or not problem.receiving.all():
        return -1.0
    nodes, tablets = len(due), len(problem.ids)
    if tablets > _CROWDED * nodes:
        return -1.0
    times = np.arange(1, (tablets - 1) // nodes + 1)
    if not len(times):
        return -1.0
    sums = np.cumsum(np.sort(problem.loads, axis=0)[::-1], axis=0)
    last, first = times * nodes, times * nodes - times - 1
    least = sums[last] - np.where(first[:, None] >= 0, sums[np.maximum(first, 0)], 0.0)
    return float(((least.max(axis=0) / due[0] - 1.0) * problem.weights).max(initial=-1.0))


def _score(worst: float, stranded: float) -> float:
    return 100.0 / (1.0 + max(worst, 0.0)) * (1.0 - min(stranded, 1.0))


def _stranded_share(problem: Problem, held: Floats) -> float:
    """The part of the load on nodes that should hold nothing, in the dimension where it is largest."""
    draining = problem.conditions(NodeCondition.DRAINING)
    return float(held[draining].sum(axis=0).max(initial=0.0)) if draining.any() else 0.0


def _left_draining(problem: Problem, state: LoadState, movable: Bools, admission: Admission, slots: int) -> float:
    """What must stay on draining nodes: everything except the heaviest tablets that may leave now."""
    rest = np.zeros(len(problem.dimensions))
    for node in np.flatnonzero(problem.conditions(NodeCondition.DRAINING)).tolist():
        able = min(slots, admission.free_slots(problem.nodes[node].id))
        rest += state.held[node] - _top(problem, state, node, movable, able)
    return max(0.0, float(rest.max(initial=0.0)))


def _lightest(problem: Problem, state: LoadState, node: int, movable: Bools, slots: int) -> float:
    """The node's tension if, dimension by dimension, its heaviest tablets left."""
    due = problem.due[node]
    if not (due > 0).all():
        return 0.0
    held = state.held[node] - _top(problem, state, node, movable, slots)
    return float(((held / due - 1.0) * problem.weights).max())


def _top(problem: Problem, state: LoadState, node: int, movable: Bools, slots: int) -> Floats:
    """D: the most load that this many of the node's free tablets carry, in each dimension separately."""
    rows = np.flatnonzero(movable & (state.owner == node))
    if not slots or not len(rows):
        return np.zeros(len(problem.dimensions))
    loads = np.sort(problem.loads[rows], axis=0)[::-1]
    top: Floats = loads[:slots].sum(axis=0)
    return top


def _heaviest_tablet(problem: Problem) -> float:
    """The tension of the roomiest node if it held nothing but the heaviest tablet."""
    roomiest = problem.due.max(axis=0)
    heaviest = problem.loads.max(axis=0, initial=0.0)
    return float(((heaviest / np.maximum(roomiest, 1e-300) - 1.0) * problem.weights).max(initial=-1.0))
