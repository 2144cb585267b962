"""Carries plans out tick by tick until nothing more is started, as the daemon would: every action succeeds."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np

from balancer.planner.bundle_state import ScheduleReport, StateWord
from balancer.planner.verdict import VerdictFacts, verdict
from balancer.policies.budgets import BalancingCredit, affordable, credited, waiting_flights
from balancer.policies.options import BundleOptions
from balancer.policies.plan.order import quiet_seconds
from balancer.policies.plan.plan import make_plan
from balancer.policies.view import Action, ActionKind, BundleView, PlanResult, TabletHistory
from balancer.settings import Mode
from tests.support.bundle_views import moved

TICK = 60.0
LULL = 300.0  # to the next plan if nothing was started: then only the time that tablets have rested changes
MOST_TICKS = 2000
SCHEDULE = ScheduleReport("", "", "UTC", True, None, None)


@dataclass(slots=True)
class Run:
    """A bundle driven by the planner. Only moves are carried out: its tablets have suitable sizes."""

    view: BundleView
    options: BundleOptions
    rests: bool = True  # whether tablets rest after a move
    plan: PlanResult = field(default_factory=PlanResult)
    tail: BalancingCredit = field(default_factory=BalancingCredit)
    promises: list[tuple[tuple[int, str], ...]] = field(default_factory=list)
    history: dict[int, TabletHistory] = field(default_factory=dict)

    def tick(self) -> tuple[Action, ...]:
        """Plans, and carries out everything that is started; returns what that was."""
        owed = affordable([self._owed(chain) for chain in self.promises], self.view, self.options)
        started = {action.tablets[0] for action in owed}
        self.promises = [chain for chain in self.promises if chain[0][0] not in started]
        later = [pair for chain in self.promises for pair in chain] + [pair for one in owed for pair in one.then]
        self.plan = make_plan(credited(self.view, owed, waiting_flights(later, self.view)), self.options)
        actions = (*owed, *self.plan.actions)
        assert all(action.kind is ActionKind.MOVE for action in actions)
        self.promises += [action.then for action in actions if action.then]
        self.tail = self.tail.after(self.plan, self.plan.actions)
        view = moved(self.view, {action.tablets[0]: action.target for action in actions})
        now = view.now + (TICK if actions or self.promises else LULL)
        if self.rests:
            self.history |= {action.tablets[0]: TabletHistory(last_migrated=now) for action in actions}
        self.view = replace(view, now=now, history=dict(self.history), balancing=self.tail.bytes)
        return actions

    def _owed(self, chain: tuple[tuple[int, str], ...]) -> Action:
        """The next move of a chain whose previous one is done."""
        tablet, target = chain[0]
        row = int(np.flatnonzero(self.view.tablets.ids == tablet)[0])
        source = self.view.nodes[int(self.view.tablets.node[row])].id
        return Action(ActionKind.MOVE, "", (tablet,), "", "follow-up", source, target, then=chain[1:])


@dataclass(frozen=True, slots=True)
class Settled:
    """A bundle at rest: nothing was started for longer than anything waits."""

    view: BundleView
    plan: PlanResult
    scores: tuple[float, ...]  # before each tick
    moves: int
    bytes: float
    carried_again: int  # moves of tablets that had been moved before
    soonest: float  # least seconds between two moves of one tablet


def settle(view: BundleView, options: BundleOptions) -> Settled:
    """Runs it until it is at rest."""
    run, quiet, total = Run(view, options), 0.0, 0.0
    scores, times = [], dict[int, list[float]]()
    for _ in range(MOST_TICKS):
        now, actions = run.view.now, run.tick()
        scores.append(run.plan.score_before)
        quiet = 0.0 if actions else quiet + run.view.now - now
        if quiet > quiet_seconds(options) + LULL:
            moves = sum(map(len, times.values()))
            gaps = [float(gap) for at in times.values() for gap in np.diff(at)]
            soonest = min(gaps, default=np.inf)
            return Settled(run.view, run.plan, tuple(scores), moves, total, moves - len(times), soonest)
        for action in actions:
            times.setdefault(action.tablets[0], []).append(now)
        total += sum(action.size for action in actions)
    raise AssertionError("it does not come to rest")


def stands_below(settled: Settled, options: BundleOptions) -> bool:
    """Whether some node is over the start threshold although a better placement may exist."""
    plan = settled.plan
    return plan.score_before < min(100.0 / (1.0 + options.placement.start_threshold), plan.limit - 1)


def word(settled: Settled) -> StateWord:
    """What an operator is told."""
    situation = VerdictFacts(
        now=datetime.fromtimestamp(settled.view.now, UTC),
        mode=Mode.AUTONOMOUS,
        plan=settled.plan,
        nodes=(),
        owned={},
        schedule=SCHEDULE,
        running=(),
        held=(),
        started=0,
        paused=False,
        paused_until=None,
        leading=True,
        leader="here",
        waiting_plan="",
        refused="",
    )
    return verdict(situation)[0]
