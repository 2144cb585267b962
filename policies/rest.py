"""Why an idle bundle is not balanced any better: which node stays full, and what would free it.

`plan` asks when a plan proposes nothing and nothing runs. Only a bundle without such a node, or one that no placement
of its tablets could improve, is called `balanced`.
"""

import numpy as np

from balancer.policies.day_loads import dimension_text
from balancer.policies.figures import share_text
from balancer.policies.move_reasons import level_text, tightest
from balancer.policies.options import BundleOptions
from balancer.policies.placement_candidates import STANDINGS
from balancer.policies.placement_loads import LoadState, Problem
from balancer.policies.reasons import MEANINGS
from balancer.policies.wanted_moves import Moves


def stuck_text(moves: Moves, state: LoadState, node: int, options: BundleOptions) -> str:
    """One sentence about a node that stays above the threshold: how far, why, and what would free it."""
    problem = moves.problem
    dimension, over = tightest(problem, state, node)
    rows = np.flatnonzero(state.owner == node)
    free = rows[moves.standing[rows] == 0]
    name = f"{problem.nodes[node].id} stays {level_text(over)} of {dimension_text(dimension)}"
    if not len(free):
        kept = np.bincount(moves.standing[rows], minlength=len(STANDINGS))
        code = STANDINGS[int(kept.argmax())] if len(rows) else None
        return f"{name}: none of its {len(rows)} tablets may move" + (f", {MEANINGS[code]}" if code else "")
    return (
        f"{name}: no move, exchange or chain of its {len(free)} free tablets gains what its bytes are worth; "
        f"{_relief(problem, state, node, options)}"
    )


def _relief(problem: Problem, state: LoadState, node: int, options: BundleOptions) -> str:
    """What would free the node: smaller tablets, or another node."""
    dimension, _ = tightest(problem, state, node)
    at = problem.dimensions.index(dimension)
    rows = np.flatnonzero(state.owner == node)
    heaviest = int(rows[problem.loads[rows, at].argmax()])
    share = float(problem.loads[heaviest, at] / max(float(problem.due[node, at]), 1e-300))
    if share <= options.placement.stop_threshold:
        return f"a lower min_gain than {options.placement.min_gain:g} or another node would free it"
    what = f"tablet {int(problem.ids[heaviest])} alone is {share_text(share)} of its share"
    return f"smaller tablets would free it: {what}"
