"""Which moves are started now, and in what order: always the one that helps most for its bytes at this moment.

Only part of a plan fits the budgets, so each step must be good on its own: after every pick the gains of the others are
looked at again, as if nothing but the picks so far would happen. `plan` calls `Picker` with the budgets it has left.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from balancer.policies.budgets import Admission
from balancer.policies.bundle_view import Floats, Ints
from balancer.policies.objective import exchange_floor, move_gains, swap_gain
from balancer.policies.placement_loads import Bools, LoadState
from balancer.policies.reasons import Left, Taken
from balancer.policies.wanted_moves import CODES, URGENT, Moves

_LOOKS = 256  # picks that look at the gains again; afterwards the last look decides the order
_LOAD, _SWAP = CODES.index(Taken.LOAD), CODES.index(Taken.SWAP)


@dataclass(slots=True)
class Picker:
    """Draws moves from a plan until the budgets are spent. `left` has those that were not drawn."""

    moves: Moves
    admission: Admission
    state: LoadState = field(init=False)  # as it is, plus what was picked
    disk_room: Floats = field(init=False)  # what leaves a node frees its room only when it is done
    memory_room: Floats = field(init=False)
    left: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.state = self.moves.before.copy()
        self.disk_room, self.memory_room = self.state.disk_room.copy(), self.state.memory_room.copy()
        self.left = self.moves.rows()

    def urgent(self) -> Iterator[tuple[int, float]]:
        """Draining nodes and full disks: by reason, then the largest first, so that long copies start early."""
        problem, codes = self.moves.problem, self.moves.codes
        rows = self.left[np.isin(codes[self.left], [CODES.index(code) for code in URGENT])]
        yield from self._in_order(rows[np.lexsort((rows, -problem.sizes[rows], codes[rows]))])

    def others(self, taken: Bools) -> Iterator[tuple[int, float]]:
        """Everything else, except for tablets that another action has: YT's movers as they say, then by gain."""
        codes = self.moves.codes
        rows = self.left[~taken[self.left] & ~np.isin(codes[self.left], [CODES.index(code) for code in URGENT])]
        plain = rows[(codes[rows] != _LOAD) & (codes[rows] != _SWAP)]
        yield from self._in_order(plain[np.lexsort((plain, codes[plain]))])
        yield from self._by_gain(rows[codes[rows] == _LOAD])
        yield from self._swaps(rows[codes[rows] == _SWAP])

    def obstacle(self, row: int) -> Left:
        """Why a move that was not picked has to wait."""
        if self.admission.exhausted:
            return Left.MOVES_TOTAL
        rows = np.array([row])
        if not self._slots_free(rows)[0]:
            return Left.MOVES_PER_NODE
        if row in self.moves.swaps and self.admission.options.budgets.moves_per_node < 2:
            return Left.SWAP_NEEDS_TWO
        if self.moves.problem.sizes[row] > self.admission.bytes_that_fit:
            return Left.WINDOW_TOO_SHORT
        if self.moves.problem.sizes[row] > self.admission.bytes_left:
            return Left.BYTES_PER_WINDOW
        return Left.WAITS

    def _in_order(self, rows: Ints) -> Iterator[tuple[int, float]]:
        for row in rows.tolist():
            if self.admission.exhausted:
                return
            if self._admissible(np.array([row]))[0]:
                gain = move_gains(self.moves.problem, self.state, np.array([row]), self.moves.after.owner[[row]])
                yield from self._pick(row, float(gain[0]))

    def _by_gain(self, rows: Ints) -> Iterator[tuple[int, float]]:
        problem, targets = self.moves.problem, self.moves.after.owner
        overhead = float(problem.sizes.mean()) + 1.0 if len(problem.sizes) else 1.0
        for _ in range(_LOOKS):
            able = rows[self._admissible(rows)]
            gains = move_gains(problem, self.state, able, targets[able])
            able, gains = able[gains > 0], gains[gains > 0]
            if not len(able) or self.admission.exhausted:
                return
            best = int((gains / (problem.costs[able] + overhead)).argmax())
            rows = rows[rows != able[best]]
            yield from self._pick(int(able[best]), float(gains[best]))
        gains = move_gains(problem, self.state, rows, targets[rows])
        rows, gains = rows[gains > 0], gains[gains > 0]
        yield from self._in_order(rows[np.argsort(-gains / (problem.costs[rows] + overhead), kind="stable")])

    def _swaps(self, rows: Ints) -> Iterator[tuple[int, float]]:
        """Both halves or none: a half alone would make things worse, and the next plan might take it back."""
        problem, min_gain = self.moves.problem, self.admission.options.placement.min_gain
        for give in rows.tolist():
            take = self.moves.swaps[give]
            if give < take and self._pair_admissible(give, take):
                gain = swap_gain(problem, self.state, give, take)
                if gain > float(exchange_floor(problem, np.array(give), np.array(take), min_gain)):
                    yield from self._pick(give, gain)
                    yield from self._pick(take, gain)

    def _pair_admissible(self, give: int, take: int) -> bool:
        problem, admission = self.moves.problem, self.admission
        ends = (problem.nodes[int(self.moves.before.owner[row])].id for row in (give, take))
        both = float(problem.sizes[give] + problem.sizes[take])
        return (
            bool(self._admissible(np.array([give, take])).all())
            and admission.free_total >= 2
            and all(admission.free_slots(node) >= 2 for node in ends)
            and both <= admission.bytes_left
        )

    def _pick(self, row: int, gain: float) -> Iterator[tuple[int, float]]:
        target = int(self.moves.after.owner[row])
        self.state.move(self.moves.problem, row, target)
        self.disk_room[target] -= self.moves.problem.sizes[row]
        self.memory_room[target] -= self.moves.problem.memory[row]
        self.left = self.left[self.left != row]
        yield row, gain

    def _admissible(self, rows: Ints) -> Bools:
        """Which of these moves no budget and no full target forbids at this moment."""
        problem, targets = self.moves.problem, self.moves.after.owner[rows]
        if self.admission.exhausted:
            return np.zeros(len(rows), dtype=np.bool_)
        able = self._slots_free(rows)
        able &= problem.sizes[rows] <= min(self.admission.bytes_that_fit, self.admission.bytes_left)
        able &= problem.sizes[rows] <= self.disk_room[targets]
        able &= (problem.memory[rows] == 0) | (problem.memory[rows] <= self.memory_room[targets])
        return able

    def _slots_free(self, rows: Ints) -> Bools:
        nodes = self.moves.problem.nodes
        free = np.array([self.admission.free_slots(node.id) > 0 for node in nodes], dtype=np.bool_)
        able: Bools = free[self.moves.before.owner[rows]] & free[self.moves.after.owner[rows]]
        return able
