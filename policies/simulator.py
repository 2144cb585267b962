"""Runs a scenario with the real policies and simulated time, and checks what it expects.

`balancer simulate` and the scenario tests call `simulate`. Pure: the same text gives the same story anywhere. If a
scenario has a schedule, the caller passes a function that says whether a minute of the day is open.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from balancer.policies.bundle_view import Action, ActionKind, BundleView, NodeChange, NodeCondition, PlanResult
from balancer.policies.closing import overloaded_since
from balancer.policies.figures import bytes_text
from balancer.policies.finish_by import ANY, PARK, time_of_day
from balancer.policies.placement_loads import Bools, build_problem, initial_state, tension, underuse
from balancer.policies.plan import make_plan, restricted
from balancer.policies.premake import timeless
from balancer.policies.simulator_events import apply_event
from balancer.policies.simulator_scenario import Scenario, ScenarioError
from balancer.policies.simulator_world import World, tablets_text

MINUTES_PER_DAY = 1440
HELPLESS = ("heat-front", "heat-key", "heat-scan")


@dataclass(frozen=True, slots=True)
class SimulatedSample:
    """One tick."""

    at: float
    loads: dict[str, float]  # node → load relative to its share, where it is tightest: 1 is even
    peak: float  # rows per second of the busiest node, relative to its share
    score: float
    moving: int
    tablets: int


@dataclass(slots=True)
class Story:
    """What happened."""

    scenario: Scenario
    samples: list[SimulatedSample] = field(default_factory=list)
    lines: list[tuple[float, str]] = field(default_factory=list)
    started: list[tuple[float, Action]] = field(default_factory=list)
    finished: list[Action] = field(default_factory=list)
    moved_bytes: float = 0.0
    last_event: float = 0.0
    said: set[tuple[int, str]] = field(default_factory=set)  # verdicts on tablets that have been told already
    world: World = field(default_factory=World)


def simulate(scenario: Scenario, is_open: Callable[[int], bool] | None = None) -> Story:
    """Runs the whole scenario. `is_open` takes a minute of the day."""
    if scenario.schedule and is_open is None:
        raise ScenarioError("the scenario has a schedule, and nobody passed what evaluates it")
    return Simulation(scenario, is_open).run()


class Simulation:
    """One run."""

    def __init__(self, scenario: Scenario, is_open: Callable[[int], bool] | None) -> None:
        self.scenario, self.is_open = scenario, is_open
        self.story = Story(scenario)
        self.world = self.story.world
        self.events = list(scenario.events)

    def run(self) -> Story:
        now = 0.0
        while now <= self.scenario.seconds:
            self.happen(now)
            self._progress(now)
            self._plan(now)
            now += self.scenario.tick
            for content in self.world.contents.values():
                content.grow(self.scenario.tick)
        return self.story

    def happen(self, now: float) -> None:
        """Changes the world as the scenario says."""
        while self.events and self.events[0].at <= now:
            event = self.events.pop(0)
            if event.at:
                self.story.lines.append((now, event.text))
                self.story.last_event = now
            self.story.lines += [(now, line) for line in apply_event(self.world, event, now, self.scenario.seed)]

    def _progress(self, now: float) -> None:
        """Copies what a tick's time allows and finishes what is done."""
        if self.scenario.finish_by == PARK and not self._opens(now):
            return
        for flight in list(self.world.flights):
            flight.left -= self.scenario.rate * self.scenario.tick
            if flight.left <= 0:
                if flight.action.kind is ActionKind.MOVE:
                    self.story.moved_bytes += flight.action.size
                self.world.finish(flight, now)
                self.story.finished.append(flight.action)

    def _plan(self, now: float) -> None:
        options = timeless(self.scenario.options)
        opened = self._opens(now)
        if not opened:
            options = restricted(options, balance=False, heat=False, closed_groups=frozenset())
        # Urgent moves do not wait for a window, so a closed one must not hold them to its length either.
        left = self._seconds_left(now) if opened else None
        view = self.world.view(
            now, options.heat, measured_bytes_per_second=self.scenario.rate, window_seconds_left=left
        )
        # What belongs to something that has started goes on, unless all must be done with the window.
        owed = self.world.owed(view, options) if opened or self.scenario.finish_by == ANY else []
        overloaded = overloaded_since(view, options, self.world.overloaded)
        self.world.overloaded = overloaded
        view = replace(view, balancing=self.world.tail.bytes, reshaped_last=self.world.reshaped_last)
        view = replace(view, overloaded_since=overloaded)
        plan = make_plan(self.world.credited(view, owed), options)
        for change in plan.node_changes:
            self._change_condition(now, change)
        for action in (*owed, *plan.actions):
            self.world.start(action)
            self.story.started.append((now, action))
            self.story.lines.append((now, _line(action)))
        self._tell(now, plan)
        self.world.tail = self.world.tail.after(plan, plan.actions)
        self._sample(now, view, plan)

    def _tell(self, now: float, plan: PlanResult) -> None:
        """Verdicts on hot tablets that no split helps, once each."""
        for rejection in plan.rejections:
            verdict = (rejection.tablets[0] if rejection.tablets else 0, rejection.code)
            if rejection.code in HELPLESS and verdict not in self.story.said:
                self.story.said.add(verdict)
                self.story.lines.append((now, f"leave {verdict[0]}: {rejection.reason}"))

    def _opens(self, now: float) -> bool:
        """Whether the schedule is open at this tick, or was since the last one: the daemon looks back likewise."""
        if self.is_open is None:
            return True
        last = int(now // 60)
        first = max(min(last, int((now - self.scenario.tick) // 60) + 1), 0)
        return any(self.is_open(minute % MINUTES_PER_DAY) for minute in range(first, last + 1))

    def _seconds_left(self, now: float) -> float | None:
        """Seconds until what starts now must be done; None: nothing says so."""
        if self.is_open is None or self.scenario.finish_by == ANY:
            return None
        minute = int(now // 60)
        by = time_of_day(self.scenario.finish_by)
        if by is not None:
            return (by - minute - 1) % MINUTES_PER_DAY * 60.0 + 60.0 - now % 60
        ahead = range(MINUTES_PER_DAY)
        closed = next((step for step in ahead if not self.is_open((minute + step) % MINUTES_PER_DAY)), None)
        # A tick that comes late has as much time as the window had.
        return None if closed is None else max(closed, 1) * 60.0

    def _change_condition(self, now: float, change: NodeChange) -> None:
        node = self.world.nodes[change.node]
        closed = change.condition is NodeCondition.CLOSED
        self.world.nodes[change.node] = replace(node, condition=change.condition, closed_by_daemon=closed)
        self.story.lines.append((now, f"{'close' if closed else 'reopen'} {change.node}: {change.reason}"))

    def _sample(self, now: float, view: BundleView, plan: PlanResult) -> None:
        problem = build_problem(replace(view, in_flight=(), profile=None), self.scenario.options)
        held = initial_state(problem).held
        # The tightest dimension if the node has too much of one, otherwise all of them together.
        worst, mean = tension(problem, held), -underuse(problem, held)
        level = np.where(worst > 0, worst, mean)
        # A node that should hold nothing has no share to compare with: show what it still holds of an average one.
        rest = held.max(axis=1, initial=0.0) * len(problem.nodes)
        due: Bools = np.any(problem.due > 0, axis=1)
        loads = {node.id: float(1 + level[at] if due[at] else rest[at]) for at, node in enumerate(problem.nodes)}
        self.story.samples.append(
            SimulatedSample(now, loads, peak_load(view), plan.score_before, len(self.world.flights), len(view.tablets))
        )


def peak_load(view: BundleView) -> float:
    """The rows per second of the busiest node over its share; 0 if nothing is done. Nodes that are dead, or on their
    way out, have no share; the others have theirs."""
    rates = view.tablets.write_rate + view.tablets.read_rate
    held = np.bincount(view.tablets.node, weights=rates, minlength=len(view.nodes))
    gone = (NodeCondition.DOWN, NodeCondition.DRAINING)
    weights = np.array([node.weight * (node.condition not in gone) for node in view.nodes])
    due = held.sum() * weights / max(weights.sum(), 1e-300)
    return float(np.divide(held, due, out=np.zeros_like(due), where=due > 0).max(initial=0.0))


def _line(action: Action) -> str:
    where = f"{action.source} → {action.target}" if action.kind is ActionKind.MOVE else f"on {action.source}"
    return f"{action.kind} {tablets_text(action)} {where} ({bytes_text(action.size)}): {action.reason}"
