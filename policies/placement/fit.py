"""Relieves nodes that do more than they can: a placement in which no capacity is exceeded, if there is one.

`plan_moves` asks when some node is over a capacity for reads or writes; disk and memory limits hold too. Single moves
and exchanges that reduce the excess go first. If they do not get there, and the tablets are few, all placements are
searched, the heaviest tablets first, within a bounded number of steps. Deterministic; nothing is moved for nothing.
"""

import numpy as np

from balancer.policies.placement.candidates import crowded, may_take, over_capacity
from balancer.policies.placement.problem import Bools, LoadState, Problem
from balancer.policies.view import Floats, Ints

_STEPS = 1_000
_ROWS, _OTHERS = 48, 384  # considered in one step: tablets of the node, tablets of others
_SEARCHED = 48  # tablets, at most, of which all placements are searched
_LOOKS = 60_000
_LEAST = 1e-9


def fit_capacities(problem: Problem, state: LoadState, able: Bools) -> Ints:
    """Changes the state; returns the nodes that stay over a capacity."""
    if not len(over_capacity(problem, state)):
        return over_capacity(problem, state)
    home, before = state.owner.copy(), state.copy()
    _Fitting(problem, state, able).descend()
    if len(over_capacity(problem, state)) and int(able.sum()) <= _SEARCHED:
        other = _from_scratch(problem, before, able)
        if other is not None:
            state.take(other)
    _return(problem, state, home)
    return over_capacity(problem, state)


def _from_scratch(problem: Problem, state: LoadState, able: Bools) -> LoadState | None:
    """A placement that fits and has little to do with where the tablets are; None: none was found."""
    loads = _columns(problem) / np.maximum(_columns(problem).sum(axis=0), _LEAST)
    columns = (None, *np.flatnonzero(loads[able].any(axis=0)).tolist())
    for column in columns if problem.rivals is None else ():
        heavy = loads.max(axis=1) if column is None else loads[:, column]
        found = _dealt(problem, state, np.flatnonzero(able), heavy)
        _Fitting(problem, found, able).descend()
        if not len(over_capacity(problem, found)):
            return found
    placed = _Search(problem, state, np.flatnonzero(able)).run()
    found = state.copy()
    for row, target in (placed or {}).items():
        if found.owner[row] != target:
            found.move(problem, row, target)
    return found if placed else None


def _dealt(problem: Problem, state: LoadState, rows: Ints, heavy: Floats) -> LoadState:
    """Distributes all of them again: the heaviest first, each to where it leaves the node least full."""
    found, loads = state.copy(), _columns(problem)
    rooms = _rooms(state)
    np.add.at(rooms, state.owner[rows], loads[rows])
    scale = 1.0 / np.maximum(np.where(np.isfinite(rooms), rooms, 0.0).max(axis=0), _LEAST)
    for row in rows[np.argsort(-heavy[rows], kind="stable")].tolist():
        able = problem.allowed[problem.kinds[row]] & problem.receiving
        able[state.owner[row]] |= problem.allowed[problem.kinds[row], state.owner[row]]
        left = np.where(np.isfinite(rooms), (rooms - loads[row]) * scale, np.inf).min(axis=1)
        target = int(np.where(able, left, -np.inf).argmax()) if able.any() else int(state.owner[row])
        rooms[target] -= loads[row]
        if found.owner[row] != target:
            found.move(problem, row, target)
    return found


def _columns(problem: Problem) -> Floats:
    return np.column_stack([problem.sizes, problem.memory, problem.limited])


def _rooms(state: LoadState) -> Floats:
    return np.column_stack([state.disk_room, state.memory_room, state.limit_room])


class _Fitting:
    """Steps that reduce the excess over all capacities."""

    def __init__(self, problem: Problem, state: LoadState, able: Bools) -> None:
        self.problem, self.state, self.able = problem, state, able
        self.loads = _columns(problem)
        total = np.maximum(self.loads.sum(axis=0), _LEAST)
        self.scale = len(problem.nodes) / total

    def descend(self) -> None:
        """Until no node is over, or nothing helps any that is."""
        stuck: set[int] = set()
        for _ in range(_STEPS):
            over = self._excess(_rooms(self.state))
            over[[*stuck]] = 0.0
            node = int(over.argmax())
            if over[node] <= _LEAST:
                return
            if self._move(node) or self._exchange(node):
                stuck.clear()
            else:
                stuck.add(node)

    def _excess(self, rooms: Floats) -> Floats:
        """…: how far over its capacities a node with this room (…×C) is, as a part of an average node's load."""
        room = np.where(np.isfinite(rooms), rooms, 0.0)
        excess: Floats = (np.maximum(-room, 0.0) * self.scale).sum(axis=-1)
        return excess

    def _mine(self, node: int) -> Ints:
        """The tablets of a node that carry most of what it has too much of."""
        rows = np.flatnonzero(self.able & (self.state.owner == node))
        short = np.maximum(-_rooms(self.state)[node], 0.0) > 0
        carried = (self.loads[rows] * self.scale)[:, short].sum(axis=1)
        rows, carried = rows[carried > 0], carried[carried > 0]
        found: Ints = rows[np.argsort(-carried, kind="stable")][:_ROWS]
        return found

    def _move(self, node: int) -> bool:
        problem, rows = self.problem, self._mine(node)
        nodes = np.flatnonzero(problem.receiving & (np.arange(len(problem.nodes)) != node))
        if not len(rows) or not len(nodes):
            return False
        rooms, loads = _rooms(self.state), self.loads[rows]
        here = self._excess(rooms[node] + loads) - self._excess(rooms[node])
        there = self._excess(rooms[nodes][None] - loads[:, None]) - self._excess(rooms[nodes])
        able = problem.allowed[problem.kinds[rows][:, None], nodes[None, :]]
        if problem.rivals is not None:
            able = able & ~crowded(problem, self.state.counts)[problem.kinds[rows][:, None], nodes[None, :]]
        change = np.where(able, here[:, None] + there, np.inf)
        at, to = np.unravel_index(int(change.argmin()), change.shape)
        if change[at, to] >= -_LEAST:
            return False
        self.state.move(problem, int(rows[at]), int(nodes[to]))
        return True

    def _exchange(self, node: int) -> bool:
        problem, mine = self.problem, self._mine(node)
        theirs = np.flatnonzero(self.able & (self.state.owner != node) & problem.receiving[self.state.owner])[:_OTHERS]
        if not len(mine) or not len(theirs) or not problem.receiving[node]:
            return False
        rooms, at = _rooms(self.state), self.state.owner[theirs]
        gained = self.loads[mine][:, None] - self.loads[theirs][None]
        change = self._excess(rooms[node] + gained) - self._excess(rooms[node])
        change = change + self._excess(rooms[at][None] - gained) - self._excess(rooms[at])
        able = problem.allowed[problem.kinds[mine][:, None], at[None, :]] & problem.allowed[problem.kinds[theirs], node]
        if problem.rivals is not None:
            blocked = crowded(problem, self.state.counts)
            able = able & ~blocked[problem.kinds[mine][:, None], at[None, :]] & ~blocked[problem.kinds[theirs], node]
        change = np.where(able, change, np.inf)
        i, j = np.unravel_index(int(change.argmin()), change.shape)
        if change[i, j] >= -_LEAST:
            return False
        self.state.move(problem, int(mine[i]), int(at[j]))
        self.state.move(problem, int(theirs[j]), node)
        return True


class _Search:
    """All placements of a few tablets, depth first; takes the first that fits.

    Plain lists: for a handful of nodes they are several times as fast as columns.
    """

    def __init__(self, problem: Problem, state: LoadState, rows: Ints) -> None:
        loads, rooms = _columns(problem), _rooms(state)
        np.add.at(rooms, state.owner[rows], loads[rows])
        bounded = np.isfinite(rooms).any(axis=0) & (loads[rows] > 0).any(axis=0)
        loads, rooms = loads[:, bounded], np.where(np.isfinite(rooms), rooms, 1e300)[:, bounded]
        widest = np.maximum(np.where(rooms < 1e300, rooms, 0.0).max(axis=0), _LEAST)
        weight = (loads[rows] / widest).max(axis=1)
        self.problem = problem
        self.order: list[int] = rows[np.argsort(-weight, kind="stable")].tolist()
        self.home: list[int] = state.owner[self.order].tolist()
        self.loads: list[list[float]] = loads[self.order].tolist()
        self.rooms: list[list[float]] = rooms.tolist()
        rest = np.vstack([np.cumsum(loads[self.order][::-1], axis=0)[::-1], np.zeros((1, loads.shape[1]))])
        self.rest: list[list[float]] = rest.tolist()
        self.scale: list[float] = (1.0 / widest).tolist()
        able = problem.allowed[problem.kinds[self.order]] & problem.receiving
        able[np.arange(len(self.order)), self.home] |= problem.allowed[problem.kinds[self.order], self.home]
        self.able: list[list[int]] = [np.flatnonzero(one).tolist() for one in able]
        fixed = np.setdiff1d(np.arange(len(problem.ids)), rows)
        self.kinds = [problem.kinds[fixed[state.owner[fixed] == node]].tolist() for node in range(len(rooms))]
        self.chosen: list[int] = []
        self.looks = 0

    def run(self) -> dict[int, int] | None:
        """Row → node; None: there is no such placement, or it was not found in time."""
        return dict(zip(self.order, self.chosen, strict=True)) if self._place(0) else None

    def _place(self, depth: int) -> bool:
        if depth == len(self.order):
            return all(room >= -_LEAST for rooms in self.rooms for room in rooms)
        self.looks += 1
        if self.looks > _LOOKS or not self._enough(depth):
            return False
        load, kind = self.loads[depth], int(self.problem.kinds[self.order[depth]])
        for node in self._nodes(depth, load, kind):
            rooms = self.rooms[node]
            self.rooms[node] = [room - more for room, more in zip(rooms, load, strict=True)]
            self.kinds[node].append(kind)
            self.chosen.append(node)
            if self._place(depth + 1):
                return True
            self.chosen.pop()
            self.kinds[node].pop()
            self.rooms[node] = rooms
        return False

    def _enough(self, depth: int) -> bool:
        """Whether all nodes together have room for what is left."""
        left = (sum(max(room, 0.0) for room in column) for column in zip(*self.rooms, strict=True))
        return all(need <= room + _LEAST for need, room in zip(self.rest[depth], left, strict=True))

    def _nodes(self, depth: int, load: list[float], kind: int) -> list[int]:
        """Where it fits: where least room would be left over; of nodes that are alike, one."""
        found: list[tuple[float, int]] = []
        seen: list[list[float]] = []
        for node in self.able[depth]:
            rooms = self.rooms[node]
            if any(more > room + _LEAST and more > 0 for more, room in zip(load, rooms, strict=True)):
                continue
            if self._keeps_apart(kind, node) or (rooms in seen and self.problem.rivals is None):
                continue
            if node != self.home[depth]:
                seen.append(rooms)
            left = sum((room - more) * scale for room, more, scale in zip(rooms, load, self.scale, strict=True))
            found.append((left, node))
        return [node for _, node in sorted(found)]

    def _keeps_apart(self, kind: int, node: int) -> bool:
        rivals = self.problem.rivals
        return rivals is not None and any(rivals[kind, other] for other in self.kinds[node])


def _return(problem: Problem, state: LoadState, home: Ints) -> None:
    """What need not have moved goes back, the largest first."""
    moved = np.flatnonzero(state.owner != home)
    for row in moved[np.argsort(-problem.sizes[moved], kind="stable")].tolist():
        back = int(home[row])
        able = problem.sizes[row] <= state.disk_room[back] and problem.memory[row] <= max(state.memory_room[back], 0.0)
        if able and (problem.due[back] > 0).any() and may_take(problem, state, np.array([row]), np.array([back]))[0, 0]:
            state.move(problem, row, back)
