"""Single moves and swaps, each the best there is: the end of a large plan and the whole of a small one.

Every step makes the objective smaller, so nothing can go round in circles; a last sweep that finds nothing ends the
work, so planning again from the result finds nothing either.
"""

from dataclasses import dataclass

import numpy as np

from balancer.policies.bundle_view import Floats, Ints
from balancer.policies.objective import exchange_floor, node_costs
from balancer.policies.placement_fill import Spread
from balancer.policies.placement_loads import Bools, LoadState, Problem, tension, underuse

_SWEEPS = 200
_STEPS = 20_000
_ROWS, _RECEIVERS = 64, 16  # considered for one node's move: tablets, and nodes
_SWAP_SEARCHES = 1000  # in one plan: a thousand nodes that nothing helps must not take minutes to find that out
_RELIEF = 0.25  # least part of a node's overload that a move takes away, for the part of the node's bytes it takes
_PATIENCE = 4.0  # how much better a resting tablet must be for its node to wait for it
_SWAP_NODES, _SWAP_ROWS = 8, 48  # considered for a swap: nodes, and tablets of each side


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
    """T: which tablets may move now, and which could but rest after a migration, or are in one."""

    movable: Bools
    resting: Bools


class Refinement:
    """One run over a state; `swapped` has the pairs of rows that changed places."""

    def __init__(self, problem: Problem, state: LoadState, able: Able, goal: Goal, spread: Spread | None) -> None:
        self.problem, self.state, self.goal, self.spread = problem, state, goal, spread
        movable = able.movable
        self.resting = np.flatnonzero(able.resting)
        self.swapped: list[tuple[int, int]] = []
        self.steps = 0
        self.searches = 0
        self._hungry_at: tuple[int, Bools] = (-1, np.zeros(0, dtype=np.bool_))
        self.patient = False  # whether the node at hand waits for a tablet that rests
        self.bytes = np.bincount(state.owner, weights=problem.sizes, minlength=len(problem.nodes))
        rows = np.flatnonzero(movable)
        self.overhead = float(problem.sizes[rows].mean()) + 1.0 if len(rows) else 1.0
        by_node = rows[np.argsort(state.owner[rows], kind="stable")]
        cuts = np.searchsorted(state.owner[by_node], np.arange(1, len(problem.nodes)))
        self.members: list[Ints] = np.split(by_node, cuts)

    def run(self) -> int:
        """Moves and swaps until a whole sweep over the nodes finds nothing; says how many steps it took."""
        if not self.problem.dimensions or not self.problem.receiving.any():
            return 0
        for _ in range(_SWEEPS):
            before = self.steps
            for node in self._donors():
                self._relieve(node)
            if self.steps in (before, _STEPS):
                break
        return self.steps

    def _donors(self) -> list[int]:
        """Nodes that may have to give, the tightest first."""
        tight = tension(self.problem, self.state.held)
        floor = 0.0 if self._hungry().any() else self.goal.stop
        order = np.argsort(-tight, kind="stable")
        return [int(node) for node in order if tight[node] > floor and len(self.members[node])]

    def _hungry(self) -> Bools:
        """Nodes that have far too little; looked at again after each step only."""
        if self._hungry_at[0] != self.steps:
            self._hungry_at = (self.steps, underuse(self.problem, self.state.held) > self.goal.hungry)
        return self._hungry_at[1]

    def _relieve(self, node: int) -> None:
        """Takes tablets off one node until it is within the threshold, or nothing more helps."""
        while self.steps < _STEPS:
            tight = float((self._excess(node) * self.problem.weights).max())
            if tight > self.goal.stop:
                if not (self._best_move(node, self._receivers(node)) or self._best_swap(node)) or self.patient:
                    return
            else:
                # Within its own threshold it gives only to nodes that have far too little, one tablet per sweep.
                hungry = self._hungry()
                if tight > 0 and hungry.any():
                    self._best_move(node, self._receivers(node, hungry))
                return

    def _receivers(self, node: int, among: Bools | None = None) -> Ints:
        """The least loaded nodes that may be given something."""
        allowed = self.problem.receiving.copy() if among is None else among & self.problem.receiving
        allowed[node] = False
        nodes = np.flatnonzero(allowed)
        mean = -underuse(self.problem, self.state.held)[nodes]
        score = np.maximum(tension(self.problem, self.state.held)[nodes], mean)
        return nodes[np.argsort(score, kind="stable")][:_RECEIVERS]

    def _best_move(self, source: int, receivers: Ints) -> bool:
        """Makes the best single move off a node, or finds that it is worth waiting; False where nothing helps."""
        self.patient = False
        rows, relief = self._most_relieving(source)
        if not len(rows) or not len(receivers):
            return False
        problem = self.problem
        loads = problem.loads[rows]
        gain = relief[:, None] + self._cost_of(receivers) - self._costs(receivers, loads[:, None, :])
        worth = self.goal.min_gain * 2.0 * (loads * problem.weights**2).sum(axis=1)
        fits = (gain > np.maximum(worth, 1e-12)[:, None]) & self._fits(rows, receivers)
        fits &= self._relieves(source, receivers, loads[:, None, :], problem.sizes[rows][:, None])
        if not fits.any():
            return False
        score = np.where(fits, gain / (problem.costs[rows] + self.overhead)[:, None], -np.inf)
        at, to = np.unravel_index(int(score.argmax()), score.shape)
        self.patient = self._better_rests(source, float(score[at, to]))
        if self.patient:
            return True
        self._move(int(rows[at]), int(receivers[to]))
        return True

    def _relieves(self, source: int, targets: Ints | int, loads: Floats, sizes: Floats) -> Bools:
        """…×targets: which losses are worth their bytes to an overfull node.

        The part of the overload that goes away, in some dimension, must not be far below the part of the node's bytes
        that goes: else a node with one tablet too hot for any node would give all its cold ones away, for next to
        nothing. Overload that only turns up at the target has not gone away: such a tablet would be carried around.
        """
        problem = self.problem
        over = self._excess(source)
        tight = over * problem.weights > self.goal.stop
        if not tight.any():
            return np.ones(np.broadcast_shapes(sizes.shape, np.shape(targets)), dtype=np.bool_)
        over, loads = over[tight], loads[..., tight]
        kept = np.abs(over - loads / problem.due[source, tight])
        due = np.maximum(problem.due[targets][..., tight], 1e-300)
        there = (self.state.held[targets][..., tight] + loads) / due - 1.0
        relief = 1.0 - np.maximum(kept, there) / over
        worthy: Bools = relief.max(axis=-1) >= _RELIEF * sizes / max(float(self.bytes[source]), 1.0)
        return worthy

    def _better_rests(self, source: int, score: float) -> bool:
        """Whether the node has a tablet that would help far more but rests: then it is worth the wait."""
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

    def _best_swap(self, source: int) -> bool:
        """Exchanges a heavy tablet for a lighter one where no single move helps."""
        problem = self.problem
        self.searches += 1
        if self.searches > _SWAP_SEARCHES:
            return False
        tightest = int((self._excess(source) * problem.weights).argmax())
        mine = self._heaviest(self.members[source], tightest)
        best: tuple[float, int, int, int] | None = None
        for target in self._receivers(source)[:_SWAP_NODES]:
            theirs = self._lightest(self.members[target], tightest)
            found = self._swap_with(source, int(target), mine, theirs)
            if found is not None and (best is None or found[0] > best[0]):
                best = (*found, int(target))
        if best is None:
            return False
        _, give, take, target = best
        self._move(give, target)
        self._move(take, source)
        self.swapped.append((give, take))
        return True

    def _swap_with(self, source: int, target: int, mine: Ints, theirs: Ints) -> tuple[float, int, int] | None:
        problem, state = self.problem, self.state
        # A source that is closed, or that the other's table may not use, can give but not take.
        if not problem.receiving[source] or not len(mine) or not len(theirs):
            return None
        change = problem.loads[mine][:, None, :] - problem.loads[theirs][None, :, :]
        gain = self._cost_of(np.array([source, target])).sum()
        gain = gain - self._costs_at(source, -change) - self._costs_at(target, change)
        worth = exchange_floor(problem, mine[:, None], theirs[None, :], self.goal.min_gain)
        size = problem.sizes[mine][:, None] - problem.sizes[theirs][None, :]
        fits = (
            (gain > np.maximum(worth, 1e-12)) & (size <= state.disk_room[target]) & (-size <= state.disk_room[source])
        )
        both = problem.sizes[mine][:, None] + problem.sizes[theirs][None, :]
        fits &= self._relieves(source, target, change, both) & self._pays_back(source, change, both)
        fits &= self._fits(mine, np.array([target]), disk=False) & self._fits(theirs, np.array([source]), disk=False).T
        if not fits.any():
            return None
        score = np.where(fits, gain / (both + 2 * self.overhead), -np.inf)
        i, j = np.unravel_index(int(score.argmax()), score.shape)
        return float(score[i, j]), int(mine[i]), int(theirs[j])

    def _pays_back(self, source: int, change: Floats, sizes: Floats) -> Bools:
        """Which exchanges are worth their bytes, by the rule for moves: bytes of both, load of the difference."""
        problem = self.problem
        kept = problem.rates()
        if (self._excess(source)[~kept] > 0).any():
            return np.ones(sizes.shape, dtype=np.bool_)
        nodes = max(int((problem.due > 0).any(axis=1).sum()), 1)
        carried = (np.abs(change[..., kept]) * problem.weights[kept]).max(axis=-1, initial=0.0) * nodes
        pays: Bools = sizes <= self.goal.bytes_per_second * self.goal.horizon * carried
        return pays

    def _heaviest(self, rows: Ints, dimension: int) -> Ints:
        return rows[np.argsort(-self.problem.loads[rows, dimension], kind="stable")][:_SWAP_ROWS]

    def _lightest(self, rows: Ints, dimension: int) -> Ints:
        return rows[np.argsort(self.problem.loads[rows, dimension], kind="stable")][:_SWAP_ROWS]

    def _fits(self, rows: Ints, nodes: Ints, disk: bool = True) -> Bools:
        """rows×nodes: what the hard limits allow."""
        problem, state = self.problem, self.state
        fits: Bools = problem.allowed[problem.tables[rows][:, None], nodes[None, :]]
        if disk:
            fits = fits & (problem.sizes[rows][:, None] <= state.disk_room[nodes])
        memory = problem.memory[rows][:, None]
        fits = fits & ((memory == 0) | (memory <= state.memory_room[nodes]))
        if self.spread is not None:
            fits = fits & ~self.spread.full(problem.tables[rows][:, None], nodes[None, :])
        return fits

    def _move(self, row: int, target: int) -> None:
        source = int(self.state.owner[row])
        self.state.move(self.problem, row, target)
        if self.spread is not None:
            self.spread.move(int(self.problem.tables[row]), source, target)
        self.members[source] = self.members[source][self.members[source] != row]
        self.members[target] = np.sort(np.append(self.members[target], row))
        self.bytes[source] -= self.problem.sizes[row]
        self.bytes[target] += self.problem.sizes[row]
        self.steps += 1

    def _excess(self, node: int) -> Floats:
        due = self.problem.due[node]
        over: Floats = np.divide(self.state.held[node] - due, due, out=np.zeros_like(due), where=due > 0)
        return over

    def _cost_of(self, nodes: Ints) -> Floats:
        """The part of the objective that each of these nodes makes up."""
        costs: Floats = self._costs(nodes, np.zeros((1, 1, len(self.problem.dimensions))))[0]
        return costs

    def _costs_at(self, node: int, change: Floats) -> Floats:
        """What one node's part would be after each of these changes of load."""
        costs: Floats = self._costs(np.array([node]), change[:, :, None, :])[:, :, 0]
        return costs

    def _costs(self, nodes: Ints, change: Floats) -> Floats:
        """…×nodes: what each node's part would be after a change of load."""
        return node_costs(self.problem, self.state, nodes, change)
