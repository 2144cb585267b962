"""What one tick of a bundle found out: a value that the API, the page and the command line show.

Made by `tick`, read by everybody above; nothing here acts. The four words are never mixed up: `balanced` means that
there is nothing to do, `blocked` that there is and something is in the way.

Nodes and migrations as a tick reports them to people. Pure.

A bundle's state as plain data: the leader publishes it, and the command line shows it from any host.

What the nodes of a bundle carry, per dimension: figures for people and metrics. Nothing is decided from these.

Used by the tick, the report (metrics), the summary and the API (bars on the page).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import numpy as np

from balancer.directory.model import Migration, MigrationKind, Node
from balancer.directory.snapshot import Snapshot
from balancer.policies.budgets import NOTHING_BEGUN, BalancingCredit
from balancer.policies.day.book import DayReport, PeakHour
from balancer.policies.view import BundleView, DaySpan, Floats, NodeCondition, PlanResult, span_text
from balancer.polling.ownership import rewound_words
from balancer.polling.poller import ClusterPoll, Health
from balancer.settings import Mode
from balancer.settings.units import format_size


class StateWord(StrEnum):
    """The state of a bundle in one word."""

    BALANCED = "balanced"
    WORKING = "working"
    WAITING = "waiting for the schedule"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class ScheduleReport:
    """Whether the bundle may be balanced at this moment, and when it may next."""

    formula: str
    level: str  # whose formula it is; empty: nobody has one, so always open
    timezone: str
    open: bool
    closes_at: datetime | None
    next_open: datetime | None
    next_close: datetime | None = None  # of the window that opens next; None: it is open, never closes or never opens
    missed: datetime | None = None  # the newest open minute that no tick looked at, and that is too long ago now
    too_short: str = ""  # that nothing of the desired size fits into any window to come, and what would


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node as the last poll saw it."""

    id: str
    state: str  # active, draining, closed, down, lost
    reason: str
    reachable: bool
    unreachable_since: datetime | None = None
    error: str = ""
    version: str = ""
    is_standby: bool = False
    rewound: str = ""  # why it is known to have gone back in time, and what to do; empty: it is not
    disagreements: tuple[str, ...] = ()  # where its ownership table contradicts the directory
    in_the_way: str = ""  # why the leader's own work there failed at this tick, such as a lock and who holds it
    poll_seconds: float = 0.0
    database_bytes: float = 0.0
    connections: int = 0
    retained_wal_bytes: float = 0.0
    prepared_seconds: float = 0.0  # the age of the oldest part of a transaction over several nodes; 0: there is none


@dataclass(frozen=True, slots=True)
class BundleState:
    """One bundle after one tick."""

    bundle: str
    at: datetime
    mode: Mode
    word: StateWord
    sentence: str  # the word with what, how long still, until when or by what
    nodes: tuple[NodeReport, ...]
    schedule: ScheduleReport
    view: BundleView | None = None  # None: the bundle could not be seen at all
    plan: PlanResult | None = None
    plan_id: str = ""
    paused_until: datetime | None = None
    paused: bool = False
    tick_seconds: float = 0.0
    started: tuple[str, ...] = ()  # migrations that this tick began, in words
    not_started: tuple[str, ...] = ()  # why due actions could not begin
    tail: BalancingCredit = NOTHING_BEGUN  # how far the balancing in progress has come
    day: DayReport | None = None  # what its hours are like; None: nothing is known about them yet
    looked: datetime | None = None  # when a leader last looked at the schedules: what opened since is not lost
    error: str = ""  # of the tick itself: one broken bundle never stops another


def node_reports(
    snapshot: Snapshot, bundle: str, poll: ClusterPoll, in_the_way: Mapping[str, str]
) -> tuple[NodeReport, ...]:
    """The bundle's nodes after a poll, and what keeps the leader from working there."""
    nodes = [node for node in snapshot.nodes.values() if node.bundle == bundle]
    return tuple(replace(node_report(poll, node), in_the_way=in_the_way.get(node.id, "")) for node in nodes)


def node_report(poll: ClusterPoll, record: Node) -> NodeReport:
    """One node, as the directory has it and as it answered."""
    polled = poll.nodes.get(record.id)
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
        rewound=rewound_words(record.id, polled.rewound) if polled.rewound else "",
        disagreements=tuple(found.text for found in polled.disagreements),
        poll_seconds=polled.poll.seconds if polled.poll else 0.0,
        database_bytes=float(facts.database_bytes) if facts else 0.0,
        connections=facts.connections if facts else 0,
        retained_wal_bytes=float(sum(slot.retained_bytes for slot in facts.slots)) if facts else 0.0,
        prepared_seconds=polled.poll.prepared_seconds if polled.poll else 0.0,
    )


def in_words(migration: Migration, parked: bool = False) -> str:
    """A migration in a few words, for the sentence of a bundle."""
    tablets = ", ".join(map(str, migration.sources[:3])) + (", …" if len(migration.sources) > 3 else "")
    noun = "tablet" if len(migration.sources) == 1 else "tablets"
    where = (
        f" from {migration.source_node} to {migration.target_node}"
        if migration.operation is MigrationKind.MOVE
        else f" on {migration.source_node}"
    )
    size = migration.detail.get("size")
    details = [migration.state, *([format_size(size)] if size else []), *(["held"] if parked else [])]
    return f"{migration.operation} of {noun} {tablets}{where} ({', '.join(details)})"


def running(snapshot: Snapshot, bundle: str) -> list[Migration]:
    """The bundle's unfinished migrations, oldest first."""
    records: Iterable[Migration] = snapshot.migrations.values()
    mine = [record for record in records if record.bundle == bundle and not record.finished]
    return sorted(mine, key=lambda record: record.created)


def _version(number: int) -> str:
    """`180004` as PostgreSQL writes it: 18.4."""
    return f"{number // 10000}.{number % 10000}"


STATUS_TOPIC = "status"
"""The topic of the notes; their names are those of the bundles."""
MOST_HOT = 20


def summary(state: BundleState) -> dict[str, Any]:
    """Everything of general interest, bounded in size: figures per node, the hottest tablets, the score."""
    plan, schedule = state.plan, state.schedule
    return {
        "bundle": state.bundle,
        "at": state.at.isoformat(),
        "mode": str(state.mode),
        "word": str(state.word),
        "sentence": state.sentence,
        "paused": state.paused,
        "paused_until": _time(state.paused_until),
        "plan": state.plan_id,
        "score": None if plan is None else round(plan.score_before, 1),
        "score_after": None if plan is None else round(plan.score_after, 1),
        "bound": None if plan is None else round(plan.bound, 1),
        "actions": 0 if plan is None else len(plan.actions),
        "pending_moves": 0 if plan is None else plan.pending_moves,
        "schedule": {
            "formula": schedule.formula,
            "level": schedule.level,
            "timezone": schedule.timezone,
            "open": schedule.open,
            "closes_at": _time(schedule.closes_at),
            "next_open": _time(schedule.next_open),
            "too_short": schedule.too_short,
        },
        "looked": None if state.looked is None else state.looked.isoformat(),
        "nodes": _nodes(state.nodes, state.view),
        "hot": [] if state.view is None else _hottest(state.view),
        "hot_by_day": [] if state.day is None else [_peak(peak) for peak in state.day.peaks],
        "tick_seconds": round(state.tick_seconds, 3),
        "error": state.error,
    }


def _nodes(nodes: Sequence[NodeReport], view: BundleView | None) -> list[dict[str, Any]]:
    loads = {} if view is None else _loads(view)
    nothing = {} if view is None else _NO_LOAD
    return [{**_node(node), **loads.get(node.id, nothing)} for node in nodes]


def _node(node: NodeReport) -> dict[str, Any]:
    return {
        "node": node.id,
        "state": node.state,
        "reason": node.reason,
        "reachable": node.reachable,
        "error": node.error,
        "unreachable_since": _time(node.unreachable_since),
        "version": node.version,
        "rewound": node.rewound,
        "disagreements": list(node.disagreements[:5]),
        "in_the_way": node.in_the_way,
        "connections": node.connections,
        "retained_wal_bytes": node.retained_wal_bytes,
    }


_NO_LOAD = {"tablets": 0, "bytes": 0.0, "write_rate": 0.0, "read_rate": 0.0}


def _loads(view: BundleView) -> dict[str, dict[str, float]]:
    """By node."""
    loads = {name: column.tolist() for name, column in node_loads(view).items()}
    return {
        node.id: {
            "tablets": int(loads["tablets"][at]),
            "bytes": loads["bytes"][at],
            "write_rate": round(loads["write_rate"][at], 3),
            "read_rate": round(loads["read_rate"][at], 3),
        }
        for at, node in enumerate(view.nodes)
    }


def _hottest(view: BundleView) -> list[dict[str, Any]]:
    tablets = view.tablets
    rates = tablets.write_rate + tablets.read_rate
    rows = np.argsort(-rates, kind="stable")[:MOST_HOT]
    return [
        {
            "tablet": int(tablets.ids[row]),
            "table": next(table.name for table in view.tables if table.first <= row < table.last),
            "node": view.nodes[int(tablets.node[row])].id,
            "write_rate": round(float(tablets.write_rate[row]), 3),
            "read_rate": round(float(tablets.read_rate[row]), 3),
            "bytes": float(tablets.sizes[row]),
        }
        for row in rows.tolist()
        if rates[row] > 0
    ]


def _peak(peak: PeakHour) -> dict[str, Any]:
    return {
        "tablet": peak.tablet,
        "table": peak.table,
        "node": peak.node,
        "busiest": span_text(DaySpan(peak.slot, peak.slot)),
        "write_rate": round(peak.write_rate, 3),
        "read_rate": round(peak.read_rate, 3),
        "bytes": peak.size,
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")


def dimension_columns(view: BundleView) -> Mapping[str, Floats]:
    """One column per dimension, an entry per tablet, under the names of `[placement] dimensions`."""
    columns = view.tablets
    return {
        "bytes": columns.sizes,
        "memory": columns.memory,
        "write_rate": columns.write_rate,
        "read_rate": columns.read_rate,
        "tablets": np.ones(len(columns)),
    }


def node_loads(view: BundleView) -> Mapping[str, Floats]:
    """Per dimension the sum of each node's tablets, in the order of `view.nodes`."""
    count = len(view.nodes)
    return {
        name: np.bincount(view.tablets.node, weights=column, minlength=count).astype(np.float64)[:count]
        for name, column in dimension_columns(view).items()
    }


def owned_tablets(view: BundleView) -> dict[str, int]:
    """How many tablets each node has."""
    counts = np.bincount(view.tablets.node, minlength=len(view.nodes)).tolist()
    return {node.id: counts[at] for at, node in enumerate(view.nodes)}


def imbalance(view: BundleView) -> Mapping[str, float]:
    """Per dimension with any load: the fullest node's load over the mean, each by its weight, of nodes not down."""
    counted = np.array([node.condition is not NodeCondition.DOWN for node in view.nodes], dtype=np.bool_)
    weights = np.array([node.weight for node in view.nodes], dtype=np.float64)[counted]
    ratios = {}
    for name, loads in node_loads(view).items():
        total = float(loads[counted].sum())
        if total > 0:
            ratios[name] = float((loads[counted] / weights).max() * weights.sum() / total)
    return ratios
