"""What a tired operator asks: how is this tablet, how is this node, why this action. Plain sentences with numbers.

The commands and the API call these with the view and the options a plan was made from; nothing is decided here.

Why a tablet is not moved to a certain node, and the smallest change that would make it move there.

`explain`, the API and the command `why-not` call `why_not`. It asks the same questions as the plan, in the same order,
and stops at the first answer that keeps the tablet where it is.
"""

from dataclasses import dataclass

import numpy as np

from balancer.policies.budgets import Admission
from balancer.policies.day.dimensions import dimension_text
from balancer.policies.options import BundleOptions
from balancer.policies.placement.balance import payback_seconds, pays_back
from balancer.policies.placement.bulk import make_spread
from balancer.policies.placement.candidates import STANDINGS, Decider, back_off_seconds, decider, within
from balancer.policies.placement.problem import LoadState, Problem, build_problem, excess, move_gains, tension, underuse
from balancer.policies.plan.order import Picker
from balancer.policies.plan.record import bar_text, level_text, reason_for, tightest
from balancer.policies.plan.wanted import Moves, disk_share, headroom, plan_moves
from balancer.policies.reasons import BUDGETS, MEANINGS, Left, bytes_text, rate_text, share_text
from balancer.policies.resize.rule_splits import rule_against
from balancer.policies.view import Action, ActionKind, BundleView, NodeCondition, PlanResult

__all__ = ["Explanation", "explain_action", "explain_node", "explain_tablet"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Sentences, the most important first."""

    subject: str
    sentences: tuple[str, ...]


def explain_tablet(view: BundleView, options: BundleOptions, tablet: int) -> Explanation:
    """Where it is, what it carries, what decides about it, and what the plan does with it."""
    problem = build_problem(view, options)
    row = find_row(problem, tablet)
    moves = plan_moves(problem, options)
    table = view.tables[int(problem.tables[row])]
    node = problem.nodes[int(problem.home[row])].id
    sentences = [
        f"tablet {tablet} of table {table.name} is on {node}: {_figures(problem, row)}",
        _part_of_node(problem, moves, row),
        _future(problem, moves, row, options),
        f"its place is decided by the {decider(options, table)} mover",
    ]
    return Explanation(f"tablet {tablet}", tuple(sentences))


def explain_node(view: BundleView, options: BundleOptions, node: str) -> Explanation:
    """How full it is in every dimension, and what the plan takes from it and gives to it."""
    problem = build_problem(view, options)
    at = find_node(problem, node)
    moves = plan_moves(problem, options)
    known = problem.nodes[at]
    count = int((problem.home == at).sum())
    sentences = [f"node {node} is {known.condition} and holds {count} tablets, {_held(problem, at)}"]
    full = disk_share(problem, at)
    if full is not None:
        limits = options.placement
        sentences.append(
            f"its disk is {share_text(full)} full: it closes at {share_text(limits.close_at_disk_share)} and reopens "
            f"below {share_text(limits.reopen_at_disk_share)}"
        )
    else:
        sentences.append(
            "its disk usage is unknown: PostgreSQL does not report it, and the bundle's file sets no `disk`"
        )
    if known.condition in (NodeCondition.ACTIVE, NodeCondition.CLOSED):
        sentences += _levels(problem, moves, at)
    sentences.append(_traffic(problem, moves, at))
    return Explanation(f"node {node}", tuple(sentences))


def explain_action(plan: PlanResult, action: Action) -> Explanation:
    """Why it is proposed, what it costs, and where it stands in the plan."""
    place = plan.actions.index(action) + 1
    tablets = ", ".join(str(tablet) for tablet in action.tablets)
    verb = f"{action.kind} of tablet{'s' if len(action.tablets) > 1 else ''} {tablets}"
    where = f" from {action.source} to {action.target}" if action.kind is ActionKind.MOVE else f" on {action.source}"
    verbs = {ActionKind.MOVE: "copied", ActionKind.EXPIRE: "rewritten: the rows go"}
    cost = f"{bytes_text(action.size)} are {verbs.get(action.kind, 'rewritten')}"
    return Explanation(
        f"action {place}",
        (
            f"{verb}{where}: {action.reason}",
            f"{cost}; it is action {place} of {len(plan.actions)} that may start now",
            f"the plan takes the balance from {plan.score_before:.1f} to {plan.score_after:.1f} of 100",
            f"no plan within these budgets reaches more than {plan.bound:.1f}",
        ),
    )


def _figures(problem: Problem, row: int) -> str:
    columns, at = problem.view.tablets, int(problem.rows[row])
    memory = f", {bytes_text(float(columns.memory[at]))} of memory" if columns.memory[at] else ""
    written, read = rate_text(float(columns.write_rate[at])), rate_text(float(columns.read_rate[at]))
    return f"{bytes_text(float(columns.sizes[at]))}{memory}, {written} written, {read} read"


def _part_of_node(problem: Problem, moves: Moves, row: int) -> str:
    """The tablet's share of its node's load, in the dimension where that is largest."""
    node = int(problem.home[row])
    held = moves.before.held[node]
    parts = np.divide(problem.loads[row], held, out=np.zeros_like(held), where=held > 0)
    if not parts.size:
        return "the bundle carries no load yet"
    at = int(parts.argmax())
    return f"it is {share_text(float(parts[at]))} of its node's {dimension_text(problem.dimensions[at])}"


def _future(problem: Problem, moves: Moves, row: int, options: BundleOptions) -> str:
    target = int(moves.after.owner[row])
    if target != int(problem.home[row]):
        return f"it should move to {problem.nodes[target].id}: {reason_for(moves, row, options)}"
    code = STANDINGS[int(moves.standing[row])]
    if code is not None:
        return f"it stays: {MEANINGS[code]}"
    if not moves.started:
        return f"it stays: no node is {share_text(options.placement.start_threshold)} above its share"
    return "it stays: moving it would not help, or other tablets relieve its node for fewer bytes"


def _held(problem: Problem, at: int) -> str:
    mine, columns = problem.home == at, problem.view.tablets
    rows = problem.rows[mine]
    written, read = float(columns.write_rate[rows].sum()), float(columns.read_rate[rows].sum())
    return f"{bytes_text(float(columns.sizes[rows].sum()))}, {rate_text(written)} written, {rate_text(read)} read"


def _levels(problem: Problem, moves: Moves, at: int) -> list[str]:
    over = excess(problem, moves.before.held)[at]
    order = np.argsort(-over * problem.weights, kind="stable").tolist()
    parts = [f"{level_text(float(over[d]))} of {dimension_text(problem.dimensions[d])}" for d in order]
    return [f"it is {', '.join(parts)}"] if parts else []


def _traffic(problem: Problem, moves: Moves, at: int) -> str:
    out = (moves.before.owner == at) & (moves.after.owner != at)
    into = (moves.before.owner != at) & (moves.after.owner == at)
    given, taken = bytes_text(float(problem.sizes[out].sum())), bytes_text(float(problem.sizes[into].sum()))
    if not out.any() and not into.any():
        return "the plan leaves it as it is"
    return (
        f"in the end the plan takes {int(out.sum())} tablets ({given}) from it and gives it {int(into.sum())} ({taken})"
    )


class Unknown(LookupError):
    """There is no such tablet or node in the bundle; the text says which."""


@dataclass(frozen=True, slots=True)
class WhyNot:
    """The answer. `planned` means that the plan does move it there."""

    tablet: int
    node: str
    code: str
    reason: str
    flip: str  # the smallest change that would lead to another answer; empty if there is none
    planned: bool = False


def why_not(view: BundleView, options: BundleOptions, tablet: int, node: str) -> WhyNot:
    """Why the tablet does not go to the node."""
    problem = build_problem(view, options)
    return _Question(problem, options, find_row(problem, tablet), find_node(problem, node)).answer()


def find_row(problem: Problem, tablet: int) -> int:
    """The tablet's row, or a sentence that there is none."""
    try:
        return problem.row_of(tablet)
    except KeyError:
        raise Unknown(f"bundle {problem.view.bundle} has no tablet {tablet}") from None


def find_node(problem: Problem, node: str) -> int:
    """The node's index, or a sentence that there is none."""
    known = {found.id: at for at, found in enumerate(problem.nodes)}
    if node not in known:
        raise Unknown(f"bundle {problem.view.bundle} has no node {node}; it has {', '.join(known)}")
    return known[node]


class _Question:
    """One tablet and one node."""

    def __init__(self, problem: Problem, options: BundleOptions, row: int, target: int) -> None:
        self.problem, self.options, self.row, self.target = problem, options, row, target
        self.moves: Moves = plan_moves(problem, options)
        self.source = int(problem.home[row])
        self.tablet = int(problem.ids[row])
        self.table = problem.view.tables[int(problem.tables[row])]

    def answer(self) -> WhyNot:
        if self.source == self.target:
            return self._say(Left.SAME_NODE, f"tablet {self.tablet} is on {self._name(self.source)}", "")
        if int(self.moves.after.owner[self.row]) == self.target:
            return self._planned()
        for check in (self._hard, self._condition, self._room, self._soft, self._decider, self._threshold, self._worth):
            found = check()
            if found is not None:
                return found
        return self._others()

    def _planned(self) -> WhyNot:
        """It goes there: now, or says what it waits for and what would free it."""
        picker = Picker(self.moves, Admission(self.problem.view, self.options))
        nothing = np.zeros(len(self.problem.ids), dtype=np.bool_)
        for _ in (*picker.urgent(), *picker.others(nothing)):
            pass
        text, flip = "the plan moves it there as soon as the budgets allow", ""
        obstacle = picker.obstacles()[picker.left == self.row]
        if len(obstacle) and obstacle[0] not in BUDGETS:
            text = f"the plan moves it there, but not yet: {MEANINGS[obstacle[0]]}"
            flip = f"order it: balancer move {self.tablet} {self._name(self.target)}"
        return WhyNot(self.tablet, self._name(self.target), str(self.moves.code(self.row)), text, flip, planned=True)

    def _hard(self) -> WhyNot | None:
        code = STANDINGS[int(self.moves.standing[self.row])]
        flips = {
            Left.PINNED: f"unpin tablet {self.tablet}",
            Left.QUARANTINED: f"release tablet {self.tablet} from quarantine",
            Left.IN_FLIGHT: "wait until its migration has finished",
            Left.SOURCE_DOWN: f"bring {self._name(self.source)} back",
        }
        if code is Left.BACKING_OFF:
            history = self.problem.view.history[self.tablet]
            until = (history.last_failed or 0.0) + back_off_seconds(self.options, history.failures)
            flips[code] = f"wait {until - self.problem.view.now:.0f} s"
        return self._say(code, MEANINGS[code], flips[code]) if code in flips and code is not None else None

    def _condition(self) -> WhyNot | None:
        node = self.problem.nodes[self.target]
        codes = {
            NodeCondition.DOWN: (Left.TARGET_DOWN, f"bring {node.id} back"),
            NodeCondition.DRAINING: (Left.TARGET_DRAINING, f"undrain {node.id}"),
            NodeCondition.CLOSED: (Left.TARGET_CLOSED, f"open {node.id}"),
        }
        if node.condition in codes:
            code, flip = codes[node.condition]
            return self._say(code, MEANINGS[code], flip)
        zones = self.options.table(self.table.name).zones
        if zones and node.zone not in zones:
            text = f"{node.id} is in zone {node.zone or '(none)'}, table {self.table.name} lives in {', '.join(zones)}"
            return self._say(Left.WRONG_ZONE, text, f"add {node.zone or 'its zone'} to the zones of {self.table.name}")
        rule = rule_against(self.problem.view, self.options, self.tablet, node.id)
        return (
            self._say(Left.AGAINST_RULE, rule, f"change {rule.partition(':')[0].split(' keeps')[0]}") if rule else None
        )

    def _room(self) -> WhyNot | None:
        problem, size = self.problem, float(self.problem.sizes[self.row])
        room = float((problem.disk_room - headroom(problem, self.options))[self.target])
        name, share = self._name(self.target), share_text(self.options.placement.reopen_at_disk_share)
        if size > room:
            able = bytes_text(max(room, 0.0))
            text = f"{name} may be given {able} until {share} of its disk are full, this is {bytes_text(size)}"
            return self._say(Left.TARGET_DISK, text, f"free {bytes_text(size - room)} on {name}")
        memory, left = float(problem.memory[self.row]), float(problem.memory_room[self.target])
        if memory > max(left, 0.0):
            text = f"{name} has {bytes_text(max(left, 0.0))} of memory left, it needs {bytes_text(memory)}"
            return self._say(Left.TARGET_MEMORY, text, f"give {name} {bytes_text(memory - left)} more memory")
        if not within(problem.limited[self.row], problem.limit_room[self.target]):
            return self._capacity(name)
        spread = make_spread(problem, problem.home, self.options.placement.table_spread)
        if spread is not None and spread.full(problem.tables[[self.row]], np.array([self.target]))[0]:
            limit = int(spread.limits[problem.tables[self.row]])
            return self._say(
                Left.TABLE_SPREAD, f"{name} has {limit} tablets of {self.table.name}", "raise table_spread"
            )
        return None

    def _capacity(self, name: str) -> WhyNot:
        problem, more, room = self.problem, self.problem.limited[self.row], self.problem.limit_room[self.target]
        worst = int((room - more).argmin())
        limit, left = problem.limits[worst], max(float(room[worst]), 0.0)
        text = f"{name} may be given {rate_text(left)} of {limit.text} more, this does {rate_text(float(more[worst]))}"
        return self._say(Left.TARGET_CAPACITY, text, f"raise the capacity of {name} for {limit.rate}")

    def _soft(self) -> WhyNot | None:
        code = STANDINGS[int(self.moves.standing[self.row])]
        if code is None:
            return None
        flip = f"set enable_move = true for the group of {self.table.name}"
        if code is Left.COOLING_DOWN:
            since = self.problem.view.history[self.tablet].last_migrated or 0.0
            flip = f"wait {since + self.options.budgets.cool_down - self.problem.view.now:.0f} s"
        elif code is Left.SOURCE_CLOSED:
            flip = f"open {self._name(self.source)}"
        elif code is Left.TABLE_OFF:
            flip = f"set enable_auto_tablet_move = true for table {self.table.name}"
        elif code is Left.MOVER_OFF:
            in_memory = decider(self.options, self.table) is Decider.IN_MEMORY
            flip = f"set enable_{'in_memory_' if in_memory else ''}cell_balancer = true"
        return self._say(code, MEANINGS[code], flip)

    def _decider(self) -> WhyNot | None:
        who = decider(self.options, self.table)
        if who is Decider.OBJECTIVE:
            return None
        if who is Decider.FUNCTION:
            function = self.options.table(self.table.name).placement
            text = f"table {self.table.name} is placed by {function}, which does not put it there"
            return self._say(Left.FUNCTION_PLACED, text, 'set placement = "balanced"')
        text = f"the {who} mover decides about table {self.table.name} and leaves it where it is"
        return self._say(Left.OTHER_MOVER, text, "")

    def _threshold(self) -> WhyNot | None:
        if self.moves.started:
            return None
        held, start = self.moves.before.held, self.options.placement.start_threshold
        worst = float(tension(self.problem, held).max(initial=0.0))
        low = float(underuse(self.problem, held).max(initial=0.0))
        node = int(tension(self.problem, held).argmax())
        dimension, over = tightest(self.problem, self.moves.before, node)
        text = (
            f"the bundle is balanced: the tightest node is {self._name(node)}, {level_text(over)} of "
            f"{dimension_text(dimension)}, and moves start at {bar_text(self.problem, dimension, start)} there"
        )
        return self._say(Left.BALANCED, text, f"set start_threshold below {max(worst, low, 0.0):.3f}")

    def _worth(self) -> WhyNot | None:
        problem, options, state = self.problem, self.options, self.moves.before
        if not pays_back(problem, state, options)[self.row]:
            seconds = float(payback_seconds(problem, options)[self.row])
            text = (
                f"copying {bytes_text(float(problem.sizes[self.row]))} pays back in {_hours(seconds)}, "
                f"payback_horizon is {_hours(options.placement.payback_horizon)}"
            )
            flip = "" if np.isinf(seconds) else f"set payback_horizon to {seconds:.0f} s"
            return self._say(Left.NO_PAYBACK, text, flip)
        gain, wanted = self._gain(state), self._wanted()
        if gain > wanted:
            return None
        source, target = self._name(self.source), self._name(self.target)
        text = f"{source} would not be relieved by more than {target} would be burdened"
        if gain > 0:
            text = (
                f"{target} would be less than min_gain ({options.placement.min_gain:g}) emptier than {source} after it"
            )
        return self._say(Left.NO_GAIN, text, self._relief_needed(state))

    def _relief_needed(self, state: LoadState) -> str:
        """How much less the target must hold for the move to be worth it; found by halving."""
        changed = state.copy()
        low, high = 0.0, 1.0
        changed.held[self.target] = 0.0
        if self._gain(changed) <= self._wanted():
            return ""
        for _ in range(30):
            middle = (low + high) / 2
            changed.held[self.target] = state.held[self.target] * (1.0 - middle)
            low, high = (low, middle) if self._gain(changed) > self._wanted() else (middle, high)
        return f"{self._name(self.target)} would have to hold {share_text(high)} less"

    def _others(self) -> WhyNot:
        after = int(self.moves.after.owner[self.row])
        if after != self.source:
            text = f"the plan moves it to {self._name(after)}, which has more room for what it carries"
            return self._say(Left.OTHERS_BETTER, text, f"close {self._name(after)}")
        leaving = np.flatnonzero((self.moves.before.owner == self.source) & (self.moves.after.owner != self.source))
        names = ", ".join(str(int(tablet)) for tablet in self.problem.ids[leaving[:3]])
        text = f"{self._name(self.source)} is relieved for fewer bytes by tablets {names}"
        if not len(leaving):
            text = f"{self._name(self.source)} need not lose anything, and other nodes fill {self._name(self.target)}"
        return self._say(Left.OTHERS_BETTER, text, f"pin tablets {names}" if len(leaving) else "")

    def _gain(self, state: LoadState) -> float:
        return float(move_gains(self.problem, state, np.array([self.row]), np.array([self.target]))[0])

    def _wanted(self) -> float:
        weighted = (self.problem.loads[self.row] * self.problem.floors).sum()
        return float(self.options.placement.min_gain * 2.0 * weighted)

    def _name(self, node: int) -> str:
        return self.problem.nodes[node].id

    def _say(self, code: Left, reason: str, flip: str) -> WhyNot:
        return WhyNot(self.tablet, self._name(self.target), str(code), reason, flip)


def _hours(seconds: float) -> str:
    return "never" if np.isinf(seconds) else f"{seconds / 3600:.1f} h"
