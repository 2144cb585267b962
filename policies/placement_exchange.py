"""Two moves that help only together: an exchange of two tablets, or a chain that makes room for one with another.

`placement_refine` asks here when no single move helps a node: a tablet of the node goes to a target, and one of the
target's goes back (exchange) or on to a third node (chain). All pairs with all targets are weighed at once.
"""

from dataclasses import dataclass

import numpy as np

from balancer.policies.bundle_view import Floats, Ints
from balancer.policies.objective import joint_floor, node_costs
from balancer.policies.placement_fill import Spread
from balancer.policies.placement_limits import crowded, within
from balancer.policies.placement_loads import Bools, LoadState, Problem

_NODES, _ROWS, _PAIRED = 12, 48, 384  # considered: targets, tablets of the node, tablets of all targets
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
        mine = mine[np.argsort(-loads[mine], kind="stable")][: int(_ROWS * fewer)]
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
