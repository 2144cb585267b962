"""A bundle's state as plain data: the leader publishes it, and the command line shows it from any host."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np

from balancer.planner.loads import node_loads
from balancer.planner.state import BundleState, NodeReport
from balancer.policies.bundle_view import BundleView
from balancer.policies.day_parts import DaySpan, span_text
from balancer.policies.day_report import PeakHour

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
