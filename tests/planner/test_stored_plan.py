"""A plan in the directory: the same input comes back, and so the same plan can be made again."""

import json

import numpy as np
import pytest

from balancer.planner.plans import pack_input, plan_document, read_actions, unpack_input
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import KeyType
from balancer.policies.options import BalancerOptions, BundleOptions, GroupOptions, InMemoryMode, TableOptions
from balancer.policies.view import (
    Action,
    ActionKind,
    BundleView,
    InFlight,
    KeySamples,
    NodeCondition,
    NodeView,
    Part,
    PlanResult,
    SampleSource,
    TabletColumns,
    TabletHistory,
    TableView,
)

pytestmark = pytest.mark.quick

VIEW = BundleView(
    bundle="shop",
    now=1.5,
    nodes=(NodeView("a", NodeCondition.DRAINING, "east", 2.0), NodeView("b", memory=5.0)),
    tables=(
        TableView("orders", True, (KeyType.BIGINT,), 0, 2),
        TableView("events", False, (KeyType.TIMESTAMPTZ, KeyType.TEXT), 2, 3),
    ),
    tablets=TabletColumns(
        ids=np.array([1, 2, 3]),
        node=np.array([0, 1, 1]),
        sizes=np.array([10.0, 20.0, 0.5]),
        memory=np.zeros(3),
        rows=np.array([1.0, 2.0, 3.0]),
        write_rate=np.array([0.1, 0.2, 0.3]),
        read_rate=np.zeros(3),
        lowers=[b"", b"", b"\x05\x00\xff"],
        moduli=np.array([2, 2, 0]),
        remainders=np.array([0, 1, 0]),
    ),
    in_flight=(InFlight("m1", (1,), "a", "b"),),
    pinned=frozenset({2}),
    history={3: TabletHistory(last_migrated=1.0, failures=2)},
    samples={
        3: KeySamples(SampleSource.ROW_AGES, (b"\x01", b"\xff"), (1.0, 2.0), writes=(True, False), row_keys=(b"\x07",))
    },
    window_seconds_left=60.0,
)
OPTIONS = BundleOptions(
    balancer=BalancerOptions(groups={"hot": GroupOptions(max_action_count=3)}),
    tables={"orders": TableOptions(in_memory_mode=InMemoryMode.COMPRESSED, zones=("east",))},
)


def test_the_input_of_a_plan_comes_back_as_it_was() -> None:
    view, options = unpack_input(pack_input(VIEW, OPTIONS))
    assert options == OPTIONS
    again = pack_input(view, options)
    assert pack_input(*unpack_input(again)) == again
    assert view.nodes == VIEW.nodes
    assert view.tables == VIEW.tables
    assert view.samples == VIEW.samples
    assert view.history == VIEW.history
    assert view.tablets.lowers == VIEW.tablets.lowers
    assert np.array_equal(view.tablets.sizes, VIEW.tablets.sizes)


def test_the_actions_survive_the_directory() -> None:
    parts = (Part(leaf=Leaf(4, 0)), Part(leaf=Leaf(4, 2), node="b"))
    split = Action(ActionKind.SPLIT, "orders", (1,), "too hot", "heat", "a", "", parts)
    cut = Action(ActionKind.RESHARD, "events", (3,), "too big", "size", parts=(Part(b""), Part(b"\x05\xff")), count=2)
    document = json.loads(json.dumps(plan_document(PlanResult(actions=(split, cut)), VIEW, OPTIONS)))
    assert read_actions(document) == (split, cut)


def test_an_input_that_is_too_large_is_left_out_and_said() -> None:
    count = 100_000
    noise = np.random.default_rng(7).random(count)
    zeros = np.zeros(count, np.int64)
    floats = dict.fromkeys(("sizes", "memory", "rows", "write_rate", "read_rate"), noise)
    columns = TabletColumns(np.arange(count), zeros, **floats, lowers=[b""] * count, moduli=zeros, remainders=zeros)
    view = BundleView("big", 0.0, VIEW.nodes, (), columns)
    assert plan_document(PlanResult(), view, OPTIONS)["input"] is None
