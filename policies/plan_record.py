"""What a plan remembers about everything it did not do: numbers by code, a few examples of each, and notes.

`plan` fills it. A plan over a million tablets must not make a million objects, so only examples become `Rejection`s.
"""

from collections.abc import Iterable

import numpy as np

from balancer.policies.bundle_view import Action, ActionKind, NodeCondition, Rejection
from balancer.policies.day_loads import dimension_text
from balancer.policies.figures import bytes_text, share_text
from balancer.policies.move_reasons import bar_text, level_text, overfull_text, tightest
from balancer.policies.options import BundleOptions
from balancer.policies.order import Picker
from balancer.policies.placement_candidates import STANDINGS, switches
from balancer.policies.placement_loads import Bools, Problem, tension, underuse
from balancer.policies.reasons import BUDGETS, MEANINGS, Left
from balancer.policies.rest import stuck_text
from balancer.policies.wanted_moves import Moves

EXAMPLES = 5


class Record:
    """Collects while a plan is made."""

    def __init__(self, problem: Problem, options: BundleOptions) -> None:
        self._problem, self._options = problem, options
        self._counts: dict[str, int] = {}
        self._examples: dict[str, list[Rejection]] = {}

    def add_rejections(self, rejections: Iterable[Rejection]) -> None:
        """What other policies have considered and left."""
        for rejection in rejections:
            self._note(rejection, 1)

    def reject(self, action: Action, code: Left, reason: str) -> None:
        """An action that has to wait."""
        sentence = f"{action.reason}; but {reason}"
        self._note(Rejection(action.kind, action.tablets, str(code), sentence, action.target), 1)

    def add_left(self, moves: Moves, picker: Picker) -> None:
        """All moves that were not taken: those that wait, those that are impossible, and nodes that nothing helps."""
        self._add_waiting(moves, picker)
        self._add_standing(moves)
        for row in moves.stranded[:EXAMPLES].tolist():
            reason = f"{self._home(row)} must give it away, but no node may take its {self._size(row)}"
            self._move_rejection(row, Left.NO_ROOM, reason, 0)
        self._add_count(Left.NO_ROOM, len(moves.stranded))
        for node in moves.overfull.tolist():
            text = overfull_text(self._problem, moves.after, node)
            self._note(Rejection(ActionKind.MOVE, (), str(Left.OVER_CAPACITY), text), 1)
        self._add_stuck(moves, picker)

    def counts(self) -> dict[str, int]:
        """How many candidates each code has held back."""
        return dict(sorted(self._counts.items()))

    def examples(self) -> tuple[Rejection, ...]:
        """Some of each."""
        return tuple(rejection for _, found in sorted(self._examples.items()) for rejection in found)

    def notes(self, moves: Moves, picker: Picker) -> tuple[str, ...]:
        """What an operator should know at a glance."""
        notes = [self._level_note(moves)] if self._problem.dimensions and len(self._problem.nodes) else []
        waiting = len(picker.left)
        if waiting:
            size = bytes_text(float(self._problem.sizes[picker.left].sum()))
            notes.append(f"{waiting} more moves ({size}) lead to the same goal and wait for the budgets")
        if len(moves.stranded):
            notes.append(f"{len(moves.stranded)} tablets must leave their nodes and no node may take them")
        notes += [overfull_text(self._problem, moves.after, node) for node in moves.overfull.tolist()]
        return tuple(notes)

    def _level_note(self, moves: Moves) -> str:
        tight = tension(self._problem, moves.before.held)
        node = int(tight.argmax())
        dimension, over = tightest(self._problem, moves.before, node)
        place = (
            f"the tightest node is {self._problem.nodes[node].id}, {level_text(over)} of {dimension_text(dimension)}"
        )
        start, stop = (
            bar_text(self._problem, dimension, threshold)
            for threshold in (self._options.placement.start_threshold, self._options.placement.stop_threshold)
        )
        if moves.started and not len(moves.rows()) and not self._problem.view.in_flight:
            return f"{place}, and no move that is allowed makes it more even"
        if moves.started and self._problem.view.balancing > 0:
            return f"{place}; moves have begun, and end at {stop}"
        if moves.started:
            return f"{place}; moves start at {start}"
        low = abs(float(underuse(self._problem, moves.before.held).max(initial=0.0)))
        return f"balanced: {place}, where moves start at {start}, and the emptiest is {share_text(low)} below"

    def _add_waiting(self, moves: Moves, picker: Picker) -> None:
        codes = picker.obstacles()
        for code in sorted(set(codes.tolist())):
            rows = picker.left[codes == code]
            self._add_count(code, len(rows))
            for row in rows[:EXAMPLES].tolist():
                self._waiting_example(moves, picker, row, code)

    def _waiting_example(self, moves: Moves, picker: Picker, row: int, code: Left) -> None:
        target = self._problem.nodes[int(moves.after.owner[row])].id
        action = Action(ActionKind.MOVE, "", (), "", "", self._home(row), target, size=float(self._problem.sizes[row]))
        why = picker.admission.explain(action, code) if code in BUDGETS else MEANINGS[code]
        self._move_rejection(row, code, f"it should move from {self._home(row)} to {target}, but {why}", 0, target)

    def _add_standing(self, moves: Moves) -> None:
        """Tablets that may not move, on nodes that should lose something.

        If moves are switched off, that is the reason, whatever else there is: nothing else would free the tablet. But a
        node that must be emptied ignores the switches.
        """
        emptied = self._problem.conditions(NodeCondition.DRAINING, NodeCondition.DOWN)[self._problem.home]
        off = switches(self._problem, self._options)
        standing = np.where((off > 0) & ~emptied, off, moves.standing)
        wanted = self._donors(moves)[self._problem.home] & (standing > 0)
        numbers = np.bincount(standing[wanted], minlength=len(STANDINGS))
        for number, code in enumerate(STANDINGS):
            if code is not None and numbers[number]:
                self._add_count(code, int(numbers[number]))
                for row in np.flatnonzero(wanted & (standing == number))[:EXAMPLES].tolist():
                    self._move_rejection(row, code, f"it is on {self._home(row)}, but {MEANINGS[code]}", 0)

    def _donors(self, moves: Moves) -> Bools:
        over = tension(self._problem, moves.before.held) > self._options.placement.start_threshold
        return over | self._problem.conditions(NodeCondition.DRAINING, NodeCondition.DOWN)

    def _add_stuck(self, moves: Moves, picker: Picker) -> None:
        """Nodes that stay above the threshold although the objective did all it could."""
        if not moves.started:
            return
        # If nothing more will happen, things stay as they are, whatever would be better.
        end = moves.after if picker.busy else moves.before
        tight = tension(self._problem, end.held)
        order = np.argsort(-tight, kind="stable")
        full = order[tight[order] > self._options.placement.start_threshold]
        for node in full[:EXAMPLES].tolist():
            reason = stuck_text(moves, end, node, self._options)
            self._note(Rejection(ActionKind.MOVE, (), str(Left.NO_GAIN), reason), 0)
        self._add_count(Left.NO_GAIN, len(full))

    def _move_rejection(self, row: int, code: Left, reason: str, count: int, target: str = "") -> None:
        tablet = int(self._problem.ids[row])
        self._note(Rejection(ActionKind.MOVE, (tablet,), str(code), reason, target), count)

    def _note(self, rejection: Rejection, count: int) -> None:
        self._add_count(rejection.code, count)
        kept = self._examples.setdefault(rejection.code, [])
        if len(kept) < EXAMPLES:
            kept.append(rejection)

    def _add_count(self, code: str, count: int) -> None:
        if count:
            self._counts[str(code)] = self._counts.get(str(code), 0) + count

    def _home(self, row: int) -> str:
        return self._problem.nodes[int(self._problem.home[row])].id

    def _size(self, row: int) -> str:
        return bytes_text(float(self._problem.sizes[row]))
