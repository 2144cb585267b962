"""The whole plan of one bundle: the one entry that the daemon, the commands and the simulator call.

A view and the options go in, a `PlanResult` comes out; the same input gives the same plan, byte for byte. Order:
urgent moves (draining nodes, full disks), splits and merges by size, heat, then everything that balances. A tablet has
one action at most, and nothing is admitted beyond a budget.

Who gets the slots when splits and merges want them as well as moves: shares, turns, and the order by need.

`plan` asks. Each kind may use half of the slots while the other wants some, and all of them when it does not. The kind
that went last lets the other begin, so that even a single slot is shared; and a node that the next in turn waits for is
kept free for it: otherwise whatever needs one node would always be faster than what needs two.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest

import numpy as np

from balancer.policies.budgets import Admission, moves_at_once
from balancer.policies.metric import MetricError, parse_metric
from balancer.policies.options import BundleOptions, GroupOptions
from balancer.policies.placement.candidates import LAST_HARD, history_standing
from balancer.policies.placement.problem import Bools, Problem, build_problem, tension
from balancer.policies.plan.order import MoveStep, Picker
from balancer.policies.plan.record import Record, joint_code, joint_text, reason_for
from balancer.policies.plan.score import bound, limit, score
from balancer.policies.plan.wanted import Moves, node_changes, plan_moves
from balancer.policies.reasons import MEANINGS, Left, Taken
from balancer.policies.resize.heat import plan_heat
from balancer.policies.resize.rule_splits import kept_to_rules, rule_cuts
from balancer.policies.resize.sizes import plan_sizes
from balancer.policies.resize.time_ranges import EXPIRE, PREMAKE, plan_expiry, plan_premake
from balancer.policies.view import Action, ActionKind, BundleView, Floats, Ints, PlanResult, Rejection, TabletHistory

HEAT = "heat-"  # how the codes of actions for heat begin
FIRST = (HEAT, PREMAKE, EXPIRE)  # codes of splits and others that do not take turns with moves
GATHERING = "gathering"  # the code with which `sizes` says that tablets are brought together to be merged


def make_plan(view: BundleView, options: BundleOptions) -> PlanResult:
    """What should be done now, what has to wait, and why."""
    options, broken = without_broken_metrics(view, options)
    problem = build_problem(view, options)
    reshaping, weighed = reshape(view, options)
    record = Record(problem, options)
    record.add_rejections((*weighed, *broken))
    kept = {tablet for action in reshaping for tablet in action.tablets}
    kept |= {tablet for rejection in weighed if rejection.code == GATHERING for tablet in rejection.tablets}
    moves = plan_moves(problem, options, reserved=_rows(problem, kept))
    admission = Admission(view, options)
    movable = moves.standing == 0
    best = bound(problem, moves.before, movable | (moves.standing > LAST_HARD), admission)
    actions, picker = _admit(moves, reshaping, admission, options, record)
    record.add_left(moves, picker)
    return PlanResult(
        actions=tuple(actions),
        rejections=record.examples(),
        counts=record.counts(),
        node_changes=node_changes(problem, options),
        pending_moves=len(picker.left),
        pending_bytes=float(problem.sizes[picker.left].sum()),
        score_before=score(problem, moves.before),
        score_after=score(problem, picker.state),
        bound=max(best, score(problem, picker.state)),
        limit=limit(problem),
        notes=record.notes(moves, picker),
        unfinished=bool(len(moves.for_balance())) or bool(view.in_flight),
        overloaded=relieved_nodes(moves, options.placement.start_threshold),
    )


def relieved_nodes(moves: Moves, threshold: float) -> frozenset[str]:
    """Nodes this far above their due share that the plan relieves."""
    problem = moves.problem
    over = tension(problem, moves.before.held) > threshold
    sources = np.unique(moves.before.owner[moves.for_balance()])
    return frozenset(problem.nodes[int(node)].id for node in sources if over[node])


def reshape(view: BundleView, options: BundleOptions) -> tuple[list[Action], list[Rejection]]:
    """Splits and merges, and moves that bring tablets together for them: at the bounds of rules, by time, by size, by
    heat, one action per tablet."""
    sizes, heat = plan_sizes(view, options, table_metrics(view, options)), plan_heat(view, options)
    ahead, expired = plan_premake(view, options), plan_expiry(view, options)
    cuts, uncut = rule_cuts(view, options)
    proposed, forbidden = kept_to_rules(view, options, (*ahead.actions, *sizes.actions, *heat.actions))
    rejections = [*ahead.rejections, *expired.rejections, *sizes.rejections, *heat.rejections, *uncut, *forbidden]
    taken: dict[int, Action] = {}
    actions = []
    for action in (*cuts, *expired.actions, *proposed):
        first = next((taken[tablet] for tablet in action.tablets if tablet in taken), None)
        if first is None:
            actions.append(action)
            taken |= dict.fromkeys(action.tablets, action)
        else:
            reason = f"{action.reason}; but the plan has a {first.kind} of it already ({first.code})"
            rejections.append(Rejection(action.kind, action.tablets, str(Left.TAKEN), reason, action.target))
    return actions, rejections


def table_metrics(view: BundleView, options: BundleOptions) -> dict[str, Floats]:
    """By table name: the group's metric of each tablet, for tables that are split and merged by it."""
    found = {}
    for table in view.tables:
        wished, metric = options.table(table.name), options.metric(table.name)
        by_count = wished.desired_tablet_count is not None
        wanted = options.group(table.name).reshard_by_metric if by_count else wished.desired_tablet_metric is not None
        if metric and wanted:
            rows = np.arange(table.first, table.last)
            found[table.name] = parse_metric(metric).evaluate(view.tablets, rows)[rows]
    return found


def without_broken_metrics(view: BundleView, options: BundleOptions) -> tuple[BundleOptions, list[Rejection]]:
    """The options in which groups whose metric is meaningless for some tablet rest, and what is wrong with them.

    A negative load, or none at all, would send tablets anywhere; the other groups and heat do not wait for it.
    """
    groups, found = dict(options.balancer.groups), []
    measured: dict[str, list[Ints]] = {}
    for table in view.tables:
        if options.metric(table.name):
            measured.setdefault(options.group_name(table.name), []).append(np.arange(table.first, table.last))
    for name in sorted(measured):
        try:
            parse_metric(groups[name].metric).evaluate(view.tablets, np.concatenate(measured[name]))
        except MetricError as error:
            groups[name] = replace(groups[name], metric="", enable_move=False, enable_reshard=False)
            text = f"group {name} is neither moved nor split: {error}"
            found.append(Rejection(ActionKind.MOVE, (), str(Left.BROKEN_METRIC), text))
    if not found:
        return options, found
    return replace(options, balancer=replace(options.balancer, groups=groups)), found


def _admit(
    moves: Moves, reshaping: list[Action], admission: Admission, options: BundleOptions, record: Record
) -> tuple[list[Action], Picker]:
    """What is urgent, then splits and merges and moves in turn, within their shares; then what there is room for."""
    picker = Picker(moves, admission)
    turns = _Turns(moves, picker, options, record)
    turns.urgent()
    reshaping = turns.startable(by_need(reshaping))
    first = [action for action in reshaping if action.code == Taken.RULE]
    first += [action for action in reshaping if action.code.startswith(FIRST)]
    turns.reshape(first, None)
    reshaping = [action for action in reshaping if action not in first]
    shares = Shares.of(moves.problem.view, options)
    if moves.problem.view.reshaped_last and reshaping:
        turns.move(shares.moves)
    if len(picker.left):
        turns.reshape(reshaping, shares.reshapes)
    if reshaping:
        turns.move(shares.moves - turns.moved)
    turns.reshape(reshaping, None)
    turns.move(None)
    turns.reject_waiting([*first, *reshaping])
    if not turns.actions and not moves.problem.view.in_flight:
        picker.drop_useless()
    return turns.actions, picker


class _Turns:
    """Admits actions of one plan, in turns."""

    def __init__(self, moves: Moves, picker: Picker, options: BundleOptions, record: Record) -> None:
        self.moves, self.picker, self.options, self.record = moves, picker, options, record
        self.admission = picker.admission
        self.actions: list[Action] = []
        self.moved = 0  # steps for balance that were started
        self.taken: set[int] = set()  # actions that reshape, by their place in memory
        self.spoken: set[int] = set()
        # Nodes that the first of a kind waits for while its kind has less than its share.
        self.kept_for_moves: frozenset[str] = frozenset()
        self.kept_for_reshapes: frozenset[str] = frozenset()

    def urgent(self) -> None:
        """Draining nodes and full disks."""
        for step in self.picker.urgent():
            self._take_step(step)

    def startable(self, reshaping: list[Action]) -> list[Action]:
        """Those that only a budget holds back."""
        urgent = {int(tablet) for tablet in self.moves.problem.ids[self.moves.urgent_rows()]}
        found = []
        for action in reshaping:
            resting = _resting(action, self.moves.problem.view, self.options)
            if urgent.intersection(action.tablets):
                self.record.reject(action, Left.TAKEN, "its node is being emptied, and that comes first")
            elif resting is not None:
                self.record.reject(action, resting, MEANINGS[resting])
            else:
                found.append(action)
        return found

    def reshape(self, reshaping: list[Action], share: int | None) -> None:
        """Starts splits and merges, up to their share; then the node that the next one waits for is kept free."""
        left = len(reshaping) if share is None else share
        self.admission.reserved = self.kept_for_moves
        for action in reshaping:
            if left <= 0 or self.admission.exhausted:
                break
            if id(action) not in self.taken and self.admission.obstacle(action) is None:
                self._take(action)
                self.taken.add(id(action))
                left -= 1
        if share is not None and left > 0:
            waiting = [action for action in reshaping if id(action) not in self.taken]
            self.kept_for_reshapes = first_nodes(waiting, self.admission.busy)

    def move(self, share: int | None) -> None:
        """Starts steps for balance, up to their share; then the nodes that the next one waits for are kept free."""
        self.admission.reserved = self.kept_for_reshapes
        before = self.moved
        for step in islice(self.picker.others(_rows(self.moves.problem, self.spoken)), share and max(share, 0)):
            self._take_step(step)
            self.moved += 1
        if share is not None and self.moved - before < share:
            self.kept_for_moves = self.picker.wanted_nodes()

    def reject_waiting(self, reshaping: list[Action]) -> None:
        """Says what holds back the splits and merges that were not started."""
        self.admission.reserved = self.kept_for_moves
        for action in reshaping:
            if id(action) not in self.taken:
                code = self.admission.obstacle(action) or Left.MOVES_TOTAL
                self.record.reject(action, code, self.admission.explain(action, code))
        self.admission.reserved = self.kept_for_reshapes

    def _take(self, action: Action) -> None:
        self.admission.admit(action)
        self.actions.append(action)
        self.spoken.update(action.tablets)

    def _take_step(self, step: MoveStep) -> None:
        for action in step_actions(self.moves, step, self.options):
            self._take(action)
        self.admission.promise(float(self.moves.problem.sizes[list(step.then)].sum()))


def _resting(action: Action, view: BundleView, options: BundleOptions) -> Left | None:
    """What the last migrations of its tablets forbid. Splits do not rest after a success: those for heat are judged by
    newer samples. Merges of tablets that heat has split do, and so does a move that brings tablets together: nothing is
    carried twice within minutes."""
    joins = action.code.startswith(HEAT) and action.kind is not ActionKind.SPLIT
    rests = joins or action.kind is ActionKind.MOVE
    forbidden = {Left.QUARANTINED, Left.BACKING_OFF} | ({Left.COOLING_DOWN} if rests else set())
    for tablet in action.tablets:
        standing = history_standing(view, options, view.history.get(tablet, TabletHistory()))
        if standing in forbidden:
            return standing
    return None


def step_actions(moves: Moves, step: MoveStep, options: BundleOptions) -> list[Action]:
    """The moves that start now, with their reasons; the first brings the rest with it."""
    problem = moves.problem
    follow = tuple((int(problem.ids[row]), problem.nodes[int(moves.after.owner[row])].id) for row in step.then)
    actions = [_move_action(moves, row, step, options) for row in step.now]
    return [replace(actions[0], then=follow), *actions[1:]] if follow else actions


def _move_action(moves: Moves, row: int, step: MoveStep, options: BundleOptions) -> Action:
    problem = moves.problem
    source, target = int(moves.before.owner[row]), int(moves.after.owner[row])
    code = joint_code(moves, step.rows) if len(step.rows) > 1 else moves.code(row)
    beside = joint_text(moves, row, step.now, step.then) if len(step.rows) > 1 else ""
    return Action(
        kind=ActionKind.MOVE,
        table=problem.view.tables[int(problem.tables[row])].name,
        tablets=(int(problem.ids[row]),),
        reason=reason_for(moves, row, options) + beside,
        code=str(code),
        source=problem.nodes[source].id,
        target=problem.nodes[target].id,
        size=float(problem.sizes[row]),
        gain=step.gain,
    )


def restricted(options: BundleOptions, *, balance: bool, heat: bool, closed_groups: frozenset[str]) -> BundleOptions:
    """Options for a moment in which not every schedule is open: what is not due is off, urgent moves are not.

    `balance` is the bundle's own schedule, `heat` that of `[heat]`, `closed_groups` are groups whose schedule is
    closed.
    """
    balancer = options.balancer
    known = set(balancer.groups) | {options.group_name(name) for name in options.tables} | {"default"}
    shut = closed_groups if balance else frozenset(known)
    groups = {name: balancer.groups.get(name) or GroupOptions() for name in sorted(known)}
    off = {name: replace(group, enable_move=False, enable_reshard=False) for name, group in groups.items()}
    balancer = replace(balancer, groups={name: (off if name in shut else groups)[name] for name in groups})
    return replace(options, balancer=balancer, heat=options.heat if heat else replace(options.heat, enable=False))


def _rows(problem: Problem, tablets: set[int]) -> Bools:
    """T: which tablets are among these."""
    return np.isin(problem.ids, np.array(sorted(tablets), dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Shares:
    """How many of each kind may be started before the other has had its turn."""

    moves: int
    reshapes: int

    @classmethod
    def of(cls, view: BundleView, options: BundleOptions) -> "Shares":
        """Half of the slots each, less what runs already."""
        running = [migration.source == migration.target for migration in view.in_flight if not migration.waits]
        total = moves_at_once(view, options)
        half = max(1, total // 2)
        reshapes = sum(running)
        return cls(max(0, max(1, total - half) - (len(running) - reshapes)), max(0, half - reshapes))


def by_need(actions: Iterable[Action]) -> list[Action]:
    """Splits and merges of all tables in the order of need, as in YT; the two in turn, so that both make progress.

    Of merges those of most tablets, then the smallest; of splits those into most tablets, then the largest.
    """
    merges: list[Action] = []
    splits: list[Action] = []
    for action in actions:
        (splits if action.kind is ActionKind.SPLIT else merges).append(action)
    merges.sort(key=lambda action: (-len(action.tablets), action.size))
    splits.sort(key=lambda action: (-max(action.count, len(action.parts)), -action.size))
    return [action for pair in zip_longest(merges, splits) for action in pair if action is not None]


def first_nodes(actions: Sequence[Action], busy: frozenset[str]) -> frozenset[str]:
    """The nodes of the first action that waits for one of them; none if nothing waits for a node."""
    ends = ({action.source, action.target} - {""} for action in actions)
    return next((frozenset(nodes) for nodes in ends if nodes & busy), frozenset())
