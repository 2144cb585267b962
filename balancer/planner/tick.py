"""One tick of one bundle: poll → snapshot → plan → admit → act → report.

The daemon calls `run` for each bundle on its own, never twice at once. It decides nothing itself: what to do is decided
by `policies.plan`, when by `schedules`; how to do it is the business of the starter that is handed in. Without a
starter (a standby, or nobody leads) everything but acting is done just the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Protocol

from balancer.clock import Clock
from balancer.directory.model import Migration, MigrationKind, Node, Plan
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.nodes.connection import Address
from balancer.planner import orders, windows
from balancer.planner.follow_up import follow_ups
from balancer.planner.memory import HEAT, Memory
from balancer.planner.samples import AskNode, Samples
from balancer.planner.state import BundleState, NodeReport, ScheduleReport, Word
from balancer.planner.verdict import Situation, verdict
from balancer.polling.poller import ClusterPoll, Health, Poller
from balancer.polling.poller import NodeReport as PolledNode
from balancer.polling.view import Capacity, Remembered, build_view
from balancer.settings import BundleSettings, FinishBy, Mode, Settings
from balancer.settings.units import format_size
from balancer.settings.windows import bundle_schedule, group_schedule, heat_schedule
from policies.budgets import Admission
from policies.heat import hot_tablets
from policies.model import Action, BundleView, NodeChange, PlanResult
from policies.plan import make_plan, restricted

RATE_SAMPLE = 20  # finished moves from which the rate of the next ones is estimated


class Starter(Protocol):
    """Carries out what was admitted. Only a leader has one."""

    def start(self, action: Action, bundle: BundleSettings) -> Migration:
        """Journals a migration and sets it to work; raises an error of ours where that is not possible."""

    def change_node(self, change: NodeChange) -> None:
        """Closes a node to new data, or opens it again."""


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
    proposed: str = ""
    """In mode `approve`: the plan that waits."""
    orders: tuple[Plan, ...] = ()
    """Operators' orders that are being worked off, in whatever mode."""


class BundleTick:
    """Keeps what one bundle's ticks remember."""

    def __init__(self, poller: Poller, samples: Samples, ask_node: AskNode, clock: Clock) -> None:
        self._poller = poller
        self._samples = samples
        self._ask_node = ask_node
        self._clock = clock
        self._memory = Memory()
        self._last: datetime | None = None
        self._opened: datetime | None = None

    def run(self, occasion: Occasion) -> BundleState:
        """Does everything that is due."""
        began = self._clock.monotonic()
        now = self._clock.now()
        poll = self._poller.poll(occasion.snapshot, occasion.addresses)
        schedule, heat = self._schedules(occasion, now)
        view = self._view(occasion, poll, schedule, now)
        options = occasion.bundle.options
        plan = make_plan(view, options)
        ordered = [orders.due(order, view, options) for order in occasion.orders]
        refused, started = self._act(occasion, view, plan, ordered=ordered, schedule=schedule, heat=heat)
        nodes = tuple(
            _node_report(poll.nodes.get(node.id), node)
            for node in occasion.snapshot.nodes.values()
            if node.bundle == occasion.bundle.name
        )
        pause = occasion.snapshot.pauses.get(occasion.bundle.name)
        paused = pause is not None and (pause.until is None or pause.until > now.timestamp())
        until = None if pause is None or pause.until is None else datetime.fromtimestamp(pause.until, UTC)
        situation = Situation(
            now=now,
            mode=occasion.bundle.mode,
            plan=plan,
            nodes=nodes,
            schedule=schedule,
            running=[*_running(occasion.snapshot, occasion.bundle.name), *started],
            started=len(started),
            paused=paused,
            paused_until=until,
            leading=occasion.starter is not None,
            leader=occasion.leader,
            waiting_plan=occasion.proposed,
            refused=refused[0] if refused else "",
            orders=[
                (orders.sentence(one.order, occasion.snapshot), one.at_once) for one in ordered if not one.finished
            ],
        )
        word, sentence = verdict(situation)
        self._last = now
        return BundleState(
            bundle=occasion.bundle.name,
            at=self._clock.now(),
            mode=occasion.bundle.mode,
            word=word,
            sentence=sentence,
            nodes=nodes,
            schedule=schedule,
            view=view,
            plan=plan,
            plan_id=occasion.proposed,
            paused_until=until if paused else None,
            paused=paused,
            tick_seconds=self._clock.monotonic() - began,
            started=tuple(started),
            not_started=tuple(refused),
            orders=tuple(ordered),
        )

    def _schedules(self, occasion: Occasion, now: datetime) -> tuple[ScheduleReport, ScheduleReport]:
        settings, bundle = occasion.settings, occasion.bundle
        reports = [
            windows.report(found, bundle.timezone, now, self._last, settings.daemon.look_back)
            for found in (bundle_schedule(settings, bundle), heat_schedule(settings, bundle))
        ]
        if not reports[0].open:
            self._opened = None
        elif self._opened is None:
            self._opened = now
        return reports[0], reports[1]

    def _view(self, occasion: Occasion, poll: ClusterPoll, schedule: ScheduleReport, now: datetime) -> BundleView:
        bundle, snapshot = occasion.bundle, occasion.snapshot
        migrations = [record for record in snapshot.migrations.values() if record.bundle == bundle.name]
        remembered = Remembered(
            window_seconds_left=_seconds_left(bundle, schedule, now),
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
        hot = list(hot_tablets(view, bundle.options.heat))
        self._memory.note_rates(view)
        self._memory.note_heat(hot)
        history = self._memory.history(view, migrations, bundle.options.heat.min_rows_per_second / 2)
        samples = {}
        if hot:
            self._samples.gather(now.timestamp())
            samples = self._samples.of(view, snapshot, hot, self._ask_node)
        return replace(view, history=history, samples=samples)

    def _moved(self, migrations: Sequence[Migration]) -> float:
        """Bytes of the migrations begun since the present window opened."""
        if self._opened is None:
            return 0.0
        since = self._opened.timestamp()
        return float(sum(record.detail.get("size", 0) for record in migrations if record.created >= since))

    def _act(
        self,
        occasion: Occasion,
        view: BundleView,
        plan: PlanResult,
        *,
        ordered: Sequence[orders.Due],
        schedule: ScheduleReport,
        heat: ScheduleReport,
    ) -> tuple[list[str], list[str]]:
        """Starts what may be started now; returns why something could not be, and what was started in words."""
        starter = occasion.starter
        if starter is None or self._paused(occasion):
            return [], []
        admission = Admission(view, occasion.bundle.options)
        due = orders.startable(ordered, admission, schedule_open=schedule.open)
        if schedule.open or heat.open:
            autonomous = occasion.bundle.mode is Mode.AUTONOMOUS
            for change in plan.node_changes if autonomous else ():
                starter.change_node(change)
            own = self._due(occasion, view, plan, schedule, heat)
            # The plan was made without the orders: what they have taken of the budgets is not there for it.
            due += orders.take(orders.beside(own, ordered), admission) if autonomous and ordered else own
        return self._start(starter, due, occasion.bundle)

    @staticmethod
    def _start(starter: Starter, due: Sequence[Action], bundle: BundleSettings) -> tuple[list[str], list[str]]:
        refused: list[str] = []
        started: list[str] = []
        for action in due:
            try:
                migration = starter.start(action, bundle)
            except BalancerError as error:
                refused.append(f"{action.kind} of tablet {action.tablets[0]} cannot be started: {error}")
            else:
                started.append(in_words(migration))
        return refused, started

    def _due(
        self, occasion: Occasion, view: BundleView, plan: PlanResult, schedule: ScheduleReport, heat: ScheduleReport
    ) -> Sequence[Action]:
        """The actions of the bundle's own plans that mode and schedules allow at this moment."""
        match occasion.bundle.mode:
            case Mode.OBSERVE:
                return ()
            case Mode.APPROVE:
                return occasion.approved if schedule.open else ()
            case Mode.AUTONOMOUS:
                owed = self._owed(occasion)
                shut = self._shut_groups(occasion)
                if schedule.open and heat.open and not shut:
                    return [*owed, *_without(plan.actions, owed)]
                options = restricted(occasion.bundle.options, balance=schedule.open, heat=heat.open, closed_groups=shut)
                due = make_plan(view, options).actions
                return [*owed, *_without([a for a in due if schedule.open or a.code.startswith(HEAT)], owed)]

    def _owed(self, occasion: Occasion) -> list[Action]:
        """Moves that splits for heat asked for, as many as the budget of moves leaves room for."""
        snapshot, name = occasion.snapshot, occasion.bundle.name
        running = sum(1 for record in snapshot.migrations.values() if record.bundle == name and not record.finished)
        room = occasion.bundle.options.budgets.moves_total - running
        return list(islice(follow_ups(snapshot, name, self._clock.now().timestamp()), max(0, room)))

    def _shut_groups(self, occasion: Occasion) -> frozenset[str]:
        """Groups with a schedule of their own that is closed at this moment."""
        bundle, settings, now = occasion.bundle, occasion.settings, self._clock.now()
        shut = set()
        for name, group in bundle.options.balancer.groups.items():
            if group.schedule.strip():
                found = group_schedule(settings, bundle, name)
                if not windows.report(found, bundle.timezone, now, self._last, settings.daemon.look_back).open:
                    shut.add(name)
        return frozenset(shut)

    def _paused(self, occasion: Occasion) -> bool:
        pause = occasion.snapshot.pauses.get(occasion.bundle.name)
        return pause is not None and (pause.until is None or pause.until > self._clock.now().timestamp())


def _without(actions: Sequence[Action], others: Sequence[Action]) -> list[Action]:
    """Those actions that touch no tablet of the others'."""
    taken = {tablet for action in others for tablet in action.tablets}
    return [action for action in actions if not taken.intersection(action.tablets)]


def failed_tick(occasion: Occasion, error: str, now: datetime) -> BundleState:
    """The state of a bundle whose tick itself failed: nothing is known of it but that."""
    schedule = ScheduleReport("", "", occasion.bundle.timezone, False, None, None)
    word = f"the tick failed: {error}"
    return BundleState(occasion.bundle.name, now, occasion.bundle.mode, Word.BLOCKED, word, (), schedule, error=error)


def in_words(migration: Migration) -> str:
    """A migration in a few words, for the sentence of a bundle."""
    tablets = ", ".join(map(str, migration.sources[:3])) + (", …" if len(migration.sources) > 3 else "")
    noun = "tablet" if len(migration.sources) == 1 else "tablets"
    where = (
        f" from {migration.source_node} to {migration.target_node}"
        if migration.operation is MigrationKind.MOVE
        else f" on {migration.source_node}"
    )
    size = migration.detail.get("size")
    details = f"{migration.state}, {format_size(size)}" if size else migration.state
    return f"{migration.operation} of {noun} {tablets}{where} ({details})"


def _running(snapshot: Snapshot, bundle: str) -> list[str]:
    records = [record for record in snapshot.migrations.values() if record.bundle == bundle and not record.finished]
    return [in_words(record) for record in sorted(records, key=lambda record: record.created)]


def _seconds_left(bundle: BundleSettings, schedule: ScheduleReport, now: datetime) -> float | None:
    """Until the window closes; None where nothing has to be finished by then."""
    if bundle.migration.finish_by is FinishBy.ANY or schedule.closes_at is None:
        return None
    return max(0.0, (schedule.closes_at - now).total_seconds())


def _measured_rate(migrations: Sequence[Migration]) -> float | None:
    """Bytes per second of the newest finished moves, from first to last byte of each; None: nothing measured yet."""
    done = [
        record
        for record in migrations
        if record.finished and record.state == "done" and record.operation is MigrationKind.MOVE
    ]
    newest = sorted(done, key=lambda record: record.updated)[-RATE_SAMPLE:]
    size = sum(record.detail.get("size", 0) for record in newest)
    seconds = sum(record.updated - record.created for record in newest)
    return size / seconds if size and seconds else None


def _node_report(polled: PolledNode | None, record: Node) -> NodeReport:
    if polled is None:
        return NodeReport(record.id, str(record.state), record.reason, False, error="it is not in the bundle's file")
    silent = polled.unreachable
    facts = polled.poll.facts if polled.poll else None
    return NodeReport(
        id=record.id,
        state=str(record.state),
        reason=record.reason,
        reachable=silent is None,
        unreachable_since=None if silent is None else datetime.fromtimestamp(silent.since, UTC),
        error="" if silent is None else silent.reason,
        version=_version(facts.version) if facts else "",
        is_standby=polled.health is Health.STANDBY,
        disagreements=tuple(found.text for found in polled.disagreements),
        database_bytes=float(facts.database_bytes) if facts else 0.0,
        connections=facts.connections if facts else 0,
        retained_wal_bytes=float(sum(slot.retained_bytes for slot in facts.slots)) if facts else 0.0,
    )


def _version(number: int) -> str:
    """`180004` as PostgreSQL writes it: 18.4."""
    return f"{number // 10000}.{number % 10000}"
