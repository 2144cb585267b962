"""Moves that cannot wait for a threshold: off draining nodes, off full disks, apart where a table is too dense.

`plan_moves` runs these first. If nothing else is possible they respect only the hard limits: a drained node must become
empty even if the others then hold more than their share.

Tables whose vbuckets are placed by a sharding function: the function's choice, as far as nodes can take it.

`policies/plan/wanted` calls it for the tables of `Decider.FUNCTION`. The function sees every node that stays, even one
that is down or closed for the moment: it must not redistribute everything because a node was away for a minute."""

import re

import numpy as np

from balancer.policies.options import BundleOptions
from balancer.policies.placement.balance import ceilings
from balancer.policies.placement.bulk import Spread, fill
from balancer.policies.placement.candidates import LAST_HARD, Decider, Standings, decider, is_cooling, violations
from balancer.policies.placement.movers import able_nodes
from balancer.policies.placement.problem import Bools, LoadState, Problem
from balancer.policies.placement.sharding import place
from balancer.policies.view import Ints, NodeCondition


def movable_in_need(standing: Standings) -> Bools:
    """T: what may move when its node is drained or full: switches do not count then. Rests do: a tablet that has just
    been moved is not carried on at once, from one node that fills up to the next."""
    able: Bools = ((standing == 0) | (standing > LAST_HARD)) & ~is_cooling(standing)
    return able


def drain(problem: Problem, state: LoadState, able: Bools, options: BundleOptions, spread: Spread | None) -> Ints:
    """Empties draining nodes; returns the tablets that no node can take."""
    draining = problem.conditions(NodeCondition.DRAINING)
    rows = np.flatnonzero(able & draining[state.owner])
    return _place(problem, state, rows, options, spread)


def relieve_disks(
    problem: Problem, state: LoadState, able: Bools, options: BundleOptions, spread: Spread | None
) -> Ints:
    """Takes the largest tablets off nodes whose disks are too full, until they are below the share that reopens."""
    settings = options.placement
    if not settings.evacuate_full_nodes:
        return np.zeros(0, dtype=np.int64)
    chosen = [np.zeros(0, dtype=np.int64)]
    for at, node in enumerate(problem.nodes):
        if node.disk_capacity and node.condition in (NodeCondition.ACTIVE, NodeCondition.CLOSED):
            surplus = problem.disk_used[at] - node.disk_capacity * settings.reopen_at_disk_share
            # What was begun is finished: a node closed for its disk gives until it can be opened again.
            if state.disk_room[at] < 0 or (node.closed_by_daemon and surplus >= 0):
                chosen.append(_largest(problem, np.flatnonzero(able & (state.owner == at)), float(surplus) + 1.0))
    return _place(problem, state, np.concatenate(chosen), options, spread)


def obey_rules(problem: Problem, state: LoadState, able: Bools, options: BundleOptions, spread: Spread | None) -> Ints:
    """Takes tablets off nodes that a rule forbids them; returns those that no node can take."""
    rows = violations(problem, state)
    return _place(problem, state, rows[able[rows]], options, spread)


def spread_out(problem: Problem, state: LoadState, free: Bools, options: BundleOptions, spread: Spread | None) -> None:
    """Takes the smallest tablets of a table off nodes that have more of them than `table_spread` allows."""
    if spread is None:
        return
    chosen = [np.zeros(0, dtype=np.int64)]
    for table, node in np.argwhere(spread.counts > spread.limits[:, None]):
        rows = np.flatnonzero(free & (problem.tables == table) & (state.owner == node))
        order = np.argsort(problem.sizes[rows], kind="stable")
        chosen.append(rows[order][: int(spread.counts[table, node] - spread.limits[table])])
    _place(problem, state, np.concatenate(chosen), options, spread)


def _largest(problem: Problem, rows: Ints, surplus: float) -> Ints:
    """The fewest tablets that make up the surplus; the last one is the smallest that suffices."""
    rows = rows[np.argsort(-problem.sizes[rows], kind="stable")]
    sums = np.cumsum(problem.sizes[rows])
    full = int(np.searchsorted(sums, surplus))
    if full >= len(rows):
        return rows
    rest = surplus - (sums[full - 1] if full else 0.0)
    last = full + int(np.flatnonzero(problem.sizes[rows[full:]] >= rest)[-1])
    return np.append(rows[:full], rows[last])


def _place(problem: Problem, state: LoadState, rows: Ints, options: BundleOptions, spread: Spread | None) -> Ints:
    if problem.dimensions:
        rows = fill(problem, state, rows, ceilings(problem, options.placement.stop_threshold), spread)
    return fill(problem, state, rows, None, spread)


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
    wished = options.table(problem.view.tables[table].name)
    numbers = problem.view.tablets.remainders[problem.rows[rows]].astype(np.uint64)
    weighted = [(problem.nodes[at].id, problem.nodes[at].weight) for at in nodes]
    places = place(wished.placement, numbers, weighted, wished.virtual_nodes)
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
