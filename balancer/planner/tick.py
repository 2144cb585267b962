"""One tick of one bundle: poll → snapshot → plan → admit → act → report.

The daemon calls `run` for each bundle on its own, never twice at once. It decides nothing itself: what to do is decided
by `policies.plan`, when by `schedules`; how to do it is the business of the starter that is handed in. Without a
starter (a standby, or nobody leads) everything but acting is done just the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from balancer.clock import Clock
from balancer.directory.model import Migration, MigrationKind, Plan
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Fenced
from balancer.nodes.connection import Address
from balancer.planner import orders
from balancer.planner.follow_up import follow_ups, is_chained, promised
from balancer.planner.keys_in_use import AskNode, Samples
from balancer.planner.memory import Memory
from balancer.planner.openings import Openings, look
from balancer.planner.profile_keeper import ProfileKeeper
from balancer.planner.reports import in_words, node_reports, running
from balancer.planner.state import BundleState, NodeReport, ScheduleReport, StateWord
from balancer.planner.steady import much_the_same, starts_nothing
from balancer.planner.verdict import Situation, verdict
from balancer.policies.budgets import Admission
from balancer.policies.bundle_view import Action, BundleView, InFlight, NodeChange, PlanResult
from balancer.policies.heat import hot_tablets
from balancer.policies.options import BundleOptions
from balancer.policies.plan import make_plan
from balancer.policies.promises import affordable, credited, waiting_flights
from balancer.policies.tail import NOTHING_BEGUN, Tail
from balancer.polling.poller import ClusterPoll, Poller, heirs_of
from balancer.polling.view import Capacity, Remembered, build_view
from balancer.settings import BundleSettings, Mode, Settings

RATE_SAMPLE = 20  # finished moves from which the rate of the next ones is estimated


class Starter(Protocol):
    """Carries out what was admitted. Only a leader has one."""

    def start(self, action: Action, bundle: BundleSettings) -> Migration:
        """Journals a migration and sets it to work; raises one of our errors where that is not possible."""

    def change_node(self, change: NodeChange) -> None:
        """Closes a node to new data, or opens it again."""

    def guard(self, poll: ClusterPoll, snapshot: Snapshot) -> None:
        """Keeps nodes that have gone back in time from doing harm; in every mode."""

    def quarantine(self, tablets: Sequence[int], failures: int) -> None:
        """Leaves tablets alone whose migrations failed so often in a row, until an operator releases them."""

    def propose(self, plan: PlanResult, view: BundleView, bundle: BundleSettings, *, asked: bool = False) -> str:
        """Records a plan that is new or was asked for; returns the id of the one that stands, empty: there is none."""

    def settle(self, plan: str, handled: Sequence[Action], failures: Sequence[str]) -> None:
        """Records which of a plan's actions have been handled, and why some could not be started."""

    def settle_orders(self, bundle: str, dues: Sequence[orders.Due], view: BundleView) -> None:
        """Records which of the operators' orders have come to their end, and forgets old ones."""

    def park(self, bundle: str, overrunning: frozenset[str]) -> None:
        """Holds these migrations of a bundle at a safe point, and lets go on those it held before."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """What a tick is given: the moment's settings, the directory's newest snapshot, and who leads."""

    bundle: BundleSettings
    settings: Settings
    snapshot: Snapshot
    addresses: Mapping[str, Address]
    leader: str | None
    starter: Starter | None = None
    approved: tuple[Action, ...] = ()
    """In mode `approve`: the actions of an approved plan that have not been started yet."""
    plan: str = ""
    """The plan that stands: the approved one, or else the proposed one."""
    asked: bool = False
    """Whether an operator asked for this plan: then it is recorded whatever it proposes."""
    orders: tuple[Plan, ...] = ()
    """Operators' orders that are being worked off, in whatever mode."""
    tail: Tail = NOTHING_BEGUN
    """How far balancing that has begun has come."""

    @property
    def pause_until(self) -> datetime | None:
        """When an operator's pause ends; None: never by itself, or there is none."""
        pause = self.snapshot.pauses.get(self.bundle.name)
        return None if pause is None or pause.until is None else datetime.fromtimestamp(pause.until, UTC)

    def paused(self, now: datetime) -> bool:
        """Whether an operator has paused the bundle."""
        pause = self.snapshot.pauses.get(self.bundle.name)
        return pause is not None and (pause.until is None or pause.until > now.timestamp())


@dataclass(frozen=True, slots=True)
class _Moment:
    """What one tick knows when it acts."""

    occasion: Occasion
    now: datetime
    openings: Openings
    view: BundleView
    owed: Sequence[Action]
    plan: PlanResult
    dues: Sequence[orders.Due]
    """What is left of the operators' orders."""

    def scheduled(self, due: orders.Due) -> bool:
        """Whether the window of an order's table is open."""
        document = due.order.document
        return self.openings.window(document["table"], document["order"]).open


@dataclass(frozen=True, slots=True)
class _Acts:
    """What a tick has done: migrations begun, in words, and why others could not be."""

    started: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    handled: tuple[Action, ...] = ()
    """The plan's own actions that the tick came to."""
    failures: tuple[str, ...] = ()
    """Those of the refusals that belong to them."""
    begun: tuple[Action, ...] = ()
    """The plan's own actions, if any of them was started."""


class BundleTick:
    """Keeps what one bundle's ticks remember."""

    def __init__(
        self, poller: Poller, samples: Samples, ask_node: AskNode, clock: Clock, profile: ProfileKeeper
    ) -> None:
        self._profile = profile
        self._poller = poller
        self._samples = samples
        self._ask_node = ask_node
        self._clock = clock
        self._memory = Memory()
        self._last: datetime | None = None
        self._opened: datetime | None = None
        self._planned: tuple[BundleView, BundleOptions, PlanResult] | None = None

    def run(self, occasion: Occasion) -> BundleState:
        """Does everything that is due."""
        began = self._clock.monotonic()
        now = self._clock.now()
        poll = self._poller.poll(occasion.snapshot, occasion.addresses)
        if occasion.starter is not None:
            occasion.starter.guard(poll, occasion.snapshot)
        openings = look(occasion.settings, occasion.bundle, now, self._last)
        self._note_window(openings, now)
        view = replace(self._view(occasion, poll, openings, now), balancing=occasion.tail.bytes)
        owed = self._owed(occasion, view, openings, now)
        view = credited(view, owed, _waiting(occasion, owed, view, now))
        options = occasion.bundle.options
        plan = self._plan(view, options, again=occasion.asked)
        dues = [orders.due(order, view, options) for order in occasion.orders]
        moment = _Moment(occasion, now, openings, view, owed, plan, dues)
        plan_id, acts = _plan_and_act(moment)
        nodes = node_reports(occasion.snapshot, occasion.bundle.name, poll)
        word, sentence = verdict(_situation(moment, plan_id, nodes, acts))
        self._last = now
        paused = occasion.paused(now)
        return BundleState(
            bundle=occasion.bundle.name,
            at=self._clock.now(),
            mode=occasion.bundle.mode,
            word=word,
            sentence=sentence,
            nodes=nodes,
            schedule=openings.bundle,
            view=view,
            plan=plan,
            plan_id=plan_id,
            paused_until=occasion.pause_until if paused else None,
            paused=paused,
            tick_seconds=self._clock.monotonic() - began,
            started=acts.started,
            not_started=acts.refused,
            tail=occasion.tail.after(plan, acts.begun),
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

    def _view(self, occasion: Occasion, poll: ClusterPoll, openings: Openings, now: datetime) -> BundleView:
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
            capacities={node.id: Capacity(node.disk, node.memory) for node in bundle.nodes.values()},
            remembered=remembered,
        )
        profile = self._profile.note(view, now, bundle.timezone, poll.rates, heirs_of(snapshot))
        view = replace(view, profile=profile)
        heat = bundle.options.heat
        hot = list(hot_tablets(view, heat))
        self._memory.note_rates(view)
        self._memory.note_heat(hot)
        history = self._memory.history(view, migrations, heat.min_rows_per_second / 2)
        samples = {}
        if hot:
            self._samples.gather(now.timestamp())
            samples = self._samples.of(view, snapshot, hot, self._ask_node, heat.min_samples)
        return replace(view, history=history, samples=samples, reshaped_last=_reshaped_last(migrations))

    def _moved(self, migrations: Sequence[Migration]) -> float:
        """Bytes of the moves begun since the present window opened."""
        if self._opened is None:
            return 0.0
        since = self._opened.timestamp()
        moves = [record for record in migrations if record.operation is MigrationKind.MOVE and record.created >= since]
        return float(sum(record.detail.get("size", 0) for record in moves))

    def _owed(self, occasion: Occasion, view: BundleView, openings: Openings, now: datetime) -> list[Action]:
        """Moves that migrations asked for, where this tick may start them."""
        mode = occasion.bundle.mode
        if occasion.starter is None or mode is Mode.OBSERVE or occasion.paused(now):
            return []
        owed = follow_ups(occasion.snapshot, occasion.bundle.name, now.timestamp())
        # Who approved the first half of an exchange has approved the second.
        due = [one for one in owed if openings.allows(one) and (mode is Mode.AUTONOMOUS or is_chained(one))]
        return affordable(due, view, occasion.bundle.options)


def _reshaped_last(migrations: Sequence[Migration]) -> bool:
    """Whether the newest migration is a split or a merge."""
    newest = max(migrations, key=lambda record: record.created, default=None)
    return newest is not None and newest.operation is not MigrationKind.MOVE


def _waiting(occasion: Occasion, owed: Sequence[Action], view: BundleView, now: datetime) -> list[InFlight]:
    """The rest of exchanges and chains: not started yet, and credited."""
    snapshot, name = occasion.snapshot, occasion.bundle.name
    started = {action.tablets[0] for action in owed}
    later = promised(snapshot, name)
    for action in follow_ups(snapshot, name, now.timestamp()):
        if is_chained(action):
            later += [] if action.tablets[0] in started else [(action.tablets[0], action.target)]
            later += action.then
    return waiting_flights(later, view)


def _plan_and_act(moment: _Moment) -> tuple[str, _Acts]:
    """Records the plan, acts, and records what came of plan and orders; returns the plan that stands."""
    occasion, starter = moment.occasion, moment.occasion.starter
    if starter is None:
        return occasion.plan, _Acts()
    limit = occasion.bundle.options.budgets.quarantine_after
    starter.quarantine(_failing(moment.view, limit), limit)
    plan_id = starter.propose(moment.plan, moment.view, occasion.bundle, asked=occasion.asked)
    acts = _act(moment, starter)
    if plan_id and acts.handled:
        starter.settle(plan_id, acts.handled, acts.failures)
    starter.settle_orders(occasion.bundle.name, moment.dues, moment.view)
    return plan_id, acts


def _failing(view: BundleView, limit: int) -> list[int]:
    """Tablets whose migrations have failed so often in a row, and that are not quarantined yet."""
    failing = {tablet for tablet, history in view.history.items() if history.failures >= limit}
    return sorted(failing - view.quarantined)


def _act(moment: _Moment, starter: Starter) -> _Acts:
    """Parks what runs over its window, and starts what may be started now."""
    occasion, openings, bundle = moment.occasion, moment.openings, moment.occasion.bundle
    starter.park(bundle.name, openings.overrunning(occasion.snapshot, bundle))
    if occasion.paused(moment.now):
        return _Acts()
    admission = Admission(moment.view, bundle.options)
    ordered = _ordered(moment, admission)
    started, refused = _start(starter, (*moment.owed, *ordered), bundle)
    if not openings.any:
        return _Acts(tuple(started), tuple(refused))
    if bundle.mode is Mode.AUTONOMOUS:
        refused += _change_nodes(starter, moment.plan.node_changes)
    own = _beside_orders(moment, ordered, admission)
    begun, failures = _start(starter, own, bundle)
    balancing = tuple(own) if begun else ()
    return _Acts((*started, *begun), (*refused, *failures), tuple(own), tuple(failures), balancing)


def _ordered(moment: _Moment, admission: Admission) -> list[Action]:
    """What operators' orders may start now, within the budgets."""
    found: list[Action] = []
    for due in moment.dues:
        found += orders.startable([due], admission, schedule_open=moment.scheduled(due))
    return found


def _beside_orders(moment: _Moment, ordered: Sequence[Action], admission: Admission) -> Sequence[Action]:
    """The plan's own actions that may start now, beside what the orders have started."""
    own = _due(moment)
    if moment.occasion.bundle.mode is not Mode.AUTONOMOUS or not moment.dues:
        return own
    # The plan was made without the orders: what they have taken of tablets and budgets is not there for it.
    taken = {tablet for action in ordered for tablet in action.tablets}
    free = [action for action in orders.beside(own, moment.dues) if taken.isdisjoint(action.tablets)]
    return orders.take(free, admission)


def _start(starter: Starter, actions: Sequence[Action], bundle: BundleSettings) -> tuple[list[str], list[str]]:
    """What was started, in words, and why others could not be."""
    started: list[str] = []
    refused: list[str] = []
    for action in actions:
        try:
            migration = starter.start(action, bundle)
        except Fenced:
            raise
        except BalancerError as error:
            refused.append(f"{action.kind} of tablet {action.tablets[0]} cannot be started: {error}")
        else:
            started.append(in_words(migration))
    return started, refused


def _due(moment: _Moment) -> Sequence[Action]:
    """The actions that mode and schedules allow at this moment."""
    openings, plan = moment.openings, moment.plan
    match moment.occasion.bundle.mode:
        case Mode.OBSERVE:
            return ()
        case Mode.APPROVE:
            return [action for action in moment.occasion.approved if openings.allows(action)]
        case Mode.AUTONOMOUS:
            if openings.all or not plan.actions:
                return plan.actions
            # Planned again without what must wait: the budgets' room is for what may start now.
            due = make_plan(moment.view, openings.narrowed()).actions
            return [action for action in due if openings.allows(action)]


def _situation(moment: _Moment, plan_id: str, nodes: tuple[NodeReport, ...], acts: _Acts) -> Situation:
    occasion, view = moment.occasion, moment.view
    bundle, snapshot = occasion.bundle, occasion.snapshot
    held = moment.openings.overrunning(snapshot, bundle)
    records = running(snapshot, bundle.name)
    waits = bundle.mode is Mode.APPROVE and not occasion.approved
    return Situation(
        now=moment.now,
        mode=bundle.mode,
        plan=moment.plan,
        nodes=nodes,
        owned={node.id: int((view.tablets.node == at).sum()) for at, node in enumerate(view.nodes)},
        schedule=moment.openings.bundle,
        running=[*(in_words(one) for one in records if one.id not in held), *acts.started],
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


def _change_nodes(starter: Starter, changes: Sequence[NodeChange]) -> list[str]:
    refused = []
    for change in changes:
        try:
            starter.change_node(change)
        except Fenced:
            raise
        except BalancerError as error:
            refused.append(f"node {change.node} cannot be made {change.condition}: {error}")
    return refused


def failed_tick(bundle: BundleSettings, error: str, now: datetime) -> BundleState:
    """The state of a bundle whose tick itself failed: nothing is known of it but that."""
    schedule = ScheduleReport("", "", bundle.timezone, False, None, None)
    word = f"the tick failed: {error}"
    return BundleState(bundle.name, now, bundle.mode, StateWord.BLOCKED, word, (), schedule, error=error)


def _measured_rate(migrations: Sequence[Migration]) -> float | None:
    """Bytes per second of the newest finished moves, from first to last byte of each; None: nothing measured yet."""
    done = [record for record in migrations if record.state == "done" and record.operation is MigrationKind.MOVE]
    newest = sorted(done, key=lambda record: record.updated)[-RATE_SAMPLE:]
    size = sum(record.detail.get("size", 0) for record in newest)
    seconds = sum(record.updated - record.created for record in newest)
    return size / seconds if size and seconds else None
