"""What a plan remembers about everything it did not do: numbers by code, a few examples of each, and notes.

`plan` fills it. A plan over a million tablets must not make a million objects, so only examples become `Rejection`s.

Why an idle bundle is not balanced any better: which node stays full, and what would free it.

`plan` asks when a plan proposes nothing and nothing runs. Only a bundle without such a node, or one that no placement
of its tablets could improve, is called `balanced`.

Why a tablet should move, in one sentence with its numbers. Called while a plan's actions are put together.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from balancer.policies.day.dimensions import dimension_text, tablet_rate
from balancer.policies.options import BundleOptions
from balancer.policies.placement.candidates import STANDINGS, group_of, switches
from balancer.policies.placement.problem import Bools, LoadState, Problem, excess, tension, underuse
from balancer.policies.plan.order import Picker
from balancer.policies.plan.wanted import Moves
from balancer.policies.reasons import BUDGETS, MEANINGS, Left, Taken, bytes_text, rate_text, share_text
from balancer.policies.resize.rule_splits import rule_against
from balancer.policies.view import Action, ActionKind, BundleView, NodeCondition, Rejection, base_of

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


def stuck_text(moves: Moves, state: LoadState, node: int, options: BundleOptions) -> str:
    """One sentence about a node that stays above the threshold: how far, why, and what would free it."""
    problem = moves.problem
    dimension, over = tightest(problem, state, node)
    rows = np.flatnonzero(state.owner == node)
    free = rows[moves.standing[rows] == 0]
    name = f"{problem.nodes[node].id} stays {level_text(over)} of {dimension_text(dimension)}"
    if not len(free):
        kept = np.bincount(moves.standing[rows], minlength=len(STANDINGS))
        code = STANDINGS[int(kept.argmax())] if len(rows) else None
        return f"{name}: none of its {len(rows)} tablets may move" + (f", {MEANINGS[code]}" if code else "")
    return (
        f"{name}: no move, exchange or chain of its {len(free)} free tablets gains what its bytes are worth; "
        f"{_relief(problem, state, node, options)}"
    )


def _relief(problem: Problem, state: LoadState, node: int, options: BundleOptions) -> str:
    """What would free the node: smaller tablets, or another node."""
    dimension, _ = tightest(problem, state, node)
    at = problem.dimensions.index(dimension)
    rows = np.flatnonzero(state.owner == node)
    heaviest = int(rows[problem.loads[rows, at].argmax()])
    share = float(problem.loads[heaviest, at] / max(float(problem.due[node, at]), 1e-300))
    if share <= options.placement.stop_threshold:
        return f"a lower min_gain than {options.placement.min_gain:g} or another node would free it"
    what = f"tablet {int(problem.ids[heaviest])} alone is {share_text(share)} of its share"
    return f"smaller tablets would free it: {what}"


def reason_for(moves: Moves, row: int, options: BundleOptions) -> str:
    """The sentence of one move."""
    problem = moves.problem
    source, target = (problem.nodes[int(state.owner[row])].id for state in (moves.before, moves.after))
    size = bytes_text(float(problem.sizes[row]))
    table = problem.view.tables[int(problem.tables[row])].name
    match moves.code(row):
        case Taken.DRAIN:
            text = f"{source} is draining: this tablet's {figures_of(problem, row)} go to {target}, which has room"
        case Taken.DISK_FULL:
            text = f"{_disk_text(moves, source, options)}: {size} go to {target}"
        case Taken.RULE:
            text = f"{_rule_text(moves, row, options)}: {size} go to {target}"
        case Taken.CAPACITY:
            text = f"{_capacity_text(problem, moves.before, row)}: {target} can take it"
        case Taken.SPREAD:
            text = f"{source} has more tablets of {table} than table_spread allows: {size} go to {target}"
        case Taken.FUNCTION:
            text = f"{table} is placed by {options.table(table).placement}, which puts this tablet ({size}) on {target}"
        case Taken.IN_MEMORY:
            text = f"in-memory tables fill {source} more than {target}: this tablet's {size} even them out"
        case Taken.COUNT:
            text = f"{source} has more tablets of {table} than its even number, {target} has fewer"
        case Taken.METRIC:
            group, settings = group_of(options, table)
            text = f"group {group} is spread by {settings.metric}: {source} has more of it than {target}"
        case _:
            text = _relief_text(moves, row)
    return text


def joint_code(moves: Moves, rows: Sequence[int]) -> Taken:
    """Two tablets that change places are an exchange; everything else that helps only together is a chain."""
    before, after = moves.before.owner, moves.after.owner
    crossed = len(rows) == 2 and after[rows[0]] == before[rows[1]] and after[rows[1]] == before[rows[0]]
    return Taken.SWAP if crossed else Taken.CHAIN


def joint_text(moves: Moves, row: int, now: Sequence[int], then: Sequence[int]) -> str:
    """What a move goes together with, and that it would not help alone."""
    together = [_route(moves, other) for other in now if other != row]
    after = [_route(moves, other) for other in then]
    parts = [f"together with {' and '.join(together)}"] if together else []
    parts += [f"followed by {', then '.join(after)}"] if after else []
    return f", {' and '.join(parts)}: they help only together"


def _route(moves: Moves, row: int) -> str:
    problem = moves.problem
    source, target = (problem.nodes[int(state.owner[row])].id for state in (moves.before, moves.after))
    return f"tablet {int(problem.ids[row])} from {source} to {target}"


def figures_of(problem: Problem, row: int) -> str:
    """A tablet's size and, if it has one, its load."""
    columns, at = problem.view.tablets, int(problem.rows[row])
    rate = float(columns.write_rate[at] + columns.read_rate[at])
    return bytes_text(float(columns.sizes[at])) + (f" and {rate_text(rate)}" if rate else "")


def tightest(problem: Problem, state: LoadState, node: int) -> tuple[str, float]:
    """The dimension in which a node is tightest, and how far it is above its due share there."""
    over = excess(problem, state.held)[node]
    at = int((over * problem.weights).argmax())
    return problem.dimensions[at], float(over[at])


def bar_text(problem: Problem, dimension: str, threshold: float) -> str:
    """A threshold as a share of this dimension: one that weighs half may be twice as uneven."""
    weight = float(problem.weights[problem.dimensions.index(dimension)])
    return share_text(threshold / weight if weight else threshold)


def level_text(over: float) -> str:
    """`12 % above its share`."""
    if abs(over) < 0.005:
        return "at its share"
    return f"{share_text(abs(over))} {'above' if over > 0 else 'below'} its share"


def value_text(view: BundleView, row: int, dimension: str) -> str:
    """A tablet's load in one dimension, with its unit."""
    match base_of(dimension):
        case "write_rate":
            return f"{rate_text(tablet_rate(view, row, dimension))} written"
        case "read_rate":
            return f"{rate_text(tablet_rate(view, row, dimension))} read"
        case "memory":
            return f"{bytes_text(float(view.tablets.memory[row]))} of memory"
        case _:
            return bytes_text(float(view.tablets.sizes[row]))


def _relief_text(moves: Moves, row: int) -> str:
    """Where source and target stand in the dimension that this is about, and what the tablet carries."""
    problem, state = moves.problem, moves.before
    source, target = int(state.owner[row]), int(moves.after.owner[row])
    at = _relieved(problem, state, row)
    dimension, levels = problem.dimensions[at], excess(problem, state.held)[:, at]
    over, there = float(levels[source]), float(levels[target])
    at = int(problem.rows[row])
    carried = value_text(problem.view, at, dimension)
    cost = "" if dimension in ("bytes", "tablets") else f" for {bytes_text(float(problem.sizes[row]))} to copy"
    return (
        f"{problem.nodes[source].id} is {level_text(over)} of {dimension_text(dimension)} and "
        f"{problem.nodes[target].id} is {level_text(there)}: this tablet takes {carried} there{cost}"
    )


def _relieved(problem: Problem, state: LoadState, row: int) -> int:
    """The dimension in which the tablet takes most of its node's surplus: not always the tightest one."""
    source = int(state.owner[row])
    surplus = state.held[source] - problem.due[source]
    part = 1.0 - np.abs(surplus - problem.loads[row]) / np.where(surplus > 0, surplus, 1.0)
    return int(np.where(surplus > 0, part * problem.weights, -np.inf).argmax())


def _rule_text(moves: Moves, row: int, options: BundleOptions) -> str:
    """Which rule a tablet's place violates."""
    problem = moves.problem
    node, view = problem.nodes[int(moves.before.owner[row])], problem.view
    zones = options.table(view.tables[int(problem.tables[row])].name).zones
    if zones and node.zone not in zones:
        return f"{node.id} is in zone {node.zone or '(none)'} and the table lives in {', '.join(zones)}"
    return rule_against(view, options, int(problem.ids[row]), node.id) or f"a rule wants it off {node.id}"


def overfull_text(problem: Problem, state: LoadState, node: int) -> str:
    """By how much a node is over a capacity, and whether all nodes together could manage within theirs."""
    worst = _most_over(problem, state, node)
    limit, known = problem.limits[worst], problem.nodes[node]
    capacity = limit.capacity(known)
    over = share_text(-float(state.limit_room[node, worst]) / max(capacity, 1e-300))
    total = float(problem.limited[:, worst].sum())
    all_of_them = float(
        sum(limit.capacity(one) for one, able in zip(problem.nodes, problem.receiving, strict=True) if able)
    )
    why = "no placement was found in which every node keeps to its capacities"
    if total > all_of_them:
        why = f"all tablets do {rate_text(total)} of them and all nodes can do {rate_text(all_of_them)}"
    return f"{known.id} stays {over} over its capacity for {limit.text} ({rate_text(capacity)}): {why}"


def _capacity_text(problem: Problem, state: LoadState, row: int) -> str:
    node = int(state.owner[row])
    worst = _most_over(problem, state, node)
    limit, known, room = problem.limits[worst], problem.nodes[node], float(state.limit_room[node, worst])
    carried = f"this tablet does {rate_text(float(problem.limited[row, worst]))} of them"
    if room >= 0:
        return f"{known.id} makes room, so that no node is over its capacity for {limit.text}; {carried}"
    held, capacity = rate_text(limit.capacity(known) - room), rate_text(limit.capacity(known))
    return f"{known.id} does {held} of {limit.text}, and its capacity is {capacity}; {carried}"


def _most_over(problem: Problem, state: LoadState, node: int) -> int:
    capacities = np.array([limit.capacity(problem.nodes[node]) for limit in problem.limits])
    return int((state.limit_room[node] / np.maximum(capacities, 1e-300)).argmin())


def _disk_text(moves: Moves, source: str, options: BundleOptions) -> str:
    problem = moves.problem
    at = problem.index(source)
    used = float(problem.disk_used[at]) / (problem.nodes[at].disk_capacity or 1.0)
    settings = options.placement
    if used <= settings.close_at_disk_share:
        limit = share_text(settings.reopen_at_disk_share)
        return f"{source} was closed, and its disk is {share_text(used)} full, not yet below {limit}"
    return (
        f"the disk of {source} is {share_text(used)} full, over the {share_text(settings.close_at_disk_share)} allowed"
    )
