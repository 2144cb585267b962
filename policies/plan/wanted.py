"""All moves of a bundle, from every source: urgent ones first, then the mover in charge of each table.

`plan` and the explanations call `plan_moves`. It says where every tablet should live in the end; the budgets decide how
much of that starts now.

Which nodes should be closed to new data, and which of those the daemon closed may be opened again.

Two thresholds each, so that a node does not flap: it closes at the upper one and opens below the lower one. What an
operator has closed stays closed. A node is closed for its load only if that lasts: a burst is over before the first
tablet has gone elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from balancer.policies.day.dimensions import plans_by_profile
from balancer.policies.options import BundleOptions
from balancer.policies.placement.balance import balance
from balancer.policies.placement.bulk import make_spread
from balancer.policies.placement.candidates import Decider, Standings, deciders, is_resting, standings, switches
from balancer.policies.placement.fit import fit_capacities
from balancer.policies.placement.movers import move_by_count, move_by_metric, move_in_memory
from balancer.policies.placement.problem import (
    Bools,
    LoadState,
    Problem,
    build_problem,
    initial_state,
    node_shares,
    sums,
)
from balancer.policies.placement.refine import MoveMask
from balancer.policies.placement.urgent import (
    drain,
    follow_functions,
    movable_in_need,
    obey_rules,
    relieve_disks,
    spread_out,
)
from balancer.policies.reasons import Taken, share_text
from balancer.policies.view import BundleView, Floats, Ints, NodeChange, NodeCondition, NodeView

CODES: tuple[Taken, ...] = tuple(Taken)
URGENT = (Taken.DRAIN, Taken.DISK_FULL, Taken.RULE, Taken.CAPACITY)


@dataclass(slots=True)
class Moves:
    """Where everything is, where it should be, and why."""

    problem: Problem
    before: LoadState
    after: LoadState
    standing: Standings
    codes: npt.NDArray[np.int8] = field(init=False)  # T: index into CODES, -1 for tablets that stay
    stranded: Ints = field(init=False)  # rows that should leave at once but that no node can take
    overfull: Ints = field(init=False)  # nodes over a capacity for reads or writes that no placement found relieves
    started: bool = False
    """Whether some node was far enough from its share for the objective to start."""

    def __post_init__(self) -> None:
        self.codes = np.full(len(self.problem.ids), -1, dtype=np.int8)
        self.stranded = self.overfull = np.zeros(0, dtype=np.int64)

    def rows(self) -> Ints:
        """The tablets that should move."""
        return np.flatnonzero(self.after.owner != self.before.owner)

    def urgent_rows(self) -> Ints:
        """Those of them that cannot wait, and those that should not wait but must."""
        rows = self.rows()
        urgent = rows[np.isin(self.codes[rows], [CODES.index(code) for code in URGENT])]
        return np.union1d(urgent, self.stranded)

    def for_balance(self) -> Ints:
        """Those of them that the objective wants."""
        moving = (self.after.owner != self.before.owner) & (self.codes == CODES.index(Taken.LOAD))
        return np.flatnonzero(moving)

    def code(self, row: int) -> Taken:
        """Why this tablet should move."""
        return CODES[int(self.codes[row])]

    def take_over(self, owner: Ints) -> None:
        """Moves what another state, of the same tablets and nodes, has elsewhere."""
        for row in np.flatnonzero(owner != self.after.owner).tolist():
            self.after.move(self.problem, row, int(owner[row]))

    def mark(self, previous: Ints, code: Taken) -> None:
        """Notes the reason for all that has changed since `previous`; an urgent reason stays."""
        changed = self.after.owner != previous
        urgent = np.isin(self.codes, [CODES.index(known) for known in URGENT])
        self.codes[changed & ~urgent] = CODES.index(code)


def plan_moves(problem: Problem, options: BundleOptions, reserved: Bools | None = None) -> Moves:
    """Runs everything that moves tablets. `reserved` tablets have another action in this plan and stay."""
    before = initial_state(problem)
    moves = Moves(problem, before, before.copy(), standings(problem, options))
    unreserved = np.ones(len(problem.ids), dtype=np.bool_) if reserved is None else ~reserved
    _urgent(moves, options, unreserved)
    _obey(moves, options, unreserved)
    # What leaves a draining node may still be sent elsewhere, to where it fits best; what relieves a disk stays put.
    kept = np.isin(moves.codes, [CODES.index(Taken.DISK_FULL), CODES.index(Taken.CAPACITY)])
    free = (moves.standing == 0) & unreserved & ~kept
    moves.after.disk_room -= headroom(problem, options)
    _movers(moves, options, free)
    _objective(moves, options, free)
    return moves


def headroom(problem: Problem, options: BundleOptions) -> Floats:
    """N: bytes that balancing leaves free below the share that closes a node, so that it may grow without closing."""
    settings = options.placement
    share = max(0.0, settings.close_at_disk_share - settings.reopen_at_disk_share)
    return np.array([share * (node.disk_capacity or 0.0) for node in problem.nodes])


def _urgent(moves: Moves, options: BundleOptions, unreserved: Bools) -> None:
    """By the current load: what must leave at once must not find its new node busy."""
    if not plans_by_profile(moves.problem.view, options) or not _has_need(moves.problem):
        _leave(moves, moves.problem, moves.after, options, unreserved)
        return
    problem = build_problem(replace(moves.problem.view, profile=None), options)
    state = initial_state(problem)
    _leave(moves, problem, state, options, unreserved)


def _has_need(problem: Problem) -> bool:
    """Whether any node is drained, full, or was closed."""
    condition = problem.conditions(NodeCondition.DRAINING, NodeCondition.CLOSED)
    return bool(condition.any() or (problem.disk_room < 0).any())


def _leave(moves: Moves, problem: Problem, state: LoadState, options: BundleOptions, unreserved: Bools) -> None:
    able = movable_in_need(moves.standing)
    spread = make_spread(problem, state.owner, options.placement.table_spread)
    fixed = deciders(problem, options, Decider.FUNCTION)
    previous = moves.after.owner.copy()
    follow_functions(problem, state, able & fixed & problem.conditions(NodeCondition.DRAINING)[state.owner], options)
    stranded = [drain(problem, state, able, options, spread)]
    moves.take_over(state.owner)
    moves.mark(previous, Taken.DRAIN)
    previous = moves.after.owner.copy()
    stranded.append(relieve_disks(problem, state, able & ~fixed & unreserved, options, spread))
    moves.take_over(state.owner)
    moves.mark(previous, Taken.DISK_FULL)
    moves.stranded = np.unique(np.concatenate(stranded))


def _obey(moves: Moves, options: BundleOptions, unreserved: Bools) -> None:
    """Off nodes that rules forbid, then off nodes that do more than they can."""
    problem, state = moves.problem, moves.after
    able = movable_in_need(moves.standing) & unreserved & ~deciders(problem, options, Decider.FUNCTION)
    previous = state.owner.copy()
    spread = make_spread(problem, state.owner, options.placement.table_spread)
    moves.stranded = np.union1d(moves.stranded, obey_rules(problem, state, able, options, spread))
    moves.mark(previous, Taken.RULE)
    if problem.limits:
        previous = state.owner.copy()
        moves.overfull = fit_capacities(problem, state, able)
        moves.mark(previous, Taken.CAPACITY)


def _movers(moves: Moves, options: BundleOptions, free: Bools) -> None:
    problem, state = moves.problem, moves.after
    mine = {who: deciders(problem, options, who) for who in Decider}
    previous = state.owner.copy()
    follow_functions(problem, state, free & mine[Decider.FUNCTION], options)
    moves.mark(previous, Taken.FUNCTION)
    previous = state.owner.copy()
    move_in_memory(problem, state, mine[Decider.IN_MEMORY], free & mine[Decider.IN_MEMORY], options)
    moves.mark(previous, Taken.IN_MEMORY)
    previous = state.owner.copy()
    move_by_count(problem, state, free & mine[Decider.COUNT], options)
    moves.mark(previous, Taken.COUNT)
    previous = state.owner.copy()
    move_by_metric(problem, state, free & mine[Decider.METRIC], options)
    moves.mark(previous, Taken.METRIC)


def _objective(moves: Moves, options: BundleOptions, free: Bools) -> None:
    problem, state = moves.problem, moves.after
    mine = free & deciders(problem, options, Decider.OBJECTIVE)
    spread = make_spread(problem, state.owner, options.placement.table_spread)
    previous = state.owner.copy()
    spread_out(problem, state, mine, options, spread)
    moves.mark(previous, Taken.SPREAD)
    previous = state.owner.copy()
    # A resting tablet of a table that is switched off will not move afterwards either: nothing waits for it.
    resting = is_resting(moves.standing) & (switches(problem, options) == 0)
    resting &= deciders(problem, options, Decider.OBJECTIVE)
    moves.started = balance(problem, state, MoveMask(mine, resting), options, spread)
    moves.mark(previous, Taken.LOAD)


def node_changes(problem: Problem, options: BundleOptions) -> tuple[NodeChange, ...]:
    """What should change, by node id."""
    rates = _relative_rates(problem, options)
    changes = []
    for at, node in enumerate(problem.nodes):
        full, hot = disk_share(problem, at), float(rates[at])
        if node.condition is NodeCondition.ACTIVE:
            change = _closing(node.id, full, hot if _lasts(problem.view, node.id, options) else 0.0, options)
        elif node.condition is NodeCondition.CLOSED and node.closed_by_daemon:
            change = _reopening(node.id, full, hot, options)
        else:
            change = None
        if change is not None:
            changes.append(change)
    return tuple(changes)


def overloaded_since(view: BundleView, options: BundleOptions, before: Mapping[str, float]) -> dict[str, float]:
    """Node → since when it is overloaded, at this poll; `before` is what the previous poll said.

    From the view alone, because every poll asks: a plan that starts nothing is not made again each time.
    """
    rates = view.tablets.write_rate + view.tablets.read_rate
    held = np.bincount(view.tablets.node, weights=rates, minlength=len(view.nodes)).astype(np.float64, copy=False)
    counted = np.array([node.condition not in _ABSENT for node in view.nodes], dtype=np.bool_)
    relative = _relative(held, counted, view.nodes, options)
    over = np.flatnonzero(relative >= options.placement.close_at_load).tolist()
    return {view.nodes[at].id: before.get(view.nodes[at].id, view.now) for at in over}


def _lasts(view: BundleView, node: str, options: BundleOptions) -> bool:
    since = view.overloaded_since.get(node)
    return since is not None and view.now - since >= options.placement.close_after


def disk_share(problem: Problem, at: int) -> float | None:
    """The part of a node's disk that is in use, with what is in flight; None: its size is unknown."""
    capacity = problem.nodes[at].disk_capacity
    if not capacity:
        return None
    return float(problem.disk_used[at]) / capacity


def _closing(node: str, full: float | None, hot: float, options: BundleOptions) -> NodeChange | None:
    settings = options.placement
    if full is not None and full >= settings.close_at_disk_share:
        limit = share_text(settings.close_at_disk_share)
        reason = f"its disk is {share_text(full)} full: at {limit} a node gets no new data"
        return NodeChange(node, NodeCondition.CLOSED, "disk-full", reason)
    if hot >= settings.close_at_load:
        reason = (
            f"it does {hot:.1f} times its share of reads and writes: at {settings.close_at_load:.1f} it gets no more"
        )
        return NodeChange(node, NodeCondition.CLOSED, "too-hot", reason)
    return None


def _reopening(node: str, full: float | None, hot: float, options: BundleOptions) -> NodeChange | None:
    settings = options.placement
    if (full is None or full < settings.reopen_at_disk_share) and hot < settings.reopen_at_load:
        disk = "" if full is None else f"its disk is {share_text(full)} full and "
        reason = f"{disk}it does {hot:.1f} times its share of reads and writes: it can take new data again"
        return NodeChange(node, NodeCondition.ACTIVE, "reopened", reason)
    return None


def _relative_rates(problem: Problem, options: BundleOptions) -> Floats:
    """N: each node's reads and writes relative to its share; 0 if there is too little load to speak of heat."""
    columns = problem.view.tablets
    rates = (columns.write_rate + columns.read_rate)[problem.rows]
    held = sums(problem.home, rates[:, None], len(problem.nodes))[:, 0]
    return _relative(held, ~problem.conditions(*_ABSENT), problem.nodes, options)


_ABSENT = (NodeCondition.DOWN, NodeCondition.DRAINING)


def _relative(held: Floats, counted: Bools, nodes: tuple[NodeView, ...], options: BundleOptions) -> Floats:
    shares = node_shares(nodes, "write_rate") * counted
    due = held[counted].sum() * shares / max(float(shares.sum()), 1e-300)
    relative = np.divide(held, due, out=np.zeros_like(held), where=due > 0)
    return np.where(held >= options.heat.min_rows_per_second, relative, 0.0)
