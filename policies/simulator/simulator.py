"""Runs a scenario with the real policies and simulated time, and checks what it expects.

`balancer simulate` and the scenario tests call `simulate`. Pure: the same text gives the same story anywhere. If a
scenario has a schedule, the caller passes a function that says whether a minute of the day is open.

What the statements of a scenario do to the simulated bundle. `simulator` calls this when their time comes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from balancer.policies.finish_by import ANY, PARK, time_of_day
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.placement.problem import Bools, build_problem, initial_state, tension, underuse
from balancer.policies.plan.plan import make_plan, restricted
from balancer.policies.plan.wanted import overloaded_since
from balancer.policies.reasons import bytes_text
from balancer.policies.resize.time_ranges import timeless
from balancer.policies.simulator.scenario import (
    MOST_NODES,
    MOST_TABLETS,
    Scenario,
    ScenarioError,
    Statement,
    parse_count,
    parse_load,
    parse_number,
    parse_size,
)
from balancer.policies.simulator.world import LOWEST_KEY, Content, World, interval, make_content, tablets_text
from balancer.policies.view import Action, ActionKind, BundleView, NodeChange, NodeCondition, NodeView, PlanResult

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


_CONDITIONS = {
    "drain": NodeCondition.DRAINING,
    "down": NodeCondition.DOWN,
    "close": NodeCondition.CLOSED,
    "undrain": NodeCondition.ACTIVE,
    "up": NodeCondition.ACTIVE,
    "open": NodeCondition.ACTIVE,
}


def apply_event(world: World, event: Statement, now: float, seed: int) -> list[str]:
    """Changes the world; returns lines for the story if something broke."""
    match event.verb:
        case "nodes":
            _add_nodes(world, event)
        case "table":
            _add_table(world, event, seed)
        case "grow":
            _content(world, event).growth = parse_size(_word(event, 1), event.line) / 60.0
        case "load":
            content = _content(world, event)
            content.writes = _number(event, "writes", content.writes)
            content.reads = _number(event, "reads", content.reads)
            content.load = parse_load(event.named.get("load", content.load), event.line)
        case _:
            return _change_node(world, event, now)
    return []


def _change_node(world: World, event: Statement, now: float) -> list[str]:
    name = _known(event, _word(event, 0), world.nodes)
    lines = []
    if event.verb in ("down", "fail"):
        broken = [flight for flight in world.flights if name in (flight.action.source, flight.action.target)]
        for flight in broken:
            world.fail(flight, now)
            lines.append(f"{flight.action.kind} {tablets_text(flight.action)} failed")
    if event.verb in _CONDITIONS:
        world.nodes[name] = replace(world.nodes[name], condition=_CONDITIONS[event.verb], closed_by_daemon=False)
    return lines


def _add_nodes(world: World, event: Statement) -> None:
    for name in _names(event):
        world.nodes[name] = NodeView(
            name,
            zone=event.named.get("zone", ""),
            weight=_number(event, "weight", 1.0),
            disk_capacity=_size(event, "disk"),
            memory=_size(event, "memory"),
        )
        world.other_bytes[name] = _size(event, "used") or 0.0
    if len(world.nodes) > MOST_NODES:
        raise ScenarioError(f"line {event.line}: a story has at most {MOST_NODES} nodes")


def _add_table(world: World, event: Statement, seed: int) -> None:
    name, layout, count = _shape(event)
    content = make_content(
        hashed=layout != "range",
        total=_size(event, "size") or 0.0,
        load=parse_load(event.named.get("load", "even"), event.line),
        data=event.named.get("data", "even"),
        seed=seed,
    )
    content.writes, content.reads = (_number(event, key, 0.0) for key in ("writes", "reads"))
    world.contents[name] = content
    if event.named.get("memory") == "yes":
        world.in_memory.add(name)
    nodes = event.named["on"].split(",") if "on" in event.named else list(world.nodes)
    if not nodes:
        raise ScenarioError(f"line {event.line}: there are no nodes yet: write a line like `nodes n1..n3` before it")
    for node in nodes:
        _known(event, node, world.nodes)
    if layout == "whole":
        world.whole.add(name)
    world.add_tablets(name, _lowers(content, count), nodes)


def _shape(event: Statement) -> tuple[str, str, int]:
    """Name, layout and tablets of a table."""
    if len(event.words) == 2 and event.words[1] == "whole":
        return event.words[0], "whole", 1
    if len(event.words) != 3 or event.words[1] not in ("hash", "range"):
        raise ScenarioError(f"line {event.line}: write `table NAME hash|range TABLETS …` or `table NAME whole …`")
    name, layout, count = event.words[0], event.words[1], parse_count(event.words[2], event.line, MOST_TABLETS)
    if not count or (layout == "hash" and count & (count - 1)):
        raise ScenarioError(f"line {event.line}: a range table has 1 tablet or more, a hash table 1, 2, 4, 8 …")
    return name, layout, count


def _lowers(content: Content, count: int) -> list[tuple[int, Leaf | None]]:
    if content.hash:
        return [(interval(leaf)[0], leaf) for leaf in (Leaf(count, at) for at in range(count))]
    cuts = content.cuts(0, int(content.keys[-1]) + 1, count)
    return [(key, None) for key in (LOWEST_KEY, *cuts)]


def _content(world: World, event: Statement) -> Content:
    return world.contents[_known(event, _word(event, 0), world.contents)]


def _word(event: Statement, at: int) -> str:
    if at >= len(event.words):
        raise ScenarioError(f"line {event.line}: {event.text!r} says too little")
    return event.words[at]


def _known(event: Statement, name: str, known: Mapping[str, object]) -> str:
    if name not in known:
        raise ScenarioError(f"line {event.line}: there is no {name!r}; there are {', '.join(known) or 'none'}")
    return name


def _size(event: Statement, key: str) -> float | None:
    return parse_size(event.named[key], event.line) if key in event.named else None


def _number(event: Statement, key: str, default: float) -> float:
    return parse_number(event.named[key], event.line) if key in event.named else default


def _names(event: Statement) -> list[str]:
    """`n1..n4`, or names one by one."""
    found: list[str] = []
    for word in event.words:
        first, dots, last = word.partition("..")
        stem = first.rstrip("0123456789")
        if not dots:
            found.append(word)
        elif not (first[len(stem) :].isdecimal() and last[len(stem) :].isdecimal()):
            raise ScenarioError(f"line {event.line}: {word!r} is not a series of nodes; write one like n1..n4")
        else:
            low, high = (parse_count(text[len(stem) :], event.line) for text in (first, last))
            found += [f"{stem}{number}" for number in range(low, min(high, low + MOST_NODES) + 1)]
    return found
