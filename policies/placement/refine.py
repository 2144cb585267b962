"""Single moves, exchanges and chains, each the best there is: the end of a large plan and the whole of a small one.

Every step makes the objective smaller, and none makes the worst node worse, so nothing can go round in circles; a last
sweep that finds nothing ends the work, so planning again from the result finds nothing either.

Two moves that help only together: an exchange of two tablets, or a chain that makes room for one with another.

`refine` asks here when no single move helps a node: a tablet of the node goes to a target, and one of the
target's goes back (exchange) or on to a third node (chain). All pairs with all targets are weighed at once.
"""

from dataclasses import dataclass

import numpy as np

from balancer.policies.placement.bulk import Spread
from balancer.policies.placement.candidates import crowded, may_take, within
from balancer.policies.placement.problem import (
    Bools,
    LoadState,
    Problem,
    joint_floor,
    move_overhead,
    node_costs,
    sums,
    tension,
    underuse,
)
from balancer.policies.view import Floats, Ints

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
class MoveMask:
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
        self, problem: Problem, state: LoadState, able: MoveMask, goal: Goal, *, spread: Spread | None, effort: Effort
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


_NODES, _EXCHANGE_ROWS, _PAIRED = 12, 48, 384  # considered: targets, tablets of the node, tablets of all targets
# Number of dimensions for which this many are considered; with more dimensions fewer, so that a search costs the same.
_PLAIN = 4


@dataclass(frozen=True, slots=True)
class Worth:
    """What an exchange or a chain must be worth."""

    stop: float  # from here on a node counts as overloaded
    start: float  # and from here on it must not stay so
    min_gain: float
    relief: float  # least part of a node's overload that must go away, for the part of the node's bytes that is copied
    bytes_per_second: float  # at which tablets are copied
    horizon: float  # seconds in which more load must be carried off than copying takes


@dataclass(frozen=True, slots=True)
class Pair:
    """Two moves, in the order in which they are made."""

    give: int
    target: int
    take: int
    onward: int  # where `take` goes: back to the node of `give`, or on to a third


@dataclass(frozen=True, slots=True)
class _Field:
    """What is weighed at once: tablets of the node, tablets of the targets, and what each pair would change there."""

    mine: Ints
    theirs: Ints
    at: Ints  # theirs: the target that holds it
    change: Floats  # mine×theirs×dimensions: load that the target would get
    there: Floats  # mine×theirs: by how much the target's part of the objective would grow
    sizes: Floats  # mine×theirs: bytes of both


class PairSearch:
    """The best pair for one node. Made for a state and valid until the state changes."""

    def __init__(
        self,
        problem: Problem,
        state: LoadState,
        spread: Spread | None,
        worth: Worth,
        held_bytes: Floats,
        *,
        ceiling: Floats,
    ) -> None:
        self.problem, self.state, self.spread, self.worth = problem, state, spread, worth
        self.held_bytes = held_bytes
        self.ceiling = ceiling  # D: how tight no node may become by it

    def best(self, source: int, targets: Ints, mine: Ints, company: list[Ints], overhead: float) -> Pair | None:
        """The pair of mine and a target's that gains most for its bytes; None if none is worth them."""
        targets = np.array([node for node in targets[:_NODES] if len(company[node])], dtype=np.int64)
        if not len(targets) or not len(mine):
            return None
        field = self._field(source, targets, mine, company)
        mine, theirs = field.mine, field.theirs
        carried = self.problem.loads[mine][:, None, :] + self.problem.loads[theirs][None, :, :]
        over = float((self._excess(source) * self.problem.weights).max(initial=0.0))
        floor = joint_floor(carried, self.problem.floors, self.worth.min_gain, pressing=over > self.worth.start)
        floor = np.maximum(floor, 1e-12)
        costs = self.problem.costs[mine][:, None] + self.problem.costs[theirs][None, :]
        swapped = self._swap_gains(source, field)
        chained, cost = self._chain_gains(source, field, targets)
        # If every node has about its share, most searches end here: what is forbidden need not be checked.
        if not ((swapped > floor) | (chained - cost.min(axis=1)[None, :] > floor)).any():
            return None
        swaps = self._exchanges(source, field, swapped)
        chains, onward = self._chains(source, field, targets, chained, cost)
        gain = np.where(self._target_fits(field), np.maximum(swaps, chains), -np.inf)
        score = np.where(gain > floor, gain / (costs + 2 * overhead), -np.inf)
        i, j = np.unravel_index(int(score.argmax()), score.shape)
        if not np.isfinite(score[i, j]):
            return None
        back = swaps[i, j] >= chains[i, j]
        return Pair(int(mine[i]), int(field.at[j]), int(theirs[j]), source if back else int(onward[j]))

    def _field(self, source: int, targets: Ints, mine: Ints, company: list[Ints]) -> _Field:
        problem = self.problem
        mine, theirs, at = self._candidates(source, targets, mine, company)
        change = problem.loads[mine][:, None, :] - problem.loads[theirs][None, :, :]
        sizes = problem.sizes[mine][:, None] + problem.sizes[theirs][None, :]
        return _Field(mine, theirs, at, change, self._cost_change(at, change), sizes)

    def _candidates(self, source: int, targets: Ints, mine: Ints, company: list[Ints]) -> tuple[Ints, Ints, Ints]:
        """The node's heaviest tablets in its tightest dimension, the targets' lightest, and whose these are."""
        problem = self.problem
        over = self._excess(source) * problem.weights
        loads = problem.loads[:, int(over.argmax())]
        fewer = min(1.0, (_PLAIN / len(over)) ** 0.5)
        mine = mine[np.argsort(-loads[mine], kind="stable")][: int(_EXCHANGE_ROWS * fewer)]
        each = max(int(_PAIRED * fewer) // len(targets), 1)
        lightest = [company[node][np.argsort(loads[company[node]], kind="stable")][:each] for node in targets]
        at = np.repeat(targets, [len(rows) for rows in lightest])
        return mine, np.concatenate(lightest), at

    def _swap_gains(self, source: int, field: _Field) -> Floats:
        """mine×theirs: what would be gained if the two changed places and nothing were forbidden."""
        # A source that is closed can give but not take.
        if not self.problem.receiving[source]:
            return np.full(field.there.shape, -np.inf)
        gain: Floats = -field.there - self._cost_change(np.array([source]), -field.change[..., None, :])[..., 0]
        return gain

    def _chain_gains(self, source: int, field: _Field, targets: Ints) -> tuple[Floats, Floats]:
        """mine×theirs: what is gained before the other's tablet goes on; theirs×targets: what that costs."""
        given = self.problem.loads[field.mine]
        relief = self._cost_change(np.array([source]), -given[:, None, :])[:, 0]
        added = np.repeat(self.problem.loads[field.theirs][:, None, :], len(targets), axis=1)
        return -field.there - relief[:, None], self._cost_change(targets, added)

    def _exchanges(self, source: int, field: _Field, gain: Floats) -> Floats:
        """mine×theirs: the gain where the two can change places; -inf where the node cannot take the other."""
        problem, state, mine, theirs = self.problem, self.state, field.mine, field.theirs
        if not problem.receiving[source]:
            return gain
        size = problem.sizes[theirs][None, :] - problem.sizes[mine][:, None]
        fits = (size <= state.disk_room[source]) & self._may_use(theirs, np.array([source]))[:, 0]
        if problem.limits:
            fits &= within(problem.limited[theirs][None, :] - problem.limited[mine][:, None], state.limit_room[source])
        memory = problem.memory[theirs][None, :] - problem.memory[mine][:, None]
        fits &= (memory <= 0) | (memory <= state.memory_room[source])
        fits &= self._relieves(source, field, field.change) & self._pays_back(source, field.change, field.sizes)
        return np.where(fits, gain, -np.inf)

    def _chains(self, source: int, field: _Field, targets: Ints, gain: Floats, cost: Floats) -> tuple[Floats, Ints]:
        """mine×theirs: what is gained when the other's tablet goes on to a third node; and to which, per tablet."""
        problem, state, mine, theirs = self.problem, self.state, field.mine, field.theirs
        added = problem.loads[theirs][:, None, :]
        able = self._may_use(theirs, targets) & (field.at[:, None] != targets)
        if problem.limits:
            able &= within(problem.limited[theirs][:, None, :], state.limit_room[targets])
        able &= problem.sizes[theirs][:, None] <= state.disk_room[targets]
        memory = problem.memory[theirs][:, None]
        able &= (memory == 0) | (memory <= state.memory_room[targets])
        able &= shrinks(problem, state, targets, added, self.ceiling)
        cost = np.where(able, cost, np.inf)
        third = cost.argmin(axis=1)
        given = problem.loads[mine]
        gain = gain - cost[np.arange(len(theirs)), third][None, :]
        worthy = self._relieves(source, field, given[:, None, :])
        worthy &= self._pays_back(source, given[:, None, :], field.sizes)
        return np.where(worthy, gain, -np.inf), targets[third]

    def _target_fits(self, field: _Field) -> Bools:
        """mine×theirs: whether the target can hold mine in place of theirs, and is not made the worst of all."""
        problem, state, mine, theirs, at = self.problem, self.state, field.mine, field.theirs, field.at
        size = problem.sizes[mine][:, None] - problem.sizes[theirs][None, :]
        memory = problem.memory[mine][:, None]
        freed = memory - problem.memory[theirs][None, :]
        fits = problem.allowed[problem.kinds[mine][:, None], at[None, :]] & (size <= state.disk_room[at])
        if problem.limits:
            fits &= within(problem.limited[mine][:, None] - problem.limited[theirs][None, :], state.limit_room[at])
        if problem.rivals is not None:
            fits &= ~crowded(problem, state.counts)[problem.kinds[mine][:, None], at[None, :]]
        fits &= (memory == 0) | (freed <= state.memory_room[at])
        if self.spread is not None:
            same = problem.tables[mine][:, None] == problem.tables[theirs][None, :]
            fits &= same | ~self.spread.full(problem.tables[mine][:, None], at[None, :])
        fits &= shrinks(problem, state, at, field.change, self.ceiling)
        found: Bools = fits
        return found

    def _may_use(self, rows: Ints, nodes: Ints) -> Bools:
        """rows×nodes: what rules and the spread of tables allow."""
        tables, kinds = self.problem.tables[rows][:, None], self.problem.kinds[rows][:, None]
        able: Bools = self.problem.allowed[kinds, nodes[None, :]]
        if self.problem.rivals is not None:
            able = able & ~crowded(self.problem, self.state.counts)[kinds, nodes[None, :]]
        return able if self.spread is None else able & ~self.spread.full(tables, nodes[None, :])

    def _cost_change(self, nodes: Ints, change: Floats) -> Floats:
        """…×nodes: by how much the objective grows on each node."""
        before = node_costs(self.problem, self.state, nodes, np.zeros((1, self.problem.due.shape[1])))
        grown: Floats = node_costs(self.problem, self.state, nodes, change) - before
        return grown

    def _relieves(self, source: int, field: _Field, lost: Floats) -> Bools:
        """Which pairs remove a part of the node's overload that is worth the part of its bytes they copy.

        Otherwise a node with one tablet too hot for any node would give all its cold ones away, for next to nothing.
        """
        share = self.worth.relief * field.sizes / max(float(self.held_bytes[source]), 1.0)
        loads = lost, field.change
        return relieves(self.problem, self.state, source, field.at, loads, stop=self.worth.stop) >= share

    def _pays_back(self, source: int, change: Floats, sizes: Floats) -> Bools:
        """Which pairs are worth their bytes, by the rule for moves: bytes of both, load that the node loses."""
        problem = self.problem
        kept = problem.kept
        if (self._excess(source)[~kept] > 0).any():
            return np.ones(sizes.shape, dtype=np.bool_)
        nodes = max(int((problem.due > 0).any(axis=1).sum()), 1)
        carried = (np.abs(change[..., kept]) * problem.weights[kept]).max(axis=-1, initial=0.0) * nodes
        pays: Bools = sizes <= self.worth.bytes_per_second * self.worth.horizon * carried
        return pays

    def _excess(self, node: int) -> Floats:
        return node_excess(self.problem, self.state, node)


def node_excess(problem: Problem, state: LoadState, node: int) -> Floats:
    """D: how far one node is above its due share, relative to it; 0 if nothing is due."""
    due = problem.due[node]
    over: Floats = np.divide(state.held[node] - due, due, out=np.zeros_like(due), where=due > 0)
    return over


def shrinks(problem: Problem, state: LoadState, nodes: Ints, change: Floats, ceiling: Floats) -> Bools:
    """…×nodes: whether no node becomes tighter than the ceiling in any dimension that it is given more of."""
    due = np.maximum(problem.due[nodes], 1e-300)
    after = ((state.held[nodes] + change) / due - 1.0) * problem.weights
    return np.asarray(((after <= ceiling) | (change <= 0)).all(axis=-1), np.bool_)


def relieves(
    problem: Problem, state: LoadState, source: int, targets: Ints, loads: tuple[Floats, Floats], *, stop: float
) -> Floats:
    """…×targets: the part of a node's overload that goes away, in the dimension where that is most; 1: it has none.

    `loads` are what the node loses and what the targets get. Overload that only turns up at a target has not gone away:
    such a tablet would be carried around.
    """
    lost, gained = loads
    over = node_excess(problem, state, source)
    tight = over * problem.weights > stop
    if not tight.any():
        return np.ones(np.broadcast_shapes(gained.shape[:-1], np.shape(targets)))
    over = over[tight]
    kept = np.abs(over - lost[..., tight] / problem.due[source, tight])
    due = np.maximum(problem.due[targets][..., tight], 1e-300)
    there = (state.held[targets][..., tight] + gained[..., tight]) / due - 1.0
    relief: Floats = (1.0 - np.maximum(kept, there) / over).max(axis=-1)
    return relief
