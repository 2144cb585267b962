"""Plans as documents: what is wanted and why, what was left and why not.

Schedules as documents: whether a bundle is open, today's strip, the next windows.

The consistency checker's results as documents, from the notes that the leader leaves.

Everything the page shows first, in one document that stays small at any number of tablets.

Why a tablet is where it is, how a node is, and why not elsewhere: the policies' answers for the newest figures.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Final
from zoneinfo import ZoneInfo

from balancer.api.record_shapes import (
    ActionShape,
    CheckList,
    CheckRoundShape,
    ChecksShape,
    ExplanationShape,
    FindingShape,
    NodeChangeShape,
    Overview,
    PlanList,
    PlanShape,
    RejectionShape,
    WhyNotShape,
)
from balancer.api.shapes import ScheduleList, ScheduleShape, WindowShape, cut_at, instant, instant_or_none
from balancer.api.source import Notes, Source
from balancer.api.views import bundles, migrations, tablets
from balancer.api.views.bundles import score
from balancer.directory.model import Json, LogEntry, NodeState, Put, Tablet
from balancer.directory.snapshot import NotFound, Snapshot
from balancer.errors import Unavailable
from balancer.features.checker.book import book_of
from balancer.logs import mask
from balancer.planner.bundle_state import BundleState, ScheduleReport
from balancer.policies.checking import CheckRounds, PastRound, Standing
from balancer.policies.options import BundleOptions
from balancer.policies.plan import explain
from balancer.policies.plan import explain as questions
from balancer.policies.plan.explain import Explanation
from balancer.policies.view import BundleView, PlanResult
from balancer.schedules import ALWAYS, Formula, Schedule


def plans(states: Iterable[BundleState], limit: int) -> list[PlanShape]:
    """The present plan of each bundle, with at most `limit` actions and as many rejections."""
    return [_plan(state, state.plan, limit) for state in states if state.plan is not None]


def plan_list(found: list[PlanShape], limit: int, cursor: str) -> PlanList:
    """Some of them, by bundle."""
    items, following = cut_at(found, lambda one: (one.bundle,), limit, cursor)
    return PlanList(items=list(items), next=following)


def _plan(state: BundleState, plan: PlanResult, limit: int) -> PlanShape:
    return PlanShape(
        bundle=state.bundle,
        id=state.plan_id,
        at=state.at,
        score=score(plan),
        actions=[
            ActionShape(
                number=number,
                kind=action.kind,
                table=action.table,
                tablets=list(action.tablets),
                source=action.source,
                target=action.target,
                reason=action.reason,
                code=action.code,
                bytes=round(action.size),
                gain=round(action.gain, 6),
            )
            for number, action in enumerate(plan.actions[:limit], 1)
        ],
        action_count=len(plan.actions),
        rejections=[
            RejectionShape(
                kind=rejection.kind,
                tablets=list(rejection.tablets),
                target=rejection.target,
                code=rejection.code,
                reason=rejection.reason,
            )
            for rejection in plan.rejections[:limit]
        ],
        counts=dict(plan.counts),
        node_changes=[
            NodeChangeShape(
                node=change.node, condition=NodeState(change.condition), code=change.code, reason=change.reason
            )
            for change in plan.node_changes
        ],
        pending_moves=plan.pending_moves,
        pending_bytes=round(plan.pending_bytes),
        notes=list(plan.notes),
    )


DAY_MINUTES = 24 * 60


def schedule(source: Source, state: BundleState, windows: int) -> ScheduleShape:
    """One bundle's schedule at this moment; the formula and whether it is open are those of the last tick."""
    return _shape(state.bundle, state.schedule, source.clock.now(), windows)


def schedule_list(source: Source, states: Iterable[BundleState], windows: int, limit: int, cursor: str) -> ScheduleList:
    """Of some bundles, by name."""
    items, following = cut_at([*states], lambda state: (state.bundle,), limit, cursor)
    return ScheduleList(items=[schedule(source, state, windows) for state in items], next=following)


def _shape(bundle: str, report: ScheduleReport, now: datetime, windows: int) -> ScheduleShape:
    zone = ZoneInfo(report.timezone)
    made = _schedule(report.formula, report.timezone)
    today = now.astimezone(zone).date()
    return ScheduleShape(
        bundle=bundle,
        formula=report.formula,
        level=report.level,
        timezone=report.timezone,
        open=report.open,
        closes_at=report.closes_at,
        next_open=report.next_open,
        day=today,
        strip=_strip(report.formula),
        windows=[
            WindowShape(start=window.start, end=window.end)
            for window in islice(made.windows(now.astimezone(UTC)), windows)
        ],
        too_short=report.too_short,
    )


@lru_cache(maxsize=256)
def _schedule(formula: str, timezone: str) -> Schedule:
    return Schedule(Formula(formula) if formula else ALWAYS, ZoneInfo(timezone))


@lru_cache(maxsize=256)
def _strip(formula: str) -> str:
    """The minutes of a day as the wall clock shows them: the formula knows only hours and minutes."""
    bits = 0
    midnight = datetime(2001, 1, 1, tzinfo=UTC)
    made = _schedule(formula, "UTC")
    for minute in range(DAY_MINUTES):
        bits = bits << 1 | made.is_open(midnight + timedelta(minutes=minute))
    return f"{bits:0{DAY_MINUTES // 4}x}"


_FEW_FINDINGS = 20


def check_results(notes: Mapping[str, Json]) -> list[ChecksShape]:
    """Of every bundle that has been checked."""
    return [_checks(bundle, book_of(note)) for bundle, note in sorted(notes.items())]


def check_list(notes: Mapping[str, Json], limit: int, cursor: str) -> CheckList:
    """Some of them, by bundle."""
    items, following = cut_at(check_results(notes), lambda one: (one.bundle,), limit, cursor)
    return CheckList(items=list(items), next=following)


def _checks(bundle: str, book: CheckRounds) -> ChecksShape:
    round_ = book.round
    return ChecksShape(
        bundle=bundle,
        round=round_.number if round_ else 0,
        kind=round_.kind if round_ else None,
        rows=round_.rows if round_ else 0,
        findings=[_finding(one) for one in list(book.standing.values())[:_FEW_FINDINGS]],
        more=book.more + max(0, len(book.standing) - _FEW_FINDINGS),
        unchecked=[mask(why) for why in round_.why[:_FEW_FINDINGS]] if round_ else [],
        past=[_past(one) for one in book.past],
    )


def _finding(one: Standing) -> FindingShape:
    found = one.anomaly
    return FindingShape(
        kind=found.kind,
        text=mask(found.text),
        table=found.table,
        tablet=found.tablet,
        node=found.node,
        root=found.root,
        count=found.count,
        advice=mask(found.advice),
        first=instant(one.first),
        last=instant(one.last),
    )


def _past(one: PastRound) -> CheckRoundShape:
    return CheckRoundShape(
        number=one.number,
        began=instant(one.began),
        ended=instant(one.ended),
        rows=one.rows,
        findings=one.anomalies,
        unchecked=one.unchecked,
    )


_FEW: Final = 30


def overview(source: Source, notes: Notes) -> Overview:
    """The first paint, and every later one."""
    states = bundles.chosen(source, None)
    snapshot = source.follower().snapshot
    shown = migrations.page(snapshot, notes.progress(snapshot), migrations.Chosen(), limit=2 * _FEW)
    return Overview(
        status=bundles.status(source, notes),
        tables=tablets.tables(snapshot),
        nodes=bundles.nodes(source, states),
        schedules=[schedule(source, state, windows=4) for state in states],
        plans=plans(states, _FEW),
        migrations=shown.items,
        running=sum(not one.finished for one in snapshot.migrations.values()),
        quarantined=tablets.quarantined(source, states, _FEW),
        hot=tablets.hottest(source, states, 10),
        checks=check_results(notes.checks()),
        history=notes.recent(snapshot),
    )


def about_tablet(source: Source, tablet: int) -> ExplanationShape:
    """What it carries, what decides about it, what the plan does with it, and since when it has been there."""
    snapshot = source.follower().snapshot
    record = snapshot.tablet(tablet)
    state, view, options = _known(source, snapshot.tables[record.table].bundle)
    try:
        found = explain.explain_tablet(view, options, tablet)
    except questions.Unknown as error:
        raise NotFound(f"{error} at the last poll") from None
    return _answer_shape(found, state, owner_since(source, snapshot, record))


def about_node(source: Source, node: str) -> ExplanationShape:
    """How full it is, and what the plan takes from it and gives to it."""
    state, view, options = _known(source, _bundle(source.follower().snapshot, node))
    try:
        return _answer_shape(explain.explain_node(view, options, node), state, None)
    except questions.Unknown as error:
        raise NotFound(f"{error} at the last poll") from None


def why_not(source: Source, tablet: int, node: str) -> WhyNotShape:
    """Why the tablet does not go to the node."""
    snapshot = source.follower().snapshot
    _bundle(snapshot, node)
    state, view, options = _known(source, snapshot.tables[snapshot.tablet(tablet).table].bundle)
    try:
        found = questions.why_not(view, options, tablet, node)
    except questions.Unknown as error:
        raise NotFound(f"{error} at the last poll") from None
    return WhyNotShape(
        tablet=found.tablet,
        node=found.node,
        planned=found.planned,
        code=found.code,
        reason=mask(found.reason),
        flip=mask(found.flip),
        at=state.at,
    )


def owner_since(source: Source, snapshot: Snapshot, tablet: Tablet) -> float | None:
    """When its current epoch began; None: further back than the history is searched."""
    since = None
    for entry in migrations.backwards(source.directory(), snapshot.version + 1):
        for record in _tablets(entry):
            if record.id == tablet.id and record.epoch < tablet.epoch:
                return since
            if record.id == tablet.id:
                since = entry.at
    return since


def _tablets(entry: LogEntry) -> Iterator[Tablet]:
    for change in entry.changes:
        if isinstance(change, Put) and isinstance(change.record, Tablet):
            yield change.record


def _bundle(snapshot: Snapshot, node: str) -> str:
    return snapshot.node(node).bundle


def _known(source: Source, bundle: str) -> tuple[BundleState, BundleView, BundleOptions]:
    """What was polled last, and the options in force."""
    state = source.states().get(bundle)
    if state is None or state.view is None:
        raise Unavailable(f"bundle {bundle} has not been polled yet")
    settings = source.settings().bundles.get(bundle)
    return state, state.view, BundleOptions() if settings is None else settings.options


def _answer_shape(found: Explanation, state: BundleState, since: float | None) -> ExplanationShape:
    return ExplanationShape(
        subject=found.subject,
        sentences=[mask(one) for one in found.sentences],
        at=state.at,
        since=instant_or_none(since),
    )
