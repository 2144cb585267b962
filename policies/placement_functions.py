"""Tables whose vbuckets are placed by a sharding function: the function's choice, as far as nodes can take it.

`wanted_moves` calls it for the tables of `Decider.FUNCTION`. The function sees every node that stays, even one that is
down or closed for the moment: it must not redistribute everything because a node was away for a minute.
"""

import re

import numpy as np

from balancer.policies.bundle_view import Ints, NodeCondition
from balancer.policies.movers import able_nodes
from balancer.policies.options import BundleOptions
from balancer.policies.placement_candidates import Decider, decider
from balancer.policies.placement_loads import Bools, LoadState, Problem
from balancer.policies.sharding import place


def follow_functions(problem: Problem, state: LoadState, mine: Bools, options: BundleOptions) -> None:
    """Moves `mine` to where their functions put them; what has no room there stays."""
    for at, table in enumerate(problem.view.tables):
        if decider(options, table) is not Decider.FUNCTION:
            continue
        rows = np.flatnonzero((problem.tables == at) & mine)
        wanted = function_targets(problem, options, rows)
        for row, target in zip(rows.tolist(), wanted.tolist(), strict=True):
            if target != state.owner[row] and able_nodes(problem, state, row)[target]:
                state.move(problem, row, target)


def function_targets(problem: Problem, options: BundleOptions, rows: Ints) -> Ints:
    """The nodes that the function of the rows' table gives them; if it has no node to choose, they stay."""
    if not len(rows):
        return rows
    table = int(problem.tables[rows[0]])
    kind = int(problem.kinds[rows[0]])
    nodes = [at for at in natural_order(problem) if problem.allowed[kind, at] and _stays(problem, at)]
    if not nodes:
        return problem.home[rows]
    function = options.table(problem.view.tables[table].name).placement
    numbers = problem.view.tablets.remainders[problem.rows[rows]].astype(np.uint64)
    places = place(function, numbers, [(problem.nodes[at].id, problem.nodes[at].weight) for at in nodes])
    return np.array(nodes, dtype=np.int64)[places]


def natural_order(problem: Problem) -> list[int]:
    """Nodes by name in natural order: n2 before n10, so that a new last node is the last of the list."""
    return sorted(range(len(problem.nodes)), key=lambda at: _natural(problem.nodes[at].id))


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


def _stays(problem: Problem, at: int) -> bool:
    node = problem.nodes[at]
    return node.condition is not NodeCondition.DRAINING and node.weight > 0
