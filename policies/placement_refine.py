"""Single moves, exchanges and chains, each the best there is: the end of a large plan and the whole of a small one.

Every step makes the objective smaller, and none makes the worst node worse, so nothing can go round in circles; a last
sweep that finds nothing ends the work, so planning again from the result finds nothing either.
"""

from dataclasses import dataclass

import numpy as np

from balancer.policies.bundle_view import Floats, Ints
from balancer.policies.objective import move_overhead, node_costs
from balancer.policies.placement_exchange import PairSearch, Worth, node_excess, relieves, shrinks
from balancer.policies.placement_fill import Spread
from balancer.policies.placement_limits import may_take
from balancer.policies.placement_loads import Bools, LoadState, Problem, sums, tension, underuse

_SWEEPS = 200
_STEPS = 20_000
_ROWS, _RECEIVERS = 64, 16  # considered for one node's move: tablets, and nodes
_RELIEF = 0.25  # least part of a node's overload that a move takes away, for the part of the node's bytes it takes
_REFUSED = 64  # nodes in a row with nothing for hungry ones: then the others, which have less, are not asked
_SHRINK = 0.9  # how tight a target may become where the source is tight, as a part of how tight that was
_PATIENCE = 4.0  # how much better a resting tablet must be for its node to wait for it
_SEARCHES, _SEARCHES_PER_NODE = 300, 1  # for pairs, in one plan: its time grows with its size, not with its difficulty
_FRUITLESS = 3
# A plan for the day has many dimensions, and each look costs the more. It need not reach the end: the next plans, which
# come long before the first moves are done, find what is left.
_DAY_STEPS, _DAY_STEPS_PER_NODE, _DAY_SEARCHES = 100, 1, 40


@dataclass(frozen=True, slots=True)
class Goal:
    """What a step must achieve."""

    stop: float  # a node this little above its due share gives no more
    hungry: float  # a node this far below it must be given something
    min_gain: float
    bytes_per_second: float  # at which tablets are copied
    horizon: float  # seconds in which an exchange must carry off more load than its copying takes


@dataclass(frozen=True, slots=True)
class Able:
    """T: which tablets may move now, and which could but are resting after a migration, or are in one."""

    movable: Bools
    resting: Bools
    company: Bools | None = None  # which may move if another one's move is worth the bytes of both; None: the movable


@dataclass(slots=True)
class Effort:
    """How many steps, and searches for pairs, a plan has left, over all its rounds."""

    searches: int
    steps: int = _STEPS

    @classmethod
    def of(cls, problem: Problem) -> "Effort":
        """What a plan of this size may spend."""
        if (problem.portions < 1.0).any():
            return cls(_DAY_SEARCHES, _DAY_STEPS + _DAY_STEPS_PER_NODE * len(problem.nodes))
        return cls(_SEARCHES + _SEARCHES_PER_NODE * len(problem.nodes))


class Refinement:
    """One run over a state."""

    def __init__(
        self, problem: Problem, state: LoadState, able: Able, goal: Goal, *, spread: Spread | None, effort: Effort
    ) -> None:
        self.problem, self.state, self.goal, self.spread, self.effort = problem, state, goal, spread, effort
        self.worth = Worth(goal.stop, goal.hungry, goal.min_gain, _RELIEF, goal.bytes_per_second, goal.horizon)
        self.resting = np.flatnonzero(able.resting)
        self.steps = 0
        self._levels_at: tuple[int, Floats, Floats] = (-1, np.zeros(0), np.zeros(0))
        self.refused = 0  # nodes in a row that had nothing for those that have far too little
        self.patient = False  # whether the current node waits for a resting tablet
        self.changed = np.zeros(len(problem.nodes), dtype=np.int64)  # N: the step that changed the node last
        self.fruitless: dict[int, tuple[int, int]] = {}  # by node: when a search last found nothing, and how often
        self.bytes = sums(state.owner, problem.sizes[:, None], len(problem.nodes))[:, 0]
        rows = np.flatnonzero(able.movable)
        self.overhead = move_overhead(problem.sizes[rows])
        self.members = self._by_node(rows)
        self.company = self.members if able.company is None else self._by_node(np.flatnonzero(able.company))

    def _by_node(self, rows: Ints) -> list[Ints]:
        owner = self.state.owner
        rows = rows[np.argsort(owner[rows], kind="stable")]
        return np.split(rows, np.searchsorted(owner[rows], np.arange(1, len(self.problem.nodes))))

    def run(self) -> int:
        """Steps until a whole sweep over the nodes finds nothing; returns how many it took."""
        if not self.problem.dimensions or not self.problem.receiving.any():
            return 0
        for _ in range(_SWEEPS):
            before = self.steps
            for node in self._donors():
                self._relieve(node)
            if self.steps == before or self.effort.steps <= 0:
                break
        return self.steps

    def _donors(self) -> list[int]:
        """Nodes that may have to give, the tightest first."""
        tight, _ = self._levels()
        floor = 0.0 if self._hungry().any() else self.goal.stop
        order = np.argsort(-tight, kind="stable")
        return [int(node) for node in order if tight[node] > floor and len(self.members[node])]

    def _levels(self) -> tuple[Floats, Floats]:
        """N: every node's tension and underuse; recomputed only after each step."""
        if self._levels_at[0] != self.steps:
            held = self.state.held
            self._levels_at = (self.steps, tension(self.problem, held), underuse(self.problem, held))
        return self._levels_at[1:]

    def _hungry(self) -> Bools:
        """Nodes that have far too little."""
        return self._levels()[1] > self.goal.hungry

    def _relieve(self, node: int) -> None:
        """Takes tablets off one node until it is within the threshold, or nothing more helps."""
        while self.effort.steps > 0:
            tight = float(self._levels()[0][node])
            if tight > self.goal.stop:
                if not (self._best_move(node, self._receivers(node)) or self._best_pair(node)) or self.patient:
                    return
            else:
                # Within its own threshold it gives only to nodes that have far too little, one tablet per sweep.
                hungry = self._hungry()
                if tight > 0 and hungry.any() and self.refused < _REFUSED:
                    fed = self._best_move(node, self._receivers(node, hungry))
                    self.refused = 0 if fed else self.refused + 1
                return

    def _receivers(self, node: int, among: Bools | None = None) -> Ints:
        """The least loaded nodes that may be given something."""
        allowed = self.problem.receiving.copy() if among is None else among & self.problem.receiving
        allowed[node] = False
        nodes = np.flatnonzero(allowed)
        tight, under = self._levels()
        score = np.maximum(tight[nodes], -under[nodes])
        return nodes[np.argsort(score, kind="stable")][:_RECEIVERS]

    def _best_move(self, source: int, receivers: Ints) -> bool:
        """Makes the best single move off a node, or finds that it is worth waiting; False if nothing helps."""
        self.patient = False
        rows, relief = self._most_relieving(source)
        if not len(rows) or not len(receivers):
            return False
        problem = self.problem
        loads = problem.loads[rows]
        gain = relief[:, None] + self._cost_of(receivers) - self._costs(receivers, loads[:, None, :])
        worth = self.goal.min_gain * 2.0 * (loads * problem.floors).sum(axis=1)
        fits = (gain > np.maximum(worth, 1e-12)[:, None]) & self._fits(source, rows, receivers)
        share = _RELIEF * problem.sizes[rows][:, None] / max(float(self.bytes[source]), 1.0)
        added = loads[:, None, :]
        fits &= relieves(problem, self.state, source, receivers, (added, added), stop=self.goal.stop) >= share
        if not fits.any():
            return False
        score = np.where(fits, gain / (problem.costs[rows] + self.overhead)[:, None], -np.inf)
        at, to = np.unravel_index(int(score.argmax()), score.shape)
        self.patient = self._better_rests(source, float(score[at, to]))
        if self.patient:
            return True
        self._move(int(rows[at]), int(receivers[to]))
        return True

    def _better_rests(self, source: int, score: float) -> bool:
        """Whether the node has a resting tablet that would help far more: then it is worth the wait."""
        rows = self.resting[self.state.owner[self.resting] == source]
        if not len(rows):
            return False
        here = np.array([source])
        relief = self._cost_of(here) - self._costs(here, -self.problem.loads[rows][:, None, :])[:, 0]
        return bool((relief / (self.problem.costs[rows] + self.overhead)).max() > _PATIENCE * score)

    def _most_relieving(self, source: int) -> tuple[Ints, Floats]:
        """The tablets whose departure relieves the node most for their bytes, and by how much each does."""
        rows, here = self.members[source], np.array([source])
        relief = self._cost_of(here) - self._costs(here, -self.problem.loads[rows][:, None, :])[:, 0]
        if len(rows) > _ROWS:
            best = np.argsort(-relief / (self.problem.costs[rows] + self.overhead), kind="stable")[:_ROWS]
            rows, relief = rows[best], relief[best]
        return rows, relief

    def _best_pair(self, source: int) -> bool:
        """Makes the best exchange or chain where no single move helps."""
        receivers = self._receivers(source)
        # A search among other tablets may find what the last one did not; after a few the node is given up until it
        # changes.
        since, times = self.fruitless.get(source, (-1, 0))
        times = times if since >= self.changed[source] else 0
        if (
            times >= _FRUITLESS
            or (times and since >= self.changed[receivers].max(initial=0))
            or not self.effort.searches
        ):
            return False
        self.effort.searches -= 1
        search = PairSearch(
            self.problem, self.state, self.spread, self.worth, self.bytes, ceiling=self._ceiling(source)
        )
        pair = search.best(source, receivers, self.members[source], self.company, self.overhead)
        if pair is None:
            self.fruitless[source] = self.steps, times + 1
            return False
        self._move(pair.give, pair.target)
        self._move(pair.take, pair.onward)
        return True

    def _fits(self, source: int, rows: Ints, nodes: Ints) -> Bools:
        """rows×nodes: what the hard limits allow, and what makes no node nearly as tight as the source is now."""
        problem, state = self.problem, self.state
        fits: Bools = may_take(problem, state, rows, nodes)
        fits = fits & (problem.sizes[rows][:, None] <= state.disk_room[nodes])
        memory = problem.memory[rows][:, None]
        fits = fits & ((memory == 0) | (memory <= state.memory_room[nodes]))
        if self.spread is not None:
            fits = fits & ~self.spread.full(problem.tables[rows][:, None], nodes[None, :])
        added = problem.loads[rows][:, None, :]
        return fits & shrinks(problem, state, nodes, added, self._ceiling(source))

    def _ceiling(self, source: int) -> Floats:
        """D: how tight others may become for a node's sake: its overload must shrink, the worst not get worse."""
        over = node_excess(self.problem, self.state, source) * self.problem.weights
        worst = max(float(self._levels()[0].max()), self.goal.stop)
        return np.where(over > self.goal.stop, np.maximum(_SHRINK * over, self.goal.stop), worst)

    def _move(self, row: int, target: int) -> None:
        source = int(self.state.owner[row])
        self.state.move(self.problem, row, target)
        if self.spread is not None:
            self.spread.move(int(self.problem.tables[row]), source, target)
        for members in {id(lists): lists for lists in (self.members, self.company)}.values():
            if row in members[source]:
                members[source] = members[source][members[source] != row]
                members[target] = np.sort(np.append(members[target], row))
        self.bytes[source] -= self.problem.sizes[row]
        self.bytes[target] += self.problem.sizes[row]
        self.steps += 1
        self.effort.steps -= 1
        self.changed[[source, target]] = self.steps

    def _cost_of(self, nodes: Ints) -> Floats:
        """The part of the objective that each of these nodes makes up."""
        costs: Floats = self._costs(nodes, np.zeros((1, 1, len(self.problem.dimensions))))[0]
        return costs

    def _costs(self, nodes: Ints, change: Floats) -> Floats:
        """…×nodes: what each node's part would be after a change of load."""
        return node_costs(self.problem, self.state, nodes, change)
