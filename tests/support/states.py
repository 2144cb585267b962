"""Bundles as a tick reports them, made from a few numbers: for what shows or measures states."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from balancer.planner.state import BundleState, NodeReport, ScheduleReport, StateWord
from balancer.policies.bundle_view import BundleView, NodeView, PlanResult, TabletColumns, TableView
from balancer.policies.hash_leaves import Leaf
from balancer.policies.keys import LOWEST, KeyType, encode_key
from balancer.settings import Mode

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
OPEN = ScheduleReport("", "", "UTC", True, None, NOON)


def leaves(count: int) -> list[Leaf]:
    """The vbuckets of an even hash table in key order."""
    return sorted((Leaf(count, remainder) for remainder in range(count)), key=Leaf.start)


def view_of(
    tables: Mapping[str, Sequence[int] | int],
    nodes: Sequence[str] = ("pg-a", "pg-b"),
    bundle: str = "shop",
    **columns: Sequence[float],
) -> BundleView:
    """A bundle: a table is a number of vbuckets, or the keys at which an integer range table is cut."""
    views: list[TableView] = []
    lowers: list[bytes] = []
    moduli: list[int] = []
    remainders: list[int] = []
    for name, shape in tables.items():
        first = len(lowers)
        if isinstance(shape, int):
            lowers += [LOWEST] * shape
            moduli += [shape] * shape
            remainders += [leaf.remainder for leaf in leaves(shape)]
        else:
            lowers += [LOWEST, *(encode_key((KeyType.BIGINT,), (key,)) for key in shape)]
            moduli += [0] * (len(shape) + 1)
            remainders += [0] * (len(shape) + 1)
        views.append(TableView(name, isinstance(shape, int), (KeyType.BIGINT,), first, len(lowers)))
    count = len(lowers)

    def column(name: str, default: float) -> Any:
        return np.array(columns.get(name, [default] * count), dtype=np.float64)

    tablets = TabletColumns(
        ids=np.arange(1, count + 1),
        node=np.array(columns.get("node", [row % len(nodes) for row in range(count)]), dtype=np.int64),
        sizes=column("sizes", 1000.0),
        memory=column("memory", 0.0),
        rows=column("rows", 10.0),
        write_rate=column("write_rate", 1.0),
        read_rate=column("read_rate", 2.0),
        lowers=lowers,
        moduli=np.array(moduli, dtype=np.int64),
        remainders=np.array(remainders, dtype=np.int64),
    )
    return BundleView(bundle, NOON.timestamp(), tuple(map(NodeView, nodes)), tuple(views), tablets)


def state_of(view: BundleView, plan: PlanResult | None = None, seconds: float = 0.0, **fields: Any) -> BundleState:
    """The state a tick would report of this view, so many seconds after noon."""
    reports = tuple(NodeReport(node.id, node.condition.value, "", True) for node in view.nodes)
    state = BundleState(
        bundle=view.bundle,
        at=NOON + timedelta(seconds=seconds),
        mode=Mode.AUTONOMOUS,
        word=StateWord.BALANCED,
        sentence="balanced: nothing to do",
        nodes=reports,
        schedule=OPEN,
        view=view,
        plan=plan or PlanResult(),
    )
    return replace(state, **fields)
