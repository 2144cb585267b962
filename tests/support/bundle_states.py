"""Bundles as a tick reports them: made from a few numbers, or from what a directory holds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from balancer.directory.model import Layout, RangeBounds, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.planner.bundle_state import BundleState, NodeReport, ScheduleReport, StateWord
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import LOWEST, KeyType, encode_key
from balancer.policies.view import (
    Action,
    ActionKind,
    BundleView,
    NodeView,
    PlanResult,
    Rejection,
    TabletColumns,
    TableView,
)
from balancer.settings import Mode
from tests.support.bundle_views import leaves
from tests.support.instance import Instance

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
OPEN = ScheduleReport("", "", "UTC", True, None, NOON)
Rate = Callable[[Tablet], float]


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
    """The state a tick would report for this view, this many seconds after noon."""
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


def view_of_snapshot(snapshot: Snapshot, bundle: str = "shop", writes: Rate = lambda tablet: float(tablet.id)) -> Any:
    """The view that a poll of a bundle's nodes would give."""
    nodes = sorted(node.id for node in snapshot.nodes.values() if node.bundle == bundle)
    tablets: list[Tablet] = []
    tables = []
    for table in sorted(snapshot.tables.values(), key=lambda table: table.id):
        if table.bundle == bundle:
            first = len(tablets)
            tablets += snapshot.tablets(table.id)
            tables.append(TableView(table.name, table.layout is Layout.HASH, table.key_types, first, len(tablets)))
    leaves = [tablet.bounds if isinstance(tablet.bounds, Leaf) else Leaf(0, 0) for tablet in tablets]
    rates = np.array([writes(tablet) for tablet in tablets], dtype=np.float64)
    index = {node: at for at, node in enumerate(nodes)}
    columns = TabletColumns(
        ids=np.array([tablet.id for tablet in tablets], dtype=np.int64),
        node=np.array([index[tablet.node] for tablet in tablets], dtype=np.int64),
        sizes=np.full(len(tablets), 1e6),
        memory=np.zeros(len(tablets)),
        rows=np.full(len(tablets), 1e3),
        write_rate=rates,
        read_rate=rates / 2,
        lowers=[tablet.bounds.lower if isinstance(tablet.bounds, RangeBounds) else b"" for tablet in tablets],
        moduli=np.array([leaf.modulus for leaf in leaves], dtype=np.int64),
        remainders=np.array([leaf.remainder for leaf in leaves], dtype=np.int64),
    )
    return BundleView(bundle, 0.0, tuple(NodeView(node, disk_capacity=1e9) for node in nodes), tuple(tables), columns)


def report_small(instance: Instance, writes: Rate | None = None, **fields: Any) -> BundleState:
    """Reports the bundle `shop` as a tick would, now."""
    snapshot = instance.follower().snapshot
    view = view_of_snapshot(snapshot) if writes is None else view_of_snapshot(snapshot, writes=writes)
    plan = PlanResult(
        actions=(Action(ActionKind.MOVE, "orders", (3,), "pg-c carries 30 % more", "load", "pg-c", "pg-a", size=1e6),),
        rejections=(Rejection(ActionKind.MOVE, (4,), "pinned", "an operator pinned tablet 4", "pg-b"),),
        counts={"pinned": 1},
        score_before=71.5,
        score_after=93.0,
        bound=95.0,
    )
    state = state_of(view, plan, word=StateWord.WORKING, sentence="working: 1 move", plan_id="p1")
    state = replace(state, at=instance.clock.now(), **fields)
    instance.report(state)
    return state
