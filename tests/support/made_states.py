"""States of whatever a directory holds: what a tick would report, with figures made from the tablets' ids."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from balancer.directory.model import Layout, RangeBounds, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.planner.state import BundleState, StateWord
from balancer.policies.bundle_view import (
    Action,
    ActionKind,
    BundleView,
    NodeView,
    PlanResult,
    Rejection,
    TabletColumns,
    TableView,
)
from balancer.policies.hash_leaves import Leaf
from tests.support.instance import Instance
from tests.support.states import state_of

Rate = Callable[[Tablet], float]


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
