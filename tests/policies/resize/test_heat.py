"""Plans for hot and for cooled tablets."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from balancer.policies.keyspace.hash_leaves import Leaf, descendants
from balancer.policies.options import BalancerOptions, BundleOptions, GroupOptions, HeatOptions, Placement, TableOptions
from balancer.policies.plan.plan import make_plan
from balancer.policies.resize.heat import hot_tablets, plan_heat
from balancer.policies.resize.scope import Cooling
from balancer.policies.resize.sizes import plan_sizes
from balancer.policies.view import (
    Action,
    ActionKind,
    BundleView,
    InFlight,
    KeySamples,
    NodeCondition,
    NodeView,
    Part,
    SampleSource,
    TabletHistory,
)
from tests.support.bundle_views import NOW, Tablets, bundle_of, leaves
from tests.support.samples import encoded, positions, samples

pytestmark = pytest.mark.quick

CONFIRMED = TabletHistory(hot_polls=3)
GB = 1 << 30
LOW = HeatOptions(min_rows_per_second=10.0)


def _options(heat: HeatOptions | None = None, balancer: BalancerOptions | None = None, **table: Any) -> BundleOptions:
    return BundleOptions(
        balancer=balancer or BalancerOptions(), heat=heat or HeatOptions(), tables={"t": TableOptions(**table)}
    )


def _hot_view(found: KeySamples | None = None, **fields: Any) -> BundleView:
    """Ten tablets of 100 keys each on two nodes; the third has half of its node's load."""
    writes = [200.0] * 10
    writes[2] = 800.0
    given = {"history": {3: CONFIRMED}, "samples": {3: found or samples(range(200, 300))}, **fields}
    return bundle_of({"t": Tablets([GB] * 10, writes=writes, nodes=[0] * 5 + [1] * 5)}, **given)


def _one(view: BundleView, options: BundleOptions | None = None) -> Action:
    actions, rejections = plan_heat(view, options or _options())
    assert not rejections
    assert len(actions) == 1
    return actions[0]


def _codes(view: BundleView, options: BundleOptions | None = None) -> list[tuple[tuple[int, ...], str]]:
    actions, rejections = plan_heat(view, options or _options())
    assert not actions
    return [(rejection.tablets, rejection.code) for rejection in rejections]


def test_a_tablet_with_more_than_a_fifth_of_its_node_is_hot() -> None:
    assert list(hot_tablets(_hot_view(), HeatOptions())) == [3]
    assert "50 % of its node's load, the limit is 20 %" in hot_tablets(_hot_view(), HeatOptions())[3]


def test_five_equal_tablets_are_not_hot() -> None:
    view = bundle_of({"t": Tablets([GB] * 5, writes=333.3)}, ("a",))
    assert not hot_tablets(view, HeatOptions())


def test_samples_that_are_hardly_believed_split_nothing() -> None:
    poor = replace(samples(range(200, 300)), source=SampleSource.STATISTICS, confidence=0.3)
    assert _codes(_hot_view(poor)) == [((3,), "heat-confidence")]
    assert "27 %" in plan_heat(_hot_view(poor), _options()).rejections[0].reason
    assert _one(_hot_view(poor), _options(HeatOptions(min_confidence=0.2))).code == "heat-split"


def test_long_scans_are_named_and_split_nothing() -> None:
    view = bundle_of({"t": Tablets([GB] * 2, writes=(10, 10))}, ("a",), history={1: CONFIRMED})
    view = replace(view, tablets=replace(view.tablets, scan_rate=np.array([5000.0, 0.0])))
    assert not hot_tablets(view, HeatOptions())
    assert _codes(view) == [((1,), "heat-long-scan")]


def test_an_idle_cluster_has_no_hot_tablets() -> None:
    view = bundle_of({"t": Tablets([GB] * 2, writes=(99, 1))}, ("a",))
    assert not hot_tablets(view, HeatOptions())


def test_reads_count_like_writes() -> None:
    view = bundle_of({"t": Tablets([GB] * 2, writes=60, reads=(60, 0))}, ("a",))
    assert list(hot_tablets(view, HeatOptions())) == [1]


def test_an_absolute_limit_counts_whatever_the_share() -> None:
    view = bundle_of({"t": Tablets([GB] * 10, writes=[500.0] * 9 + [501.0])}, ("a",))
    found = hot_tablets(view, HeatOptions(max_rows_per_second=500.0))
    assert found == {10: "501 rows/s, the limit is 500 rows/s"}


def test_a_hot_tablet_is_cut_into_as_many_parts_as_its_load_asks_for_and_each_has_its_node() -> None:
    """Node a has 1,600 rows/s and b 1,000: five parts of 160, of which two make them even."""
    action = _one(_hot_view())
    assert (action.kind, action.tablets, action.count, action.code) == (ActionKind.SPLIT, (3,), 5, "heat-split")
    nodes = ("b", "b", "", "", "")
    assert action.parts == tuple(Part(low, node=node) for low, node in zip(_lowers(), nodes, strict=True))
    assert (action.source, action.target, action.size) == ("a", "a", float(GB))
    for figure in ("800 rows/s", "50 % of its node's load", "split at key", "5 parts of 20 %", "100 client samples"):
        assert figure in action.reason
    assert action.reason.endswith("; parts go to b (2)")


def _lowers() -> tuple[bytes, ...]:
    return encoded(200, 220, 240, 260, 280)


def test_a_tablet_that_is_barely_hot_becomes_two() -> None:
    writes = [200.0] * 10
    writes[2] = 350.0
    view = bundle_of(
        {"t": Tablets([GB] * 10, writes=writes, nodes=[0] * 5 + [1] * 5)},
        history={3: CONFIRMED},
        samples={3: samples(range(200, 300))},
    )
    action = _one(view, _options(HeatOptions(max_node_share=0.25)))
    assert [part.lower for part in action.parts] == [*encoded(200, 250)]
    assert "50 % of the load is before 250" in action.reason


@pytest.mark.parametrize(
    "table", [{"enable_auto_tablet_move": False}, {"placement": Placement.RING}, {"zones": ("east",)}]
)
def test_parts_stay_where_no_node_may_be_chosen(table: dict[str, Any]) -> None:
    assert [part.node for part in _one(_hot_view(), _options(**table)).parts] == [""] * 5


@pytest.mark.parametrize(
    "full",
    [
        NodeView("b", NodeCondition.CLOSED),
        NodeView("b", disk_capacity=100.0 * GB, disk_used=84.9 * GB),
        NodeView("b", weight=0.0),
    ],
)
def test_parts_go_to_no_node_that_is_closed_or_full(full: NodeView) -> None:
    assert [part.node for part in _one(replace(_hot_view(), nodes=(NodeView("a"), full))).parts] == [""] * 5
    roomy = NodeView("b", disk_capacity=100.0 * GB, disk_used=84.0 * GB)
    assert [part.node for part in _one(replace(_hot_view(), nodes=(NodeView("a"), roomy))).parts].count("b") == 2


def test_parts_of_in_memory_tables_fill_no_memory_beyond_the_safe_share() -> None:
    view = _hot_view()
    view = replace(view, tablets=replace(view.tablets, memory=view.tablets.sizes))
    for memory, moved in ((5.4, 1), (5.2, 0), (5.6, 2)):
        found = replace(view, nodes=(NodeView("a"), NodeView("b", memory=memory * GB)))
        assert [part.node for part in _one(found).parts].count("b") == moved


def test_the_parts_of_several_tablets_are_shared_out_over_the_nodes() -> None:
    """Two hot tablets on a; b and c do nothing: neither gets all parts of both."""
    view = bundle_of(
        {"t": Tablets([GB] * 2, writes=(1000, 1000))},
        ("a", "b", "c"),
        history={1: CONFIRMED, 2: CONFIRMED},
        samples={1: samples(range(100)), 2: samples(range(100, 200))},
    )
    actions, _ = plan_heat(view, _options())
    nodes = [part.node for action in actions for part in action.parts]
    assert (nodes.count("b"), nodes.count("c")) == (7, 6)


def test_what_is_on_its_way_to_a_node_counts_as_arrived() -> None:
    flying = (InFlight("m1", (1,), "a", "b"), InFlight("m2", (2,), "a", "b"))
    assert [part.node for part in _one(_hot_view(in_flight=flying)).parts] == [""] * 5


def test_the_growing_end_that_no_placement_helps_says_what_would() -> None:
    lately = {3: TabletHistory(hot_polls=3, split_for_heat_at=NOW - 60)}
    (rejection,) = plan_heat(_front_view(history=lately), _options()).rejections
    assert "with 800 rows/s it is 2.8 times a node's share wherever it lies" in rejection.reason
    assert "a hash as its prefix" in rejection.reason
    busy = bundle_of(
        {
            "t": Tablets([GB] * 3, writes=(10, 50, 800), nodes=(0, 1, 0)),
            "u": Tablets([GB] * 2, writes=900, nodes=(1, 2)),
        },
        ("a", "b", "c"),
        history=lately,
        samples={3: samples(range(9_950, 10_150), row_keys=encoded(*range(200, 10_000, 100)))},
    )
    reasons = [one.reason for one in plan_heat(busy, _options()).rejections if one.tablets == (3,)]
    assert "of its own already" in reasons[0]
    assert "no placement" not in reasons[0]


def test_a_trigger_must_hold_for_several_polls() -> None:
    assert _codes(_hot_view(history={3: TabletHistory(hot_polls=2)})) == [((3,), "heat-unconfirmed")]
    assert _codes(_hot_view(history={})) == [((3,), "heat-unconfirmed")]


def test_a_hot_key_gets_a_tablet_of_its_own() -> None:
    action = _one(_hot_view(samples([*range(200, 300), *[242] * 60])))
    assert action.code == "heat-key"
    assert [part.lower for part in action.parts] == [*encoded(200, 242, 243)]


def test_a_hot_key_that_is_alone_is_named() -> None:
    lowers = [b"", *encoded(100, 101)]
    view = bundle_of(
        {"t": Tablets([GB] * 3, writes=(0, 500, 0), lowers=lowers)},
        ("a",),
        history={2: CONFIRMED},
        samples={2: samples([100] * 200)},
    )
    actions, rejections = plan_heat(view, _options())
    assert not actions
    assert [one.code for one in rejections] == ["heat-key"]
    assert "key 100 has 100 % of the load" in rejections[0].reason


def _front_view(**fields: Any) -> BundleView:
    """The last tablet of three grows; node c does nothing."""
    rows = encoded(*range(200, 10_000, 100))
    found = samples(range(9_950, 10_150), row_keys=rows)
    given = {"history": {3: CONFIRMED}, "samples": {3: found}, **fields}
    return bundle_of({"t": Tablets([GB] * 3, writes=(10, 50, 800), nodes=(0, 1, 0))}, ("a", "b", "c"), **given)


def test_the_growing_end_gets_a_tablet_on_the_coolest_node() -> None:
    action = _one(_front_view())
    assert action.code == "heat-front"
    assert action.parts == (Part(encoded(200)[0]), Part(encoded(9950)[0], node="c"))


@pytest.mark.parametrize(
    "table", [{"enable_auto_tablet_move": False}, {"placement": Placement.RING}, {"zones": ("east",)}]
)
def test_the_growing_end_stays_where_a_node_may_not_be_chosen(table: dict[str, Any]) -> None:
    assert [part.node for part in _one(_front_view(), _options(**table)).parts] == ["", ""]


def test_the_coolest_node_is_judged_by_its_weight_and_must_be_active() -> None:
    nodes = (NodeView("a"), NodeView("b", weight=10.0), NodeView("c", NodeCondition.CLOSED))
    view = replace(_front_view(), nodes=nodes)
    assert _one(view).parts[-1].node == "b"


def test_a_front_is_not_cut_off_again_and_again() -> None:
    lately = {3: TabletHistory(hot_polls=3, split_for_heat_at=NOW - 60)}
    assert _codes(_front_view(history=lately)) == [((3,), "heat-front")]


def _old_front_view(written: range, loads: tuple[int, int, int] = (10, 50, 800), others: int = 0) -> BundleView:
    """The end was given a tablet from 200 on two hours ago; its rows reach to 10,000, and these keys are written."""
    found = samples(written, row_keys=encoded(*range(200, 10_000, 100)))
    cut = {3: TabletHistory(hot_polls=3, split_for_heat_at=NOW - 7200)}
    tables = {
        "t": Tablets([GB] * 3, writes=loads, nodes=(0, 1, 0)),
        "u": Tablets([GB] * 2, writes=others, nodes=(1, 2)),
    }
    return bundle_of(tables, ("a", "b", "c"), history=cut, samples={3: found})


def test_an_old_front_is_known_by_writes_that_are_a_fifth_of_its_young_tablet() -> None:
    """Cut in the middle of what is being written, it would leave tablets behind that nobody writes to any more."""
    action = _one(_old_front_view(range(8_000, 10_000, 10)))
    assert (action.code, [part.node for part in action.parts]) == ("heat-front", ["", "c"])


def test_an_end_that_heat_has_split_and_that_is_written_everywhere_is_cut_like_any_other() -> None:
    assert _one(_old_front_view(range(200, 10_000, 49))).code == "heat-split"


def test_an_old_front_is_not_cut_where_it_would_stay() -> None:
    view = _old_front_view(range(8_000, 10_000, 10), others=900)
    assert [code for tablets, code in _codes(view) if tablets == (3,)] == ["heat-front"]


def test_the_growing_end_is_not_sent_to_a_node_that_would_do_more_with_it_than_its_own_does() -> None:
    """Else it comes back, or others leave that node for its sake."""
    view = replace(_old_front_view(range(9_950, 10_150), others=700), history={3: CONFIRMED})
    (action,) = plan_heat(view, _options()).actions
    assert (action.code, [part.node for part in action.parts]) == ("heat-front", ["", ""])


def test_too_few_samples_are_said() -> None:
    assert _codes(_hot_view(samples(range(200, 210)))) == [((3,), "heat-samples")]
    assert _codes(replace(_hot_view(), samples={})) == [((3,), "heat-samples")]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"pinned": frozenset({3})}, "pinned"),
        ({"quarantined": frozenset({3})}, "quarantined"),
        ({"in_flight": (InFlight("m1", (3,), "a", "b"),)}, "in-flight"),
    ],
)
def test_tablets_that_are_spoken_for_are_left(fields: dict[str, Any], code: str) -> None:
    assert _codes(_hot_view(**fields)) == [((3,), code)]


def test_a_tablet_that_is_hot_after_a_split_waits_for_no_clock_but_what_is_joined_rests() -> None:
    just = TabletHistory(hot_polls=3, last_migrated=NOW - 1, split_for_heat_at=NOW - 1)
    plan = make_plan(_hot_view(history={3: just}), _options())
    assert [action.code for action in plan.actions] == ["heat-split"]
    rested, moved = (TabletHistory(last_migrated=NOW - age, split_for_heat_at=NOW - 3600) for age in (601, 599))
    for history, done in ((rested, ["heat-merge"]), (moved, [])):
        plan = make_plan(_cooled_view(history={2: history, 3: rested}), _options())
        assert [action.code for action in plan.actions] == done


def test_switches_are_honoured() -> None:
    assert _codes(_hot_view(), _options(enable_auto_reshard=False)) == [((3,), "table-off")]
    off = HeatOptions(enable=False)
    assert plan_heat(_hot_view(), _options(off)) == ((), ())
    assert not hot_tablets(_hot_view(), off)


def test_heat_acts_while_the_schedules_of_groups_are_closed() -> None:
    closed = BalancerOptions(groups={"default": GroupOptions(enable_reshard=False, enable_move=False)})
    assert _one(_hot_view(), _options(balancer=closed)).code == "heat-split"


def _hash_view(shares: list[float]) -> BundleView:
    shape = leaves(8)
    writes = [100.0] * 8
    writes[2] = 900.0
    found = {3: positions(shape[2], shares)}
    return bundle_of({"t": Tablets([GB] * 8, shape, writes=writes)}, ("a",), history={3: CONFIRMED}, samples=found)


def test_a_hot_vbucket_becomes_as_many_leaves_as_its_load_asks_for() -> None:
    """900 of its node's 1,600 rows/s: a quarter of it is not hot any more."""
    action = _one(_hash_view([]))
    assert (action.code, tuple(part.leaf for part in action.parts)) == ("heat-split", descendants(leaves(8)[2], 4))


def test_a_vbucket_with_one_hot_key_alone_is_named() -> None:
    assert _codes(_hash_view([0.95])) == [((3,), "heat-key")]


def _cooled_view(**fields: Any) -> BundleView:
    hour_ago = TabletHistory(split_for_heat_at=NOW - 3600)
    given = {"history": {2: hour_ago, 3: hour_ago}, **fields}
    return bundle_of({"t": Tablets([10 * GB, GB, GB, 10 * GB], nodes=given.pop("placed", 0))}, ("a", "b"), **given)


def test_two_tablets_that_heat_had_split_are_joined_when_they_have_cooled_for_an_hour() -> None:
    action = _one(_cooled_view())
    assert (action.kind, action.tablets, action.count, action.code) == (ActionKind.MERGE, (2, 3), 1, "heat-merge")
    assert action.parts == (Part(encoded(100)[0]),)


def test_vbuckets_that_heat_had_split_become_their_parent() -> None:
    hour_ago = TabletHistory(split_for_heat_at=NOW - 7200)
    shape = [Leaf(2, 0), Leaf(4, 1), Leaf(4, 3)]
    view = bundle_of({"t": Tablets([GB] * 3, shape)}, ("a",), history={2: hour_ago, 3: hour_ago})
    assert [part.leaf for part in _one(view).parts] == [Leaf(2, 1)]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"now": NOW - 1}, "too-warm"),
        ({"placed": (0, 0, 1, 0)}, "apart"),
        ({"pinned": frozenset({3})}, "pinned"),
    ],
)
def test_cooled_tablets_stay_apart_with_a_reason(fields: dict[str, Any], code: str) -> None:
    assert _codes(_cooled_view(**fields)) == [((2, 3), code)]


def test_a_cooled_tablet_that_cannot_be_joined_to_the_left_is_joined_to_the_right() -> None:
    hour_ago = TabletHistory(split_for_heat_at=NOW - 3600)
    warm = replace(hour_ago, max_rate_5m=80.0)
    view = bundle_of({"t": Tablets([GB] * 3)}, ("a",), history={1: warm, 2: hour_ago, 3: hour_ago})
    actions, rejections = plan_heat(view, _options())
    assert [action.tablets for action in actions] == [(2, 3)]
    assert [(one.tablets, one.code) for one in rejections] == [((1, 2), "too-warm")]


def test_tablets_that_were_busy_in_the_last_five_minutes_stay_apart() -> None:
    split = TabletHistory(split_for_heat_at=NOW - 9999)
    busy = replace(split, max_rate_5m=60.0)
    assert _codes(_cooled_view(history={2: split, 3: busy})) == [((2, 3), "too-warm")]


@settings(max_examples=100, deadline=None)
@given(
    loads=st.lists(st.floats(0.0, 600.0), min_size=8, max_size=8),
    places=st.lists(st.integers(0, 2), min_size=8, max_size=8),
)
@example(loads=[90.0, 90.0, 700.0, 100.0, 20.0, 0.0, 0.0, 0.0], places=[0, 0, 0, 0, 1, 1, 2, 2])
def test_what_is_joined_is_not_hot_on_any_node(loads: list[float], places: list[int]) -> None:
    """Whatever is joined because it has cooled stays below the threshold, wherever balancing carries it."""
    old = {tablet: TabletHistory(split_for_heat_at=NOW - 7200) for tablet in range(1, 9)}
    view = bundle_of({"t": Tablets([1.0] * 8, writes=loads, nodes=places)}, ("a", "b", "c"), history=old)
    limit = Cooling(view, LOW).even_threshold
    sizes = plan_sizes(view, _options(heat=LOW)).actions
    for action in (*sizes, *plan_heat(view, _options(heat=LOW)).actions):
        if action.kind is ActionKind.MERGE:
            assert sum(loads[tablet - 1] for tablet in action.tablets) < limit


def test_cooled_tablets_that_are_large_together_stay_apart() -> None:
    options = _options(min_tablet_size=GB // 2, desired_tablet_size=GB, max_tablet_size=2 * GB - 1)
    assert _codes(_cooled_view(), options) == [((2, 3), "merged-too-large")]


def test_cooled_tablets_are_joined_up_to_the_desired_size_only() -> None:
    """Joined up to the most that a tablet may have, they would be split again by their size after a few minutes."""
    hour_ago = TabletHistory(split_for_heat_at=NOW - 3600)
    past = {2: hour_ago, 3: hour_ago}
    large, small = (
        bundle_of({"t": Tablets([10 * GB, each, each, 10 * GB])}, ("a",), history=past) for each in (6 * GB, 4 * GB)
    )
    assert _codes(large) == [((2, 3), "merged-too-large")]
    assert _one(small).tablets == (2, 3)


def test_min_tablet_count_keeps_cooled_tablets_apart() -> None:
    assert _codes(_cooled_view(), _options(min_tablet_count=4)) == [((2, 3), "min-tablet-count")]


def test_sizes_do_not_undo_what_heat_has_done() -> None:
    lately = TabletHistory(split_for_heat_at=NOW - 60)
    view = bundle_of({"t": Tablets([100, 100])}, ("a",), history={1: lately, 2: lately})
    actions, rejections = plan_sizes(view, BundleOptions())
    assert not actions
    assert [one.code for one in rejections] == ["too-warm"]


def test_sizes_do_not_undo_what_heat_has_done_while_its_schedule_is_closed() -> None:
    lately = TabletHistory(split_for_heat_at=NOW - 60)
    view = bundle_of({"t": Tablets([100, 100])}, ("a",), history={1: lately, 2: lately})
    assert [one.code for one in plan_sizes(view, _options(HeatOptions(enable=False))).rejections] == ["too-warm"]


def test_without_heat_a_load_does_not_keep_small_tablets_apart() -> None:
    view = bundle_of({"t": Tablets([100, 100], writes=1000)}, ("a",), history={1: TabletHistory(max_rate_5m=1000.0)})
    assert [one.code for one in plan_sizes(view, _options()).rejections] == ["too-warm"]
    assert len(plan_sizes(view, _options(HeatOptions(enable=False))).actions) == 1
