"""The objective itself: what one node's load costs, given what it should hold.

The squared weighted excess of every dimension, plus an extra price (a fourth power) for what is above the due share:
the tightest resource decides. Both the steps of a plan and the picks within the budgets must make the sum smaller;
since it is the same sum each time, nothing goes round in circles.
"""

import numpy as np

from balancer.policies.bundle_view import Floats, Ints
from balancer.policies.placement_loads import LoadState, Problem

_OVERLOAD = 16.0  # from a quarter above the due share on, overload counts more than the square
# From here on the extra price grows linearly: if it were steeper, one tablet too hot for any node would drive all the
# cold ones off its node, for next to nothing.
_STEEPEST = 0.5
_JOINT, _PRESSING = 0.5, 0.25  # what joint moves must gain, as a part of what each would have to gain alone
_OVERHEAD = 0.5  # what every move costs in addition to its bytes, as a part of an average tablet's


def node_costs(problem: Problem, state: LoadState, nodes: Ints, change: Floats) -> Floats:
    """…×nodes: what each of the nodes would cost after a change of its load (…×nodes×dimensions).

    A draining node has no share of its own: everything it holds counts as excess over a node's share.
    """
    over = state.held[nodes] + change
    over -= problem.due[nodes]
    over *= problem.scales[nodes]
    above = np.maximum(over, 0.0)
    bend = np.minimum(above, _STEEPEST)
    bent = _OVERLOAD * bend
    bent *= bend
    bent *= bend
    bent *= 4.0 * above - 3.0 * bend
    over *= over
    bent += over
    costs: Floats = np.einsum("...nd,nd->...n", bent, problem.units[nodes])
    return costs


def move_gains(problem: Problem, state: LoadState, rows: Ints, targets: Ints) -> Floats:
    """How much smaller the objective becomes by each of these moves on its own."""
    sources, loads = state.owner[rows], problem.loads[rows]
    nothing = np.zeros_like(loads)
    before = node_costs(problem, state, sources, nothing) + node_costs(problem, state, targets, nothing)
    after = node_costs(problem, state, sources, -loads) + node_costs(problem, state, targets, loads)
    gains: Floats = before - after
    return gains


def move_overhead(sizes: Floats) -> float:
    """Bytes that every move counts on top of its own: of two ways to copy as much, the one with fewer moves wins."""
    return _OVERHEAD * float(sizes.mean()) + 1.0 if len(sizes) else 1.0


def joint_floor(carried: Floats, floors: Floats, min_gain: float, *, pressing: bool) -> Floats:
    """The least gain that is worth moves that help only together: a part of what each would have to gain alone.

    `carried` is the load of all of them (…×dimensions). Only the difference of the loads helps; counted by that alone,
    two large tablets would change places for nothing; counted in full, an overload of less than a tablet would stay.
    `pressing`: a node over the start threshold takes part, which would otherwise be stuck there.
    """
    floor: Floats = (_PRESSING if pressing else _JOINT) * min_gain * 2.0 * (carried * floors).sum(axis=-1)
    return floor
