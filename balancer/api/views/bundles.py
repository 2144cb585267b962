"""Bundles and nodes as documents, from the states of the last tick.

A bundle in one short line, and how far its work has come. Its sentence says more, on demand.
"""

from collections.abc import Iterable, Mapping
from math import isnan
from zoneinfo import ZoneInfo

from balancer import __version__
from balancer.api.shapes import (
    BundleShape,
    CapacityShape,
    InstanceShape,
    Leader,
    LoadsShape,
    NodeList,
    NodeShape,
    ProgressShape,
    ScoreShape,
    SpreadShape,
    Status,
    cut_at,
    instant,
)
from balancer.api.source import Notes, Source
from balancer.directory.model import Json, Migration, Node, NodeState
from balancer.directory.notes import LeaderSpread
from balancer.directory.snapshot import Snapshot
from balancer.errors import UserError
from balancer.logs import mask
from balancer.naming import cluster_name
from balancer.planner.bundle_state import BundleState, NodeReport, StateWord, imbalance, node_loads
from balancer.planner.verdict import EVEN
from balancer.policies.reasons import Left
from balancer.policies.view import HOURS, Floats, NodeView, PlanResult, hour_slot


def chosen(source: Source, bundle: str | None) -> list[BundleState]:
    """The states of one bundle, or of all by name."""
    states = source.states()
    if bundle is None:
        return [states[name] for name in sorted(states)]
    if bundle not in states:
        known = ", ".join(sorted(states)) or "none yet"
        raise UserError(f"there is no bundle {bundle!r}; there are: {known}")
    return [states[bundle]]


def status(source: Source, notes: Notes) -> Status:
    """The instance, its leader and its bundles."""
    leader, follower = source.leader(), source.follower()
    running = notes.progress(follower.snapshot)
    return Status(
        cluster=cluster_name(source.settings().daemon.directory),
        instance=source.settings().daemon.instance,
        version=__version__,
        leader=Leader(name=leader.name, epoch=leader.epoch, is_self=leader.is_self),
        spread=_spread(leader.spread),
        directory_version=follower.snapshot.version,
        directory_age_seconds=round(follower.age(), 1),
        tick_age_seconds=round(source.tick_age(), 1),
        bundles=[_bundle(source, state, running) for state in chosen(source, None)],
    )


def _spread(spread: LeaderSpread | None) -> SpreadShape | None:
    if spread is None:
        return None
    return SpreadShape(
        wanted=spread.wanted,
        waits_for=mask(spread.waits_for),
        instances=[InstanceShape(name=one.name, weight=one.weight, unfit=mask(one.unfit)) for one in spread.instances],
    )


def _bundle(source: Source, state: BundleState, running: Mapping[str, Json]) -> BundleShape:
    view = state.view
    return BundleShape(
        name=state.bundle,
        mode=state.mode,
        word=state.word,
        headline=mask(headline(state)),
        sentence=mask(state.sentence),
        progress=progress(state, source.follower().snapshot, running, source.recorder.begun(state.bundle)),
        at=state.at,
        paused=state.paused,
        paused_until=state.paused_until,
        error=mask(state.error),
        score=None if state.plan is None else score(state.plan),
        imbalance={} if view is None else {name: round(ratio, 4) for name, ratio in imbalance(view).items()},
        tablets=0 if view is None else len(view.tablets),
        nodes=len(state.nodes),
        plan=state.plan_id,
    )


def score(plan: PlanResult) -> ScoreShape:
    """The three scores of a plan."""
    return ScoreShape(
        now=round(plan.score_before, 2),
        after_plan=round(plan.score_after, 2),
        bound=round(plan.bound, 2),
        limit=round(plan.limit, 2),
    )


def nodes(source: Source, states: Iterable[BundleState]) -> list[NodeShape]:
    """Every node of these bundles, with its loads."""
    known = source.follower().snapshot.nodes
    return [shape for state in states for shape in _nodes_of(state, known)]


def node_list(found: list[NodeShape], limit: int, cursor: str) -> NodeList:
    """Some of them, by bundle and name."""
    found.sort(key=lambda node: (node.bundle, node.id))
    items, following = cut_at(found, lambda node: (node.bundle, node.id), limit, cursor)
    return NodeList(items=list(items), next=following)


def _nodes_of(state: BundleState, known: Mapping[str, Node]) -> Iterable[NodeShape]:
    view = state.view
    loads = {} if view is None else node_loads(view)
    places = {} if view is None else {node.id: at for at, node in enumerate(view.nodes)}
    for report in state.nodes:
        at = places.get(report.id)
        carried, capacity = LoadsShape(), CapacityShape()
        if at is not None and view is not None:
            carried, capacity = _loads(loads, at), _capacity(view.nodes[at])
        yield _node(state, report, known.get(report.id), carried, capacity, day=_day(state, at))


def _loads(loads: Mapping[str, Floats], at: int) -> LoadsShape:
    return LoadsShape(
        bytes=round(loads["bytes"][at]),
        memory=round(loads["memory"][at]),
        write_rate=round(float(loads["write_rate"][at]), 3),
        read_rate=round(float(loads["read_rate"][at]), 3),
        tablets=round(loads["tablets"][at]),
    )


def _capacity(node: NodeView) -> CapacityShape:
    return CapacityShape(
        bytes=None if node.disk_capacity is None else round(node.disk_capacity),
        memory=None if node.memory is None else round(node.memory),
        write_rate=node.write_capacity,
        read_rate=node.read_capacity,
    )


def _day(state: BundleState, at: int | None) -> list[float | None]:
    """A node's hours relative to its share, for a day of today's kind."""
    if state.day is None or at is None:
        return []
    today = state.at.astimezone(ZoneInfo(state.schedule.timezone)).replace(hour=0)
    hours = state.day.relative[hour_slot(today) : hour_slot(today) + HOURS, at].tolist()
    return [None if isnan(hour) else round(hour, 2) for hour in hours]


def _node(
    state: BundleState,
    report: NodeReport,
    record: Node | None,
    loads: LoadsShape,
    capacity: CapacityShape,
    *,
    day: list[float | None],
) -> NodeShape:
    return NodeShape(
        id=report.id,
        bundle=state.bundle,
        state=NodeState(report.state),
        reason=mask(report.reason),
        zone=record.zone if record else "",
        weight=record.weight if record else 1.0,
        reachable=report.reachable,
        unreachable_since=report.unreachable_since,
        error=mask(report.error),
        version=report.version,
        disagreements=len(report.disagreements),
        rewound=mask(report.rewound),
        loads=loads,
        capacity=capacity,
        day=day,
        database_bytes=round(report.database_bytes),
        connections=report.connections,
        retained_wal_bytes=round(report.retained_wal_bytes),
    )


def headline(state: BundleState) -> str:
    """The short line."""
    if not state.nodes:
        return _short(state.sentence) if state.paused else "it has no nodes yet"
    down = [report for report in state.nodes if not report.reachable and report.state != "lost"]
    if down:
        return _down(state, down)
    if state.word is StateWord.BALANCED:
        return _balanced(state)
    return _short(state.sentence)


def progress(
    state: BundleState, snapshot: Snapshot, notes: Mapping[str, Json], begun: float | None
) -> ProgressShape | None:
    """How far it is; None: there is nothing to do."""
    if begun is None:
        return None
    ours = [one for one in snapshot.migrations.values() if one.bundle == state.bundle]
    done = [one for one in ours if one.finished and one.state == "done" and one.updated >= begun]
    running = [one for one in ours if not one.finished]
    copied, total = _copied(running, notes)
    left, left_bytes = _left(state.plan, len(state.started))
    done_bytes = copied + sum(_size(one) for one in done)
    rest = left_bytes + max(0.0, total - copied)
    took = max(1.0, state.at.timestamp() - begun)
    return ProgressShape(
        begun=instant(begun),
        done=len(done),
        running=len(running),
        left=left,
        done_bytes=round(done_bytes),
        left_bytes=round(rest),
        eta_seconds=round(rest / (done_bytes / took), 1) if done_bytes else None,
    )


def _down(state: BundleState, down: list[NodeReport]) -> str:
    first, more = down[0], len(down) - 1
    tablets = 0
    if state.view is not None:
        counts = node_loads(state.view)["tablets"]
        places = {node.id: at for at, node in enumerate(state.view.nodes)}
        tablets = sum(int(counts[places[one.id]]) for one in down if one.id in places)
    if more:
        return f"{len(down)} nodes are down: {_tablets(tablets)}"
    since = f" since {first.unreachable_since:%H:%M:%S} UTC" if first.unreachable_since else ""
    return f"{first.id} is down{since}: {_tablets(tablets)}"


def _balanced(state: BundleState) -> str:
    """Even, or why it cannot be more even."""
    plan = state.plan
    if plan is None or plan.score_before >= EVEN:
        return "every node carries its share"
    if plan.score_before < plan.limit - 1:  # it could be better: the plan's notes say what is in the way
        notes = [note.removeprefix("balanced: ") for note in plan.notes if note.startswith("balanced: ")]
        why = notes[0] if notes else "no move that is allowed makes it more even"
        return f"{plan.score_before:.0f} of 100 is even enough: {why}"
    reasons = [one.reason for one in plan.rejections if one.code == Left.NO_GAIN]
    why = f": {_short(reasons[0])}" if reasons else ": tablets are too few or too large to share more evenly"
    return f"{plan.score_before:.0f} of 100, the best these tablets allow{why}"


def _short(sentence: str) -> str:
    """Its first clause."""
    first, _, _ = sentence.partition("; ")
    return first


def _tablets(count: int) -> str:
    return f"{count} tablet{'' if count == 1 else 's'}"


def _left(plan: PlanResult | None, started: int) -> tuple[int, float]:
    if plan is None:
        return 0, 0.0
    waiting = plan.actions[started:]
    return len(waiting) + plan.pending_moves, sum(one.size for one in waiting) + plan.pending_bytes


def _copied(running: Iterable[Migration], notes: Mapping[str, Json]) -> tuple[float, float]:
    """Bytes that running migrations have copied, and all that they will."""
    copied = total = 0.0
    for one in running:
        note = notes.get(one.id)
        if isinstance(note, dict):
            whole = _number(note.get("bytes_total"))
            total += whole
            copied += min(whole, _number(note.get("bytes_done")))
    return copied, total


def _size(one: Migration) -> float:
    return _number(one.detail.get("size"))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
