"""Which moves are started now, and in what order: always what helps most for its bytes at this moment.

Only part of a plan fits the budgets, so each step must be good on its own: after every pick the gains of the others are
computed again, as if nothing but the picks so far would happen. A step is one move, or several that help only together
(see `order`). No step for the sake of balance makes the worst node worse. `plan` calls `Picker` with the budgets it has
left.

Moves that help only together: exchanges, and chains whose first move alone would make things worse.

`order` asks when no single move of the plan helps any more. Starting from a move that may start, those that gain most
in addition are added, one by one, until the whole set is worth its load; then unnecessary moves are dropped again: a
move too many keeps its nodes' slots from what would relieve them. The set begins with the move, and continues in the
order, that leave the worst node least bad in between.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from balancer.policies.budgets import Admission
from balancer.policies.options import BundleOptions, PlacementOptions
from balancer.policies.placement.bulk import Spread, make_spread
from balancer.policies.placement.candidates import crowded, within
from balancer.policies.placement.problem import (
    Bools,
    LoadState,
    Problem,
    joint_floor,
    move_gains,
    move_overhead,
    sums,
    tension,
    underuse,
)
from balancer.policies.plan.wanted import CODES, URGENT, Moves
from balancer.policies.reasons import Left, Taken
from balancer.policies.view import Floats, Ints

_LOOKS = 256  # picks after which gains are recomputed; from then on the last computation decides the order
_LOOKED_AT = 4096  # moves whose gains are recomputed: those that were best at first
_JOINT_ROWS = 256  # moves among which sets that help together are searched for
_QUIET = 6  # times `cool_down` without a migration after which a bundle counts as settled
_PAIRED = 1.5  # how far over the start threshold a node must be for moves that help only together to begin with it
_LOAD = CODES.index(Taken.LOAD)
_FUNCTION = CODES.index(Taken.FUNCTION)
_CAPACITY = CODES.index(Taken.CAPACITY)
_URGENT = [CODES.index(code) for code in URGENT]
_OBSTACLES = (
    Left.MOVES_TOTAL,
    Left.MOVES_PER_NODE,
    Left.WINDOW_TOO_SHORT,
    Left.BYTES_PER_WINDOW,
    Left.TARGET_DISK,
    Left.TARGET_MEMORY,
    Left.TARGET_CAPACITY,
    Left.UNSETTLED,
    Left.WAITS,
)


def quiet_seconds(options: BundleOptions) -> float:
    """How long nothing must have been migrated for a bundle to count as settled."""
    return _QUIET * options.budgets.cool_down


@dataclass(frozen=True, slots=True)
class MoveStep:
    """Moves that start now, and those that follow one after the other once these are done."""

    now: tuple[int, ...]
    then: tuple[int, ...] = ()
    gain: float = 0.0

    @property
    def rows(self) -> tuple[int, ...]:
        """All of them."""
        return (*self.now, *self.then)


@dataclass(slots=True)
class Picker:
    """Draws steps from a plan until the budgets are spent. `left` has the moves that were not drawn."""

    moves: Moves
    admission: Admission
    state: LoadState = field(init=False)  # as it is, plus what was picked
    disk_room: Floats = field(init=False)  # what leaves a node frees its room only when the move is done
    memory_room: Floats = field(init=False)
    limit_room: Floats = field(init=False)
    counts: Ints = field(init=False)  # kinds×N: what leaves a node frees its place only when the move is done
    spread: Spread | None = field(init=False)  # tablets of each table, as if the steps picked so far were done
    left: Ints = field(init=False)
    unsettled: tuple[int, ...] = ()  # moves that would help together, once the bundle has settled

    def __post_init__(self) -> None:
        self.state = self.moves.before.copy()
        self.disk_room, self.memory_room = self.state.disk_room.copy(), self.state.memory_room.copy()
        self.limit_room = self.state.limit_room.copy()
        self.counts = self.state.counts.copy()
        if self.moves.problem.rivals is not None:
            leaving, places = _leaving(self.moves.problem)
            np.add.at(self.counts, (self.moves.problem.kinds[leaving], places), 1)
        options = self.admission.options.placement
        self.spread = make_spread(self.moves.problem, self.moves.before.owner, options.table_spread)
        self.left = self.moves.rows()

    def urgent(self) -> Iterator[MoveStep]:
        """What cannot wait: by reason, then the largest first, so that long copies start early."""
        problem, codes = self.moves.problem, self.moves.codes
        rows = self.left[np.isin(codes[self.left], _URGENT)]
        yield from self._in_order(rows[np.lexsort((rows, -problem.sizes[rows], codes[rows]))])
        # If nodes over their capacity can only exchange tablets, one of the halves must come first.
        rows = self.left[codes[self.left] == _CAPACITY]
        if len(rows) and not (codes[self.state.owner != self.moves.before.owner] == _CAPACITY).any():
            self.limit_room[:] = np.inf
            yield from self._in_order(rows[np.lexsort((rows, -problem.sizes[rows]))][:1])
            self.limit_room[:] = np.minimum(self.state.limit_room, self.moves.before.limit_room)

    def others(self, taken: Bools) -> Iterator[MoveStep]:
        """Everything else, except for tablets that another action has: YT's movers as they say, then by gain."""
        codes = self.moves.codes
        rows = self.left[~taken[self.left] & ~np.isin(codes[self.left], _URGENT)]
        plain = rows[codes[rows] != _LOAD]
        yield from self._in_order(plain[np.lexsort((plain, codes[plain]))])
        rows = rows[codes[rows] == _LOAD]
        yield from self._by_gain(self._payable(rows))
        yield from self._jointly(rows)

    def _payable(self, rows: Ints) -> Ints:
        """Without moves that only end what has begun, off nodes within the start threshold, and have no bytes for it.

        Moves to nodes that have far too little are not among them: those start by themselves.
        """
        problem, settings = self.moves.problem, self.admission.options.placement
        left = problem.view.balancing
        calm = tension(problem, self.moves.before.held) <= settings.start_threshold
        fed = underuse(problem, self.moves.before.held) > settings.start_threshold
        tail = calm[self.moves.before.owner[rows]] & ~fed[self.moves.after.owner[rows]]
        return rows[~tail | (problem.sizes[rows] <= left)]

    def obstacles(self) -> npt.NDArray[np.object_]:
        """Why each of the moves that were not picked has to wait."""
        problem, rows, admission = self.moves.problem, self.left, self.admission
        targets, sizes, memory = self.moves.after.owner[rows], problem.sizes[rows], problem.memory[rows]
        if admission.exhausted:
            return np.full(len(rows), Left.MOVES_TOTAL, dtype=np.object_)
        reasons = (
            ~self._slots_free(rows),
            sizes > admission.bytes_that_fit,
            sizes > admission.bytes_left,
            sizes > self.disk_room[targets],
            (memory > 0) & (memory > self.memory_room[targets]),
            ~within(problem.limited[rows], self.limit_room[targets]),
            np.isin(rows, self.unsettled),
        )
        first = np.argmax(np.stack([*reasons, np.ones(len(rows), dtype=np.bool_)]), axis=0)
        found: npt.NDArray[np.object_] = np.array(_OBSTACLES[1:], dtype=np.object_)[first]
        return found

    @property
    def busy(self) -> bool:
        """Whether anything runs, starts or waits to be started."""
        moved = bool((self.state.owner != self.moves.before.owner).any())
        return moved or bool(len(self.left)) or bool(self.moves.problem.view.in_flight)

    def wanted_nodes(self) -> frozenset[str]:
        """The two nodes of the best move that waits for one of them; none if no helpful move does."""
        problem, rows = self.moves.problem, self.left
        if not len(rows) or self.admission.exhausted:
            return frozenset()
        rows = rows[~self._slots_free(rows)][:_LOOKED_AT]
        gains = self._gains(rows)
        able = gains > 0
        if not able.any():
            return frozenset()
        overhead = move_overhead(problem.sizes)
        best = int(rows[np.where(able, gains / (problem.costs[rows] + overhead), -np.inf).argmax()])
        return frozenset(problem.nodes[int(state.owner[best])].id for state in (self.moves.before, self.moves.after))

    def drop_useless(self) -> None:
        """Forgets moves that nothing holds back and that do not help: if nothing else happens, they never will."""
        self.left = self.left[self.obstacles() != Left.WAITS]

    def _in_order(self, rows: Ints) -> Iterator[MoveStep]:
        for row in rows.tolist():
            if self.admission.exhausted:
                return
            if self._admissible(np.array([row]))[0]:
                gain = move_gains(self.moves.problem, self.state, np.array([row]), self.moves.after.owner[[row]])
                yield self._pick(MoveStep((row,), gain=float(gain[0])))

    def _by_gain(self, rows: Ints) -> Iterator[MoveStep]:
        problem = self.moves.problem
        overhead = move_overhead(problem.sizes)
        rest = rows[:0]
        if len(rows) > _LOOKED_AT:
            order = np.argsort(-self._gains(rows) / (problem.costs[rows] + overhead), kind="stable")
            rows, rest = rows[np.sort(order[:_LOOKED_AT])], rows[order[_LOOKED_AT:]]
        for _ in range(_LOOKS):
            able = rows[self._admissible(rows)]
            gains = self._gains(able)
            able, gains = able[gains > 0], gains[gains > 0]
            if not len(able) or self.admission.exhausted:
                break
            best = int((gains / (problem.costs[able] + overhead)).argmax())
            rows = rows[rows != able[best]]
            yield self._pick(MoveStep((int(able[best]),), gain=float(gains[best])))
        for row in (*rows.tolist(), *rest.tolist()):
            if self.admission.exhausted:
                return
            one = np.array([row])
            if self._admissible(one)[0] and (gain := float(self._gains(one)[0])) > 0:
                yield self._pick(MoveStep((row,), gain=gain))

    def _gains(self, rows: Ints) -> Floats:
        """What each move gains on its own; nothing if it would make its target worse than the worst node is."""
        problem, targets = self.moves.problem, self.moves.after.owner[rows]
        gains = move_gains(problem, self.state, rows, targets)
        due = np.maximum(problem.due[targets], 1e-300)
        after = ((self.state.held[targets] + problem.loads[rows]) / due - 1.0) * problem.weights
        worst = tension(problem, self.state.held).max(initial=0.0)
        return np.where(after.max(axis=1, initial=-1.0) <= worst + 1e-12, gains, -np.inf)

    def _jointly(self, rows: Ints) -> Iterator[MoveStep]:
        """Moves that help only together: all at once if there is room for that, otherwise one after the other.

        What helps alone and only waits for a slot is not among them: it needs no company.
        """
        while not self.admission.exhausted:
            rows = rows[np.isin(rows, self.left)]
            rows = rows[self._gains(rows) <= 0][:_JOINT_ROWS]
            able = rows[self._admissible(rows)]
            found = joint_moves(self.moves, self.state, rows, able, self.admission.options.placement)
            step = self._joint_step(found.rows, found.gain) if found is not None else None
            if step is None:
                return
            yield self._pick(step)

    def _joint_step(self, rows: tuple[int, ...], gain: float) -> MoveStep | None:
        """How a set of moves begins; None if it cannot be finished with what is left of the budgets and room."""
        problem, admission = self.moves.problem, self.admission
        total = float(problem.sizes[list(rows)].sum())
        if total > min(admission.bytes_left, admission.bytes_that_fit) or not self._spread_fits(rows):
            return None
        if not self._earned(rows, total):
            self.unsettled = rows
            return None
        if self._together(rows):
            return MoveStep(rows, gain=gain)
        return MoveStep(rows[:1], rows[1:], gain) if self._fit_in_turn(rows) else None

    def _fit_in_turn(self, rows: tuple[int, ...]) -> bool:
        """Whether each of them has room and may be on its target once those before it are done."""
        problem, counts = self.moves.problem, self.counts.copy()
        disk, memory, rates = self.disk_room.copy(), self.memory_room.copy(), self.limit_room.copy()
        for row in rows:
            source, target = int(self.moves.before.owner[row]), int(self.moves.after.owner[row])
            if problem.sizes[row] > disk[target] or 0 < problem.memory[row] > memory[target]:
                return False
            if not within(problem.limited[row], rates[target]):
                return False
            if problem.rivals is not None:
                if crowded(problem, counts)[problem.kinds[row], target]:
                    return False
                counts[problem.kinds[row], [source, target]] += (-1, 1)
            for room, amount in (
                (disk, problem.sizes[row]),
                (memory, problem.memory[row]),
                (rates, problem.limited[row]),
            ):
                room[target] -= amount
                room[source] += amount
        return True

    def _earned(self, rows: tuple[int, ...], total: float) -> bool:
        """Whether this many bytes are worth it: for a node far over the start threshold, or paid for by what has begun,
        or if nothing has been migrated for a while: what is done about changing load would have to be done again.
        """
        problem, settings = self.moves.problem, self.admission.options.placement
        worst = tension(problem, self.moves.before.held)[self.moves.before.owner[list(rows)]].max()
        if worst > _PAIRED * settings.start_threshold or total <= problem.view.balancing:
            return True
        times = [
            history.last_migrated for history in problem.view.history.values() if history.last_migrated is not None
        ]
        return not problem.view.in_flight and problem.view.now - max(times, default=-np.inf) >= quiet_seconds(
            self.admission.options
        )

    def _together(self, rows: tuple[int, ...]) -> bool:
        """Whether all of them may start at this moment."""
        problem, admission = self.moves.problem, self.admission
        if len(rows) > admission.free_total:
            return False
        at = np.array(rows)
        sources, targets = self.moves.before.owner[at], self.moves.after.owner[at]
        nodes, times = np.unique(np.concatenate([sources, targets]), return_counts=True)
        slots = all(
            admission.free_slots(problem.nodes[int(node)].id) >= count for node, count in zip(nodes, times, strict=True)
        )
        into = np.bincount(targets, weights=problem.sizes[at], minlength=len(self.disk_room))
        cached = np.bincount(targets, weights=problem.memory[at], minlength=len(self.disk_room))
        room = (into <= self.disk_room) | (into == 0)
        rates = within(sums(targets, problem.limited[at], len(self.disk_room)), self.limit_room).all()
        if problem.rivals is not None:
            counts = self.counts.copy()
            for row, target in zip(rows, targets.tolist(), strict=True):
                if crowded(problem, counts)[problem.kinds[row], target]:
                    return False
                counts[problem.kinds[row], target] += 1
        return slots and bool(room.all() and rates and ((cached == 0) | (cached <= self.memory_room)).all())

    def _pick(self, step: MoveStep) -> MoveStep:
        problem = self.moves.problem
        for row in step.rows:
            target = int(self.moves.after.owner[row])
            self.state.move(problem, row, target)
            self.disk_room[target] -= problem.sizes[row]
            self.memory_room[target] -= problem.memory[row]
            self.limit_room[target] -= problem.limited[row]
            if problem.rivals is not None:
                self.counts[problem.kinds[row], target] += 1
            if self.spread is not None:
                self.spread.move(int(problem.tables[row]), int(self.moves.before.owner[row]), target)
        self.left = self.left[~np.isin(self.left, step.rows)]
        return step

    def _admissible(self, rows: Ints) -> Bools:
        """Which of these moves no budget and no full target forbids at this moment."""
        problem, targets = self.moves.problem, self.moves.after.owner[rows]
        if self.admission.exhausted:
            return np.zeros(len(rows), dtype=np.bool_)
        able = self._slots_free(rows)
        able &= problem.sizes[rows] <= min(self.admission.bytes_that_fit, self.admission.bytes_left)
        able &= problem.sizes[rows] <= self.disk_room[targets]
        able &= (problem.memory[rows] == 0) | (problem.memory[rows] <= self.memory_room[targets])
        able &= within(problem.limited[rows], self.limit_room[targets])
        if problem.rivals is None and self.spread is None:
            return able
        # A function alone decides about its tables, whatever rules say.
        ruled = self.moves.codes[rows] != _FUNCTION
        if problem.rivals is not None:
            able &= ~(ruled & crowded(problem, self.counts)[problem.kinds[rows], targets])
        if self.spread is not None:
            able &= ~(ruled & self.spread.full(problem.tables[rows], targets))
        return able

    def _spread_fits(self, rows: tuple[int, ...]) -> bool:
        """Whether no node has too many tablets of a table once all of these are done."""
        if self.spread is None:
            return True
        problem, at, counts = self.moves.problem, np.array(rows), self.spread.counts.copy()
        targets = self.moves.after.owner[at]
        np.subtract.at(counts, (problem.tables[at], self.moves.before.owner[at]), 1)
        np.add.at(counts, (problem.tables[at], targets), 1)
        return bool((counts[problem.tables[at], targets] <= self.spread.limits[problem.tables[at]]).all())

    def _slots_free(self, rows: Ints) -> Bools:
        taken = self.admission.busy
        if not taken:
            return np.ones(len(rows), dtype=np.bool_)
        free = np.array([node.id not in taken for node in self.moves.problem.nodes], dtype=np.bool_)
        able: Bools = free[self.moves.before.owner[rows]] & free[self.moves.after.owner[rows]]
        return able


def _leaving(problem: Problem) -> tuple[Ints, Ints]:
    """Tablets that migrations carry to another node at this moment, and where their rows still are."""
    index = {node.id: at for at, node in enumerate(problem.nodes)}
    rank = np.array([index[node.id] for node in problem.view.nodes] or [0], dtype=np.int64)
    owner = rank[problem.view.tablets.node[problem.rows]]
    rows = np.flatnonzero(owner != problem.home)
    return rows, owner[rows]


_MOST = 8  # moves of one set
_STARTS = 24  # moves from which a search for a set starts


@dataclass(frozen=True, slots=True)
class Joint:
    """A set of moves in the order in which they should be made, and what all of them gain."""

    rows: tuple[int, ...]
    gain: float


def joint_moves(moves: Moves, state: LoadState, rows: Ints, able: Ints, settings: PlacementOptions) -> Joint | None:
    """The first set found that is worth it, begun by one of `able`; None if there is none."""
    if len(rows) < 2 or not len(able):
        return None
    gains = move_gains(moves.problem, state, able, moves.after.owner[able])
    for first in able[np.argsort(-gains, kind="stable")][:_STARTS].tolist():
        found = _grown(moves, state, rows, first, settings)
        if found is not None:
            chosen = _trimmed(moves, state, found, able, settings)
            begun = [_ordered(moves, state, chosen, row) for row in chosen if row in able]
            return min(begun, key=lambda one: one[0])[1]
    return None


def _grown(moves: Moves, state: LoadState, rows: Ints, first: int, settings: PlacementOptions) -> list[int] | None:
    changed = state.copy()
    chosen, total = [first], _move(moves, changed, first)
    while len(chosen) < _MOST:
        near = _near(moves, rows, chosen)
        if not len(near):
            return None
        gains = move_gains(moves.problem, changed, near, moves.after.owner[near])
        best = int(near[gains.argmax()])
        chosen.append(best)
        total += _move(moves, changed, best)
        if _worthwhile(moves, (state, changed), chosen, total, settings):
            return chosen
    return None


def _near(moves: Moves, rows: Ints, chosen: list[int]) -> Ints:
    """Other moves that touch a node of the chosen ones: the gains of all others are their own, whatever is chosen."""
    before, after = moves.before.owner, moves.after.owner
    nodes = np.concatenate([before[chosen], after[chosen]])
    touching = np.isin(before[rows], nodes) | np.isin(after[rows], nodes)
    return rows[touching & ~np.isin(rows, chosen)]


def _worthwhile(
    moves: Moves, states: tuple[LoadState, LoadState], chosen: list[int], total: float, settings: PlacementOptions
) -> bool:
    """Whether the set gains enough for the load that it carries, and leaves no node worse than the worst was."""
    problem = moves.problem
    sources = tension(problem, states[0].held)[moves.before.owner[chosen]]
    pressing = bool(sources.max() > settings.start_threshold)
    carried = problem.loads[chosen].sum(axis=0)
    floor = float(joint_floor(carried, problem.floors, settings.min_gain, pressing=pressing))
    if total <= max(floor, 1e-12):
        return False
    before, after = (tension(problem, one.held).max(initial=0.0) for one in states)
    return bool(after <= before + 1e-12)


def _trimmed(moves: Moves, state: LoadState, chosen: list[int], able: Ints, settings: PlacementOptions) -> list[int]:
    """The set without unnecessary moves; one of those that may start stays in it."""
    for row in chosen[:-1]:
        fewer = [one for one in chosen if one != row]
        if not np.isin(fewer, able).any():
            continue
        changed = state.copy()
        total = sum(_move(moves, changed, one) for one in fewer)
        if _worthwhile(moves, (state, changed), fewer, total, settings):
            chosen = fewer
    return chosen


def _ordered(moves: Moves, state: LoadState, chosen: list[int], first: int) -> tuple[float, Joint]:
    """The set in order, begun by one of it, and how bad the worst node is in between."""
    changed, worst = state.copy(), 0.0
    ordered, total, rest = [first], _move(moves, changed, first), [row for row in chosen if row != first]
    while rest:
        worst = max(worst, float(tension(moves.problem, changed.held).max(initial=0.0)))
        at = np.array(rest)
        best = rest[int(move_gains(moves.problem, changed, at, moves.after.owner[at]).argmax())]
        total += _move(moves, changed, best)
        ordered.append(best)
        rest.remove(best)
    return worst, Joint(tuple(ordered), total)


def _move(moves: Moves, state: LoadState, row: int) -> float:
    """Makes a move and says what it gains."""
    target = int(moves.after.owner[row])
    gain = float(move_gains(moves.problem, state, np.array([row]), np.array([target]))[0])
    state.move(moves.problem, row, target)
    return gain
