"""YT's three movers, each with its own start and stop rule, over the same state as the objective.

`plan_moves` runs the one in charge of a table; a table has only one, so they cannot fight. With nodes of equal weight
they decide as YT does; with other weights the loads are taken relative to the weights. Each runs until it finds nothing
more, so that planning again finds nothing either.
"""

import numpy as np

from balancer.policies.metric import Metric, parse_metric
from balancer.policies.options import BundleOptions, GroupOptions
from balancer.policies.placement.candidates import Decider, decider, group_of, may_take
from balancer.policies.placement.problem import Bools, LoadState, Problem, keeps, node_shares
from balancer.policies.view import Floats, Ints, NodeCondition

_ROUNDS = 100


def relative_weights(problem: Problem, dimension: str) -> Floats:
    """N: what each node should hold of a dimension, relative to the receiving nodes' mean: 1 where all are equal."""
    shares = node_shares(problem.nodes, dimension)
    mean = shares[problem.receiving].mean() if problem.receiving.any() else 1.0
    return shares / mean if mean > 0 else np.ones(len(shares))


def move_in_memory(problem: Problem, state: LoadState, mine: Bools, free: Bools, options: BundleOptions) -> None:
    """Starts at the hard threshold, ends at the soft one: from the fullest node, tablets by id, to the emptiest.

    `mine` are the tablets of in-memory tables, `free` those of them that may move.
    """
    sizes = np.where(problem.memory > 0, problem.memory, problem.sizes)
    for _ in range(_ROUNDS):
        if not _InMemory(problem, state, mine, free, sizes).run(options):
            return


class _InMemory:
    """One round of the in-memory mover."""

    def __init__(self, problem: Problem, state: LoadState, mine: Bools, free: Bools, sizes: Floats) -> None:
        self.problem, self.state, self.free, self.sizes = problem, state, free, sizes
        self.weights = relative_weights(problem, "memory")
        self.cells = problem.conditions(NodeCondition.ACTIVE) | np.array(
            [node.condition is NodeCondition.CLOSED and not keeps(node) for node in problem.nodes], dtype=np.bool_
        )
        self.load = np.bincount(state.owner[mine], weights=sizes[mine], minlength=len(problem.nodes)) / self.weights
        self.moves = 0

    def run(self, options: BundleOptions) -> int:
        receiving = np.flatnonzero(self.problem.receiving)
        cells = np.flatnonzero(self.cells)
        if not len(receiving) or self.load[cells].max() <= 0:
            return 0
        fullest, emptiest = self.load[cells].max(), self.load[receiving].min()
        if (fullest - emptiest) / fullest <= options.balancer.hard_in_memory_cell_balance_threshold:
            return 0
        mean = float((self.load * self.weights)[cells].sum() // self.weights[cells].sum())
        for cell in cells[np.argsort(-self.load[cells], kind="stable")]:
            self._relieve(int(cell), mean, options.balancer.soft_in_memory_cell_balance_threshold)
        return self.moves

    def _relieve(self, cell: int, mean: float, soft: float) -> None:
        for row in np.flatnonzero(self.free & (self.state.owner == cell)):
            emptiest = self._emptiest(int(row))
            if emptiest is None:
                continue
            here, there = self.load[cell], self.load[emptiest]
            if here <= mean or there >= mean or (here - there) / here <= soft:
                return
            if self.sizes[row] / self.weights[emptiest] < here - there:
                self.state.move(self.problem, int(row), emptiest)
                self.load[cell] -= self.sizes[row] / self.weights[cell]
                self.load[emptiest] += self.sizes[row] / self.weights[emptiest]
                self.moves += 1

    def _emptiest(self, row: int) -> int | None:
        able = np.flatnonzero(able_nodes(self.problem, self.state, row))
        return int(able[self.load[able].argmin()]) if len(able) else None


def able_nodes(problem: Problem, state: LoadState, row: int) -> Bools:
    """N: nodes that may be given this tablet: receiving, in its zones, with room on disk and in memory."""
    able = may_take(problem, state, np.array([row]), np.arange(len(problem.nodes)))[0]
    able &= problem.receiving & (state.disk_room >= problem.sizes[row])
    if problem.memory[row] > 0:
        able = able & (state.memory_room >= problem.memory[row])
    able[state.owner[row]] = False
    nodes: Bools = able
    return nodes


def move_by_count(problem: Problem, state: LoadState, free: Bools, options: BundleOptions) -> None:
    """Per table every node gets an equal number; those that have most now keep the remainder."""
    weights = relative_weights(problem, "tablets")
    for at, table in enumerate(problem.view.tables):
        if decider(options, table) is Decider.COUNT:
            mine = problem.tables == at
            used = problem.allowed[np.unique(problem.kinds[mine])].any(axis=0)
            _even_out(problem, state, mine, free, weights * (problem.receiving & used))


def _even_out(problem: Problem, state: LoadState, mine: Bools, free: Bools, weights: Floats) -> None:
    cells = weights > 0
    rows = np.flatnonzero(mine & cells[state.owner])
    count = np.bincount(state.owner[rows], minlength=len(cells))
    if not len(rows):
        return
    quota = quotas(count, weights, len(rows))
    spare = rows[free[rows]]
    spare = spare[np.argsort(problem.sizes[spare], kind="stable")]
    for row in spare.tolist():
        source = int(state.owner[row])
        if count[source] <= quota[source]:
            continue
        able = np.flatnonzero(able_nodes(problem, state, row) & (count < quota))
        if len(able):
            target = int(able[(quota - count)[able].argmax()])
            state.move(problem, row, target)
            count[source] -= 1
            count[target] += 1


def quotas(count: Ints, weights: Floats, total: int) -> Ints:
    """How many tablets each node gets of `total`, now holding `count`."""
    share = weights / weights.sum() * total
    quota: Ints = np.floor(share + 1e-9).astype(np.int64)
    rest = total - int(quota.sum())
    # A node of weight 0 keeps nothing; among the others those that are furthest above their quota keep one more.
    order = np.argsort(np.where(weights > 0, quota - count, np.iinfo(np.int64).max), kind="stable")
    quota[order[:rest]] += 1
    return quota


def move_by_metric(problem: Problem, state: LoadState, free: Bools, options: BundleOptions) -> None:
    """Each group with a metric: the move that lowers the sum of squares most, again and again."""
    for name, group in metric_groups(problem, options).items():
        metric = parse_metric(group.metric)
        mine = np.array([group_of(options, table.name)[0] == name for table in problem.view.tables], dtype=np.bool_)
        mine &= np.array([decider(options, table) is Decider.METRIC for table in problem.view.tables], dtype=np.bool_)
        rows = np.flatnonzero(mine[problem.tables])
        if not resting(problem, options, metric, rows):
            values = metric.evaluate(problem.view.tablets, problem.rows[rows])[problem.rows]
            left = group.max_action_count
            for part in _parts(problem, rows, group):
                left -= _Squares(problem, state, part, values).run(free, group, left)


def _parts(problem: Problem, rows: Ints, group: GroupOptions) -> list[Ints]:
    """What is spread evenly on its own: the whole group, or each of its tables."""
    if not group.per_table_uniform:
        return [rows]
    tables = problem.tables[rows]
    return [rows[tables == table] for table in np.unique(tables)]


def metric_groups(problem: Problem, options: BundleOptions) -> dict[str, GroupOptions]:
    """The groups of this bundle's tables that have a metric, by name."""
    groups = dict(group_of(options, table.name) for table in problem.view.tables if options.metric(table.name))
    return {name: groups[name] for name in sorted(groups) if groups[name].metric}


def resting(problem: Problem, options: BundleOptions, metric: Metric, rows: Ints) -> bool:
    """Whether a group waits until its rates have settled after an action of its own."""
    if not metric.uses_rates:
        return False
    mine = set(problem.ids[rows].tolist()) & set(problem.view.history)
    recent = [problem.view.history[tablet].last_migrated for tablet in mine]
    return any(at is not None and problem.view.now < at + options.budgets.cool_down for at in recent)


class _Squares:
    """The greedy algorithm for one group."""

    def __init__(self, problem: Problem, state: LoadState, rows: Ints, values: Floats) -> None:
        self.problem, self.state, self.rows, self.values = problem, state, rows, values
        self.weights = relative_weights(problem, "tablets")
        load = np.bincount(state.owner[rows], weights=values[rows], minlength=len(problem.nodes))
        self.load = load / self.weights

    def run(self, free: Bools, group: GroupOptions, most: int) -> int:
        """Moves at most this many tablets; returns how many."""
        rows = self.rows[free[self.rows] & (self.values[self.rows] > 0)]
        cells = self.problem.receiving
        threshold = 1 + min(group.node_deviation_threshold, group.cell_deviation_threshold)
        if not len(rows) or not cells.any() or self.load[cells].max() < self.load[cells].min() * threshold:
            return 0
        touched: set[int] = set()
        while len(touched) < most:
            found = self._best(rows)
            squares = float((self.load**2 * self.weights).sum())
            if found is None or found[0] <= squares * group.min_relative_metric_improvement / int(cells.sum()):
                break
            _, row, target = found
            self._move(row, target)
            touched.add(row)
        return len(touched)

    def _best(self, rows: Ints) -> tuple[float, int, int] | None:
        """The move with the largest gain: for each tablet the least loaded node is the best target there is."""
        best: tuple[float, int, int] | None = None
        for kind in np.unique(self.problem.kinds[rows]):
            mine = rows[self.problem.kinds[rows] == kind]
            able = np.flatnonzero(self.problem.receiving & self.problem.allowed[kind])
            for target in able[np.argsort(self.load[able], kind="stable")]:
                found = self._best_to(mine, int(target))
                if found is not None:
                    if best is None or found[0] > best[0]:
                        best = found
                    break
        return best

    def _best_to(self, rows: Ints, target: int) -> tuple[float, int, int] | None:
        state, values, owner = self.state, self.values[rows], self.state.owner[rows]
        gain = 2 * values * (self.load[owner] - self.load[target])
        gain -= values**2 * (1 / self.weights[owner] + 1 / self.weights[target])
        fits = (owner != target) & (self.problem.sizes[rows] <= state.disk_room[target])
        fits &= may_take(self.problem, state, rows, np.array([target]))[:, 0]
        fits &= (self.problem.memory[rows] == 0) | (self.problem.memory[rows] <= state.memory_room[target])
        gain = np.where(fits, gain, -np.inf)
        at = int(gain.argmax())
        return (float(gain[at]), int(rows[at]), target) if gain[at] > 1e-9 * max(float(values[at]), 1.0) else None

    def _move(self, row: int, target: int) -> None:
        source = int(self.state.owner[row])
        self.load[source] -= self.values[row] / self.weights[source]
        self.load[target] += self.values[row] / self.weights[target]
        self.state.move(self.problem, row, target)
