"""One word and one sentence for a bundle. Pure: everything that may stand in the way is given.

The order of the questions is the order of importance to an operator: lost writes, what is running, what is broken, what
is in the way, what it waits for. It says "balanced" only when none of them applies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from balancer.nodes.session.connection import LOCKED_OUT
from balancer.planner.bundle_state import NodeReport, ScheduleReport, StateWord
from balancer.planner.windows import Openings
from balancer.policies.reasons import Left
from balancer.policies.view import ActionKind, PlanResult
from balancer.settings import Mode

EVEN = 99.0
"""A score this high needs no explanation."""


@dataclass(frozen=True, slots=True)
class VerdictFacts:
    """What a verdict is made from."""

    now: datetime
    mode: Mode
    plan: PlanResult
    nodes: Sequence[NodeReport]
    owned: Mapping[str, int]  # node → how many tablets it has
    schedule: ScheduleReport
    running: Sequence[str]  # migrations in words
    held: Sequence[str]  # those that wait at a safe point for their window
    started: int
    paused: bool
    paused_until: datetime | None
    leading: bool
    leader: str | None
    waiting_plan: str  # a plan that waits for approval; empty: none
    refused: str  # why an action could not be started; empty: none was refused
    orders: Sequence[
        tuple[str, bool]
    ] = ()  # operators' orders in words, and whether they need not wait for the schedule
    promised: int = 0  # moves that follow on others and have not been started


@dataclass(frozen=True, slots=True)
class PastWindow:
    """What became of the last window: it says in the closed minutes what the open ones have shown.

    A window may be one minute long. Who looks in the other thirty-nine would otherwise see only that it waits.
    """

    hindered: str = ""
    """What stood in the way in its last open minute; empty: something could start, or nothing had to."""
    missed: datetime | None = None
    """A minute that opened while nobody looked, and that is too long ago to be used."""
    since: datetime | None = None
    """When somebody had last looked before it."""

    def looked(self, openings: Openings, since: datetime | None) -> "PastWindow":
        """At a tick, before it acts."""
        missed = openings.bundle.missed
        if openings.any:
            return replace(self, missed=None, since=None)
        return self if missed is None else PastWindow("", missed, since)

    def judged(
        self, openings: Openings, word: StateWord, sentence: str, *, began_some: bool
    ) -> tuple["PastWindow", StateWord, str]:
        """The same, and word and sentence with what has to be added to them."""
        if openings.any:
            blocked = word is StateWord.BLOCKED and not began_some
            return replace(self, hindered=sentence if blocked else ""), word, sentence
        if word is not StateWord.WAITING:
            return (self if word is StateWord.BLOCKED else replace(self, hindered="")), word, sentence
        if self.hindered:
            return self, StateWord.BLOCKED, f"nothing could start in the last window: {self.hindered}"
        return self, word, sentence + self._of_missed()

    def _of_missed(self) -> str:
        if self.missed is None:
            return ""
        last = f": the tick before was at {self.since:%H:%M:%S}" if self.since else ""
        return f"; the window of {self.missed:%Y-%m-%d %H:%M} UTC was missed{last}"


def verdict(situation: VerdictFacts) -> tuple[StateWord, str]:
    """The word, and the sentence that says what, how long still, until when or by what."""
    # Moves that help only after others stay pending if those others do not come: by themselves they do not count.
    wanted = len(situation.plan.actions) and len(situation.plan.actions) + situation.plan.pending_moves
    wanted += situation.promised
    broken = [node for node in situation.nodes if _is_broken(node)]
    broken.sort(key=lambda node: not node.rewound)
    if broken and broken[0].rewound:  # before anything that is running: acknowledged writes are missing
        return StateWord.BLOCKED, _broken(broken[0], len(broken))
    if situation.running:
        return StateWord.WORKING, _working(situation)
    if situation.held:
        return StateWord.WAITING, _held(situation)
    if broken:
        return StateWord.BLOCKED, _broken(broken[0], len(broken))
    return _healthy(situation, wanted)


def _is_broken(node: NodeReport) -> bool:
    """A node that an operator has given up is not waited for."""
    return node.state != "lost" and bool(not node.reachable or node.is_standby or node.disagreements)


def _healthy(situation: VerdictFacts, wanted: int) -> tuple[StateWord, str]:
    if situation.orders or not wanted:
        return _ordered(situation) if situation.orders else _idle(situation)
    blocked = _steering(situation) or situation.refused
    if blocked:
        return StateWord.BLOCKED, blocked
    return _to_come(situation, wanted)


def _to_come(situation: VerdictFacts, wanted: int) -> tuple[StateWord, str]:
    if not situation.schedule.open:
        return StateWord.WAITING, _waiting(situation, wanted)
    return StateWord.WORKING, f"{_actions(wanted)} about to start"


def _working(situation: VerdictFacts) -> str:
    first = situation.running[0]
    more = len(situation.running) - 1
    left = situation.plan.pending_moves + max(0, len(situation.plan.actions) - situation.started)
    words = first + (f" and {more} more" if more else "")
    words += "".join(f"; {order}" for order, _ in situation.orders)
    return words + (f"; {_actions(left)} to follow" if left else "")


def _held(situation: VerdictFacts) -> str:
    more = len(situation.held) - 1
    words = situation.held[0] + (f" and {more} more" if more else "")
    return f"{words} {_until(situation.schedule)}"


def _ordered(situation: VerdictFacts) -> tuple[StateWord, str]:
    """An order is in progress, and nothing is running at this moment."""
    order, unscheduled = situation.orders[0]
    if situation.paused:
        return StateWord.BLOCKED, f"{_paused(situation)}; {order}"
    if not situation.leading and situation.leader is None:
        return StateWord.BLOCKED, f"no instance leads; {order}"
    if situation.refused:
        return StateWord.BLOCKED, f"{situation.refused}; {order}"
    if not situation.schedule.open and not unscheduled:
        return StateWord.WAITING, f"{order}; the rest {_until(situation.schedule)}"
    return StateWord.WORKING, order


def _paused(situation: VerdictFacts) -> str:
    until = f" until {situation.paused_until:%Y-%m-%d %H:%M} UTC" if situation.paused_until else ""
    return f"paused by an operator{until}"


def _broken(node: NodeReport, count: int) -> str:
    more = f", and {count - 1} more" if count > 1 else ""
    if not node.reachable:
        return f"{down_words(node)}{more}"
    if node.is_standby:
        return f"node {node.id} is a standby: name the primary in its DSN{more}"
    return f"node {node.id} is not trusted: {node.disagreements[0]}{more}"


def down_words(node: NodeReport) -> str:
    """Which node does not answer, since when and why, in one short sentence."""
    since = f" since {node.unreachable_since:%H:%M:%S} UTC" if node.unreachable_since else ""
    if node.error.startswith(LOCKED_OUT):
        return f"{node.id} does not let us in{since} ({node.error.removeprefix(LOCKED_OUT)}): see `balancer node check`"
    return f"{node.id} is down{since} ({node.error})" if node.error else f"{node.id} is down{since}"


def _idle(situation: VerdictFacts) -> tuple[StateWord, str]:
    hindrance = _hindrance(situation.plan)
    draining = [node.id for node in situation.nodes if node.state == "draining"]
    stuck = [node for node in draining if situation.owned.get(node)]
    if stuck:
        left = situation.owned[stuck[0]]
        why = hindrance or "no node may take them"
        return StateWord.BLOCKED, f"node {stuck[0]} cannot be emptied, {_count(left, 'tablet')} left: {why}"
    broken = [rejection.reason for rejection in situation.plan.rejections if rejection.code == Left.BROKEN_METRIC]
    if broken:
        return StateWord.BLOCKED, broken[0]
    uncut = _uncut(situation.plan)
    if uncut:
        return StateWord.BLOCKED, uncut
    off = ""
    if situation.plan.score_before < situation.plan.limit - 1:
        off = _switched_off(situation.plan)
        blocked = hindrance or _waiting_moves(situation.plan) or ("" if off else _stuck(situation.plan))
        if blocked:
            return StateWord.BLOCKED, blocked
    if draining:
        names, verb = " and ".join(draining), "are" if len(draining) > 1 else "is"
        return StateWord.BALANCED, f"nothing to do; node {names} {verb} empty and may be removed"
    return (
        StateWord.BALANCED,
        f"score {situation.plan.score_before:.0f} of 100{_best(situation.plan)}; nothing to do{off}",
    )


def _uncut(plan: PlanResult) -> str:
    """Why what is due cannot start, however even the nodes are; empty: nothing is hindered for longer than a tick."""
    found = [one for one in plan.rejections if one.code in _UNCUT and one.kind is not ActionKind.MOVE]
    found += [one for one in plan.rejections if one.code == Left.WINDOW_TOO_SHORT]
    if not found:
        return ""
    return f"{_count(plan.counts[found[0].code], 'candidate')} held back: {found[0].reason}"


def _best(plan: PlanResult) -> str:
    """Why a low score is as good as it gets; empty: it is high, or could be better."""
    if plan.score_before >= EVEN or plan.score_before < plan.limit - 1:
        return ""
    reason, _, _ = _stuck(plan).partition("; ")
    return f", the best these tablets allow{': ' if reason else ''}{reason}"


def _waiting_moves(plan: PlanResult) -> str:
    """Why moves that the plan wants do not start, whatever the reason; empty: it wants none."""
    if not plan.pending_moves:
        return ""
    waiting = [rejection for rejection in plan.rejections if rejection.target]
    why = f": tablet {waiting[0].tablets[0]}, for one: {waiting[0].reason}" if waiting else ""
    return f"{_count(plan.pending_moves, 'move')} cannot start{why}"


def _stuck(plan: PlanResult) -> str:
    """The node that stays fullest, and what would free it; empty: none is over the threshold."""
    sentences = [rejection.reason for rejection in plan.rejections if rejection.code == Left.NO_GAIN]
    more = plan.counts.get(Left.NO_GAIN, 0) - 1
    return sentences[0] + (f"; {_count(more, 'more node')} likewise" if more > 0 else "") if sentences else ""


def _switched_off(plan: PlanResult) -> str:
    """What an operator has switched off, where that is why nothing is done."""
    found = [code for code in _OFF if plan.counts.get(code)]
    return f": {_OFF[found[0]]}" if found else ""


def _hindrance(plan: PlanResult) -> str:
    """What holds most candidates back, in words; empty: nothing that an operator could change."""
    hindered = {code: count for code, count in plan.counts.items() if code in _HINDRANCES and count}
    if not hindered:
        return ""
    code = max(hindered, key=lambda code: hindered[code])
    if code in _NAMED:
        return next((found.reason for found in plan.rejections if found.code == code), _HINDRANCES[code])
    return f"{_count(hindered[code], 'candidate')} held back: {_HINDRANCES[code]}"


_HINDRANCES = {
    "pinned": "their tablets are pinned",
    "quarantined": "their tablets are quarantined; look at `balancer moves`, then `balancer release`",
    "backing-off": "their last migrations failed, and they wait before the next try",
    "cooling-down": "their tablets were migrated recently and rest for cool_down",
    "source-closed": "an operator closed their node: it keeps what it has until it is opened",
    "target-disk": "no node has the disk space for them",
    "target-memory": "no node has the memory for them",
    "no-room": "no node has room for them",
    "over-capacity": "nodes exceed their capacities, and no placement was found that keeps to them",
    "across-a-rule": "a rule ends in the middle of tablets that cannot be cut now",
    "broken-rule": "a rule names keys that are not of the table's types",
    "window-too-short": "the window is too short for them; see finish_by",
    "bytes-per-window": "the bytes of this window are used up",
}


_UNCUT = ("quarantined", "backing-off")
"""What holds back splits and merges, though nodes may be even; a window that is too short holds back moves as well."""

_NAMED = ("over-capacity", "broken-rule")
"""Hindrances of the whole bundle, whose own sentences say which node or rule it is."""

_OFF = {
    "mover-off": "moves are switched off; see enable_cell_balancer and enable_in_memory_cell_balancer",
    "group-off": "moves are switched off for a group of tables; see enable_move",
    "table-off": "moves are switched off for tables; see enable_auto_tablet_move",
}


def _steering(situation: VerdictFacts) -> str:
    wanted = _actions(len(situation.plan.actions) + situation.plan.pending_moves)
    if situation.paused:
        return f"{_paused(situation)}; {wanted} held back"
    if situation.mode is Mode.OBSERVE:
        return f"the mode is observe: {wanted} proposed, none will be started"
    if situation.waiting_plan:
        return f"plan {situation.waiting_plan} waits for approval: balancer apply {situation.waiting_plan}"
    if not situation.leading and situation.leader is None:
        return f"no instance leads; {wanted} held back"
    return ""


def _waiting(situation: VerdictFacts, wanted: int) -> str:
    return f"{_actions(wanted)} {_until(situation.schedule)}"


def _until(schedule: ScheduleReport) -> str:
    until = f"until {schedule.next_open:%Y-%m-%d %H:%M} UTC" if schedule.next_open else "for ever: it never opens"
    return f"until the schedule opens, {until} ({schedule.formula})"


def _actions(count: int) -> str:
    return _count(count, "action")


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
