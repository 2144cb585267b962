"""One tick of one bundle: poll → snapshot → plan → admit → act → report.

The daemon calls `run` for each bundle on its own, never twice at once. It decides nothing itself: `policies.plan.plan`
decides what to do, `schedules` when; `acting` starts it, with the starter it is given. Without a starter (a standby, or
nobody leads) everything except acting is done just the same.

Whether a bundle is as it was when last planned: then planning again would find nothing again. Pure.

The tick asks before it plans: most bundles are idle most of the time, or wait for what is running, and planning
thousands of tablets is the most expensive thing a tick does. Only a plan that can start nothing is kept, and only for a
while, because time itself (a cool-down that ends, a failure that has aged) may change the answer.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np

from balancer.clock import Clock
from balancer.directory.model import Migration, MigrationKind
from balancer.planner import orders
from balancer.planner.acting import TickActions, TickFacts, TickInput, plan_and_act
from balancer.planner.bundle_state import (
    BundleState,
    NodeReport,
    ScheduleReport,
    StateWord,
    in_words,
    node_reports,
    owned_tablets,
    running,
)
from balancer.planner.day_profile import ProfileKeeper
from balancer.planner.hot_keys import AskNode, Samples
from balancer.planner.memory import CODE as SPLIT_OFF
from balancer.planner.memory import Memory, follow_ups, promised
from balancer.planner.verdict import PastWindow, VerdictFacts, verdict
from balancer.planner.windows import Openings, look
from balancer.policies.budgets import affordable, credited, waiting_flights
from balancer.policies.finish_by import ANY
from balancer.policies.options import BundleOptions
from balancer.policies.plan.plan import make_plan
from balancer.policies.resize.heat import hot_tablets
from balancer.policies.view import Action, BundleView, Floats, InFlight, NodeView, PlanResult
from balancer.polling.poller import ClusterPoll, Poller, heirs
from balancer.polling.view import Capacity, KeptColumns, Remembered, build_view
from balancer.settings import BundleSettings, Mode
from balancer.settings.schedules import too_short

RATE_SAMPLE = 20  # finished moves from which the rate of the next ones is estimated


class BundleTick:
    """Keeps what one bundle's ticks remember."""

    def __init__(
        self, poller: Poller, samples: Samples, ask_node: AskNode, clock: Clock, profile: ProfileKeeper | None = None
    ) -> None:
        self._poller = poller
        self._kept = KeptColumns(poller.columns)
        self._profile = profile
        self._samples = samples
        self._ask_node = ask_node
        self._clock = clock
        self._memory = Memory()
        self._opened: datetime | None = None
        self._window = PastWindow()
        self._planned: tuple[BundleView, BundleOptions, PlanResult] | None = None

    def run(self, occasion: TickInput) -> BundleState:
        """Does everything that is due."""
        began = self._clock.monotonic()
        now = self._clock.now()
        poll = self._poller.poll(occasion.snapshot, occasion.addresses)
        in_the_way = occasion.starter.guard(poll, occasion.snapshot) if occasion.starter is not None else {}
        openings = look(occasion.settings, occasion.bundle, now, occasion.looked)
        self._note_window(openings, now)
        self._window = self._window.looked(openings, occasion.looked)
        if occasion.rounds and occasion.starter is not None:
            openings = openings.opened()
        view = replace(self._view(occasion, poll, openings, now), balancing=occasion.tail.bytes)
        owed = self._owed(occasion, view, openings, now)
        view = credited(view, owed, _waiting(occasion, openings, owed, view))
        options = occasion.bundle.options
        plan = self._plan(view, options, again=occasion.asked or bool(occasion.rounds))
        dues = [orders.due(order, view, options) for order in occasion.orders]
        moment = TickFacts(occasion, now, openings, view, owed, plan, dues)
        plan_id, acts = plan_and_act(moment)
        nodes = node_reports(occasion.snapshot, occasion.bundle.name, poll, in_the_way)
        word, sentence = verdict(_situation(moment, plan_id, nodes, acts))
        self._window, word, sentence = self._window.judged(openings, word, sentence, began_some=bool(acts.started))
        paused = occasion.paused(now)
        return BundleState(
            bundle=occasion.bundle.name,
            at=self._clock.now(),
            mode=occasion.bundle.mode,
            word=word,
            sentence=sentence,
            nodes=nodes,
            schedule=replace(
                openings.bundle,
                too_short=too_short(occasion.settings, occasion.bundle, now, view.measured_bytes_per_second),
            ),
            view=view,
            plan=plan,
            plan_id=plan_id,
            paused_until=occasion.pause_until if paused else None,
            paused=paused,
            tick_seconds=self._clock.monotonic() - began,
            started=acts.words,
            not_started=acts.refused,
            tail=occasion.tail.after(plan, acts.begun),
            day=None if self._profile is None else self._profile.report(view),
            looked=now if occasion.starter is not None else occasion.looked,
        )

    def _plan(self, view: BundleView, options: BundleOptions, *, again: bool) -> PlanResult:
        """A plan; the last one, if it could start nothing and nothing has changed since."""
        last = self._planned
        if not again and last is not None and last[1] == options and much_the_same(last[0], view):
            return last[2]
        plan = make_plan(view, options)
        self._planned = (view, options, plan) if starts_nothing(plan) else None
        return plan

    def _note_window(self, openings: Openings, now: datetime) -> None:
        if not openings.any:
            self._opened = None
        elif self._opened is None:
            self._opened = now

    def _view(self, occasion: TickInput, poll: ClusterPoll, openings: Openings, now: datetime) -> BundleView:
        bundle, snapshot = occasion.bundle, occasion.snapshot
        migrations = [record for record in snapshot.migrations.values() if record.bundle == bundle.name]
        remembered = Remembered(
            window_seconds_left=openings.seconds_left(now, bundle.migration.finish_by),
            bytes_moved_in_window=self._moved(migrations),
            measured_bytes_per_second=_measured_rate(migrations),
        )
        view = build_view(
            snapshot,
            bundle.name,
            poll,
            options=bundle.options,
            capacities={
                node.id: Capacity(node.disk, node.memory, node.write_rate, node.read_rate)
                for node in bundle.nodes.values()
            },
            remembered=remembered,
            kept=self._kept,
        )
        heat = bundle.options.heat
        hot = list(hot_tablets(view, heat))
        self._memory.note_rates(view)
        self._memory.note_heat(hot)
        history = self._memory.history(view, migrations, heat.min_rows_per_second / 2)
        view, samples = replace(view, history=history), {}
        if hot:
            self._samples.gather(now.timestamp())
            samples = self._samples.of(view, snapshot, hot, self._ask_node, heat.min_samples)
        overloaded = self._memory.note_nodes(view, bundle.options)
        view = replace(view, samples=samples, overloaded_since=overloaded)
        view = replace(view, reshaped_last=_reshaped_last(migrations))
        if self._profile is None:
            return view
        profile = self._profile.note(view, now, bundle.timezone, poll.rates, heirs(snapshot))
        return replace(view, profile=profile)

    def _moved(self, migrations: Sequence[Migration]) -> float:
        """Bytes of the moves begun since the current window opened."""
        if self._opened is None:
            return 0.0
        since = self._opened.timestamp()
        moves = [record for record in migrations if record.operation is MigrationKind.MOVE and record.created >= since]
        return float(sum(record.detail.get("size", 0) for record in moves))

    def _owed(self, occasion: TickInput, view: BundleView, openings: Openings, now: datetime) -> list[Action]:
        """Moves that migrations asked for, where this tick may start them."""
        if occasion.starter is None or occasion.bundle.mode is Mode.OBSERVE or occasion.paused(now):
            return []
        # An approved plan names what follows: the second half of an exchange, and the nodes of a split's parts.
        owed = follow_ups(occasion.snapshot, occasion.bundle.name, now.timestamp())
        # Where the schedule gates starts only, what belongs to something that has started does not wait for it.
        gated = occasion.bundle.migration.finish_by != ANY
        due = [one for one in owed if not gated or openings.allows(one)]
        return affordable(due, view, occasion.bundle.options)


def _reshaped_last(migrations: Sequence[Migration]) -> bool:
    """Whether the newest migration is a split or a merge."""
    newest = max(migrations, key=lambda record: record.created, default=None)
    return newest is not None and newest.operation is not MigrationKind.MOVE


def _waiting(occasion: TickInput, openings: Openings, started: Sequence[Action], view: BundleView) -> list[InFlight]:
    """The rest of exchanges and chains, and parts of splits whose window is open: not started yet, and credited."""
    snapshot, name = occasion.snapshot, occasion.bundle.name
    free = occasion.bundle.migration.finish_by == ANY
    owed = [
        one for one in follow_ups(snapshot, name, view.now) if free or one.code != SPLIT_OFF or openings.allows(one)
    ]
    return waiting_flights(promised(snapshot, name, owed, {one.tablets[0] for one in started}), view)


def _situation(moment: TickFacts, plan_id: str, nodes: tuple[NodeReport, ...], acts: TickActions) -> VerdictFacts:
    occasion, view = moment.occasion, moment.view
    bundle, snapshot = occasion.bundle, occasion.snapshot
    held = moment.openings.overrunning(snapshot, bundle)
    records = running(snapshot, bundle.name)
    waits = bundle.mode is Mode.APPROVE and not occasion.approved
    return VerdictFacts(
        now=moment.now,
        mode=bundle.mode,
        plan=moment.plan,
        nodes=nodes,
        owned=owned_tablets(view),
        schedule=moment.openings.bundle,
        running=[*(in_words(one) for one in records if one.id not in held), *acts.words],
        held=[in_words(one, parked=True) for one in records if one.id in held],
        started=len(acts.started),
        paused=occasion.paused(moment.now),
        paused_until=occasion.pause_until,
        leading=occasion.starter is not None,
        leader=occasion.leader,
        waiting_plan=plan_id if waits else "",
        refused=acts.refused[0] if acts.refused else "",
        orders=[
            (orders.sentence(one.order, snapshot), one.at_once or moment.scheduled(one))
            for one in moment.dues
            if not one.finished
        ],
        promised=sum(flight.waits for flight in view.in_flight),
    )


def failed_tick(bundle: BundleSettings, error: str, now: datetime) -> BundleState:
    """The state of a bundle whose tick itself failed: nothing else is known about it."""
    schedule = ScheduleReport("", "", bundle.timezone, False, None, None)
    word = f"the tick failed: {error}"
    return BundleState(bundle.name, now, bundle.mode, StateWord.BLOCKED, word, (), schedule, error=error)


def left_alone(bundle: BundleSettings, why: str, now: datetime) -> BundleState:
    """The state of a bundle that does not belong to this directory, though its file is here."""
    schedule = ScheduleReport("", "", bundle.timezone, False, None, None)
    return BundleState(bundle.name, now, bundle.mode, StateWord.BLOCKED, why, (), schedule, paused=True)


def _measured_rate(migrations: Sequence[Migration]) -> float | None:
    """Bytes per second of the newest finished moves, from first to last byte of each; None: nothing measured yet."""
    done = [record for record in migrations if record.state == "done" and record.operation is MigrationKind.MOVE]
    newest = sorted(done, key=lambda record: record.updated)[-RATE_SAMPLE:]
    size = sum(record.detail.get("size", 0) for record in newest)
    seconds = sum(record.updated - record.created for record in newest)
    return size / seconds if size and seconds else None


KEPT_SECONDS = 60.0
RELATIVE = 0.01
BYTES = 1 << 20
ROWS_PER_SECOND = 0.5
"""Smaller differences are ignored: they are far below any threshold of the policies."""


def starts_nothing(plan: PlanResult) -> bool:
    """Whether a plan starts nothing at all: what it wants has to wait for what is running, or forever."""
    return not (plan.actions or plan.node_changes)


def much_the_same(before: BundleView, after: BundleView) -> bool:
    """Whether nothing that a plan could see has changed, except the time."""
    if not 0.0 <= after.now - before.now <= KEPT_SECONDS:
        return False
    if (
        before.profile is not after.profile
        or after.samples
        or _facts(before) != _facts(after)
        or _longer(before, after)
    ):
        return False
    nodes = zip(before.nodes, after.nodes, strict=True)
    return all(_same_node(*pair) for pair in nodes) and _same_tablets(before, after)


def _facts(view: BundleView) -> tuple[object, ...]:
    return (
        *(view.bundle, len(view.nodes), view.tables, view.pinned, view.quarantined, view.in_flight, view.samples),
        *(dict(view.history), view.bytes_moved_in_window, view.measured_bytes_per_second, view.balancing),
        view.overloaded_since,
    )


def _longer(before: BundleView, after: BundleView) -> bool:
    """Whether there is more time than there was: what did not fit may fit now."""
    then, now = before.window_seconds_left, after.window_seconds_left
    return then is not None and (now is None or now > then)


def _same_node(before: NodeView, after: NodeView) -> bool:
    if replace(before, disk_used=None) != replace(after, disk_used=None):
        return False
    used = before.disk_used, after.disk_used
    return used[0] == used[1] or (None not in used and _close(np.array(used[0]), np.array(used[1]), BYTES))


def _same_tablets(before: BundleView, after: BundleView) -> bool:
    old, new = before.tablets, after.tablets
    exact = all(
        np.array_equal(getattr(old, name), getattr(new, name)) for name in ("ids", "node", "moduli", "remainders")
    )
    if not exact or old.lowers != new.lowers:
        return False
    sizes = all(_close(getattr(old, name), getattr(new, name), BYTES) for name in ("sizes", "memory"))
    return sizes and all(_same_rate(getattr(old, name), getattr(new, name)) for name in _RATES)


_RATES = ("write_rate", "read_rate", "write_rate_1h", "read_rate_1h", "scan_rate")


def _same_rate(before: Floats | None, after: Floats | None) -> bool:
    if before is None or after is None:
        return before is after
    return _close(before, after, ROWS_PER_SECOND)


def _close(before: Floats, after: Floats, least: float) -> bool:
    return bool(np.allclose(after, before, rtol=RELATIVE, atol=least))
