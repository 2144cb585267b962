"""Splits and merges by load, for tables with `desired_tablet_metric`."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.options import GB, BalancerOptions, BundleOptions, GroupOptions, HeatOptions, TableOptions
from balancer.policies.plan.plan import make_plan, reshape
from balancer.policies.resize.sizes import Proposals, plan_sizes
from balancer.policies.view import ActionKind
from tests.support.bundle_views import Tablets, bundle_of, leaves
from tests.support.outcomes import after

pytestmark = pytest.mark.quick

QUIET = HeatOptions(enable=False)


def _options(**table: Any) -> BundleOptions:
    return BundleOptions(tables={"t": TableOptions(**{"desired_tablet_metric": 100.0, **table})}, heat=QUIET)


def _plan(sizes: list[float], loads: list[float], shape: list[Leaf] | None = None, **table: Any) -> Proposals:
    view = bundle_of({"t": Tablets(sizes, shape)}, ("a",))
    return plan_sizes(view, _options(**table), {"t": np.array(loads)})


def _shapes(proposals: Proposals) -> list[tuple[ActionKind, tuple[int, ...], int]]:
    return [(action.kind, action.tablets, action.count) for action in proposals.actions]


def test_tablets_within_the_factor_of_both_are_left_alone() -> None:
    assert _plan([1000, 1000], [60, 140]) == Proposals((), ())


def test_a_tablet_over_its_load_is_split_into_the_larger_of_the_two_rounded_up() -> None:
    proposals = _plan([1000, 1000, 1000], [250, 80, 80])
    assert _shapes(proposals) == [(ActionKind.SPLIT, (1,), 3)]
    assert proposals.actions[0].code == "split-load"
    assert "250" in proposals.actions[0].reason


def test_a_tablet_over_its_size_is_split_too() -> None:
    # 3 tablets of 100 share 4000 bytes: 1333 are desired, and 2600 are over 1.9 times that
    assert _shapes(_plan([2600, 700, 700], [100, 100, 100])) == [(ActionKind.SPLIT, (1,), 2)]


def test_without_any_load_a_desired_number_of_tablets_divides_the_bytes() -> None:
    """The large one is split; it was replaced together with the small one, as tables without a metric are."""
    proposals = _plan([GB, 200 * GB], [0, 0], desired_tablet_metric=None, desired_tablet_count=2)
    assert _shapes(proposals) == [(ActionKind.SPLIT, (2,), 2)]
    assert _plan([100 * GB, 101 * GB], [0, 0], desired_tablet_metric=None, desired_tablet_count=2) == Proposals((), ())


def test_an_empty_tablet_is_never_split() -> None:
    actions, rejections = _plan([0, 1000, 1000], [500, 100, 100])
    assert all(action.tablets != (1,) for action in actions)
    assert ((1,), "empty") in [(one.tablets, one.code) for one in rejections]


def test_tablets_under_their_load_are_joined_left_first_while_the_sum_fits() -> None:
    merged = _shapes(_plan([1000, 400, 400, 1000], [100, 40, 40, 100]))
    assert merged == [(ActionKind.MERGE, (1, 2), 1), (ActionKind.MERGE, (3, 4), 1)]


def test_a_sum_over_either_bound_is_not_made() -> None:
    actions, rejections = _plan([1000, 1000], [180, 20])
    assert not actions
    assert [(one.tablets, one.code) for one in rejections] == [((2,), "no-neighbour")]


def test_merges_come_first_the_longest_before_the_others_then_splits() -> None:
    loads = [20.0, 20, 20, 20, 150, 300, 150, 45, 45, 150, 400, 150]
    kinds = _shapes(_plan([load * 10 for load in loads], loads))
    assert [kind for kind, _, _ in kinds] == [ActionKind.MERGE, ActionKind.MERGE, ActionKind.SPLIT, ActionKind.SPLIT]
    assert [len(tablets) for kind, tablets, _ in kinds if kind is ActionKind.MERGE] == [4, 2]
    assert [count for kind, _, count in kinds if kind is ActionKind.SPLIT] == [4, 3]


def test_min_tablet_count_stops_merges_by_load() -> None:
    assert not _plan([100, 100], [10, 10], min_tablet_count=2).actions


def test_vbuckets_are_split_and_merged_along_the_trie() -> None:
    proposals = _plan([1000.0] * 4, [10, 10, 10, 390], leaves(4))
    assert [action.tablets for action in proposals.actions] == [(4,)]
    assert [part.leaf for part in proposals.actions[0].parts] == [Leaf(16, 3), Leaf(16, 11), Leaf(16, 7), Leaf(16, 15)]
    merged = _plan([400.0, 400, 1000, 1000], [40, 40, 100, 100], leaves(4))
    assert [(action.tablets, action.parts[0].leaf) for action in merged.actions] == [((1, 2), Leaf(2, 0))]


def test_without_a_metric_the_rows_per_second_count() -> None:
    view = bundle_of({"t": Tablets([1000, 1000], writes=(150, 50), reads=(100, 50))}, ("a",))
    assert _shapes(plan_sizes(view, _options())) == [(ActionKind.SPLIT, (1,), 3)]


def test_a_table_without_load_is_planned_by_size() -> None:
    assert _shapes(_plan([1, 1], [0, 0])) == [(ActionKind.MERGE, (1, 2), 1)]


def test_desired_tablet_count_comes_before_the_metric() -> None:
    view = bundle_of({"t": Tablets([1 << 30, 1 << 30], writes=[500.0, 1.0])}, ("a",))
    assert plan_sizes(view, _options()).actions
    assert not plan_sizes(view, _options(desired_tablet_count=2)).actions


def test_blocked_tablets_and_switches_count_here_too() -> None:
    view = bundle_of({"t": Tablets([1000, 1000], writes=(500, 100))}, ("a",), pinned=frozenset({1}))
    assert [one.code for one in plan_sizes(view, _options()).rejections] == ["pinned"]
    assert [one.code for one in plan_sizes(view, _options(enable_auto_reshard=False)).rejections] == ["table-off"]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(0, 1e4)), min_size=1, max_size=30), st.booleans())
def test_plans_settle(tablets: list[tuple[float, float]], hashed: bool) -> None:
    count = 1 << len(tablets).bit_length() - 1
    chosen = tablets[:count] if hashed else tablets
    shape = leaves(count) if hashed else None
    view = bundle_of({"t": Tablets([size for size, _ in chosen], shape, writes=[load for _, load in chosen])}, ("a",))
    for _ in range(40):
        actions, _ = plan_sizes(view, _options())
        if not actions:
            break
        view = after(view, actions)
    assert not plan_sizes(view, _options()).actions


def _by_count(metrics: list[float], sizes: list[float], count: int, *, reshard: bool = True, **table: Any) -> Any:
    """The shapes that a whole plan gives to table t, whose group is measured by what it writes."""
    options = BundleOptions(
        balancer=BalancerOptions(groups={"g": GroupOptions(metric="write_rate", reshard_by_metric=reshard)}),
        tables={"t": TableOptions(desired_tablet_count=count, group="g", **table)},
        heat=QUIET,
    )
    view = bundle_of({"t": Tablets(sizes, writes=metrics)}, ("a",))
    return [(action.kind, action.tablets, action.count) for action in reshape(view, options)[0]]


def test_a_desired_count_and_a_metric_split_what_carries_too_much() -> None:
    assert _by_count([1, 200], [GB, GB], 2) == [(ActionKind.SPLIT, (2,), 2)]
    assert not _by_count([1, 200], [GB, GB], 2, reshard=False)
    assert not _by_count([1, 200], [GB, GB], 2, enable_parameterized=False)


def test_a_desired_count_and_a_metric_make_one_of_many_or_many_of_one() -> None:
    found = _by_count([100, 1, 1, 1, 100, 200], [GB] * 6, 4)
    merges = [(ActionKind.MERGE, (1, 2), 1), (ActionKind.MERGE, (3, 4), 1)]
    assert found == [*merges, (ActionKind.SPLIT, (6,), 2)]


def test_an_idle_table_keeps_tablets_within_its_sizes() -> None:
    """By the metric alone one tablet would do for all forty gigabytes."""
    merged = _plan([9.0 * GB, 9.0 * GB, 11.0 * GB, 11.0 * GB], [0.1, 0.1, 0.1, 0.1])
    assert _shapes(merged) == [(ActionKind.MERGE, (1, 2), 1)]
    assert not _plan([11.0 * GB] * 4, [0.1] * 4).actions


def test_a_quiet_table_is_still_split_by_its_size() -> None:
    assert _shapes(_plan([21.0 * GB, 9.0 * GB], [0.1, 0.1])) == [(ActionKind.SPLIT, (1,), 3)]


def test_a_metric_is_asked_of_its_own_tables_only() -> None:
    """It is negative for a table of another group, and for one that stays out of it: that is nobody's business."""
    view = bundle_of(
        {"t": Tablets([GB, GB], writes=[90, 1]), "other": Tablets([GB], writes=500), "out": Tablets([GB], writes=500)},
        ("a", "b"),
    )
    group = GroupOptions(metric="100 - write_rate", reshard_by_metric=True)
    options = BundleOptions(
        balancer=BalancerOptions(groups={"g": group}),
        tables={
            "t": TableOptions(desired_tablet_count=2, group="g"),
            "out": TableOptions(group="g", enable_parameterized=False),
        },
        heat=QUIET,
    )
    plan = make_plan(view, options)
    assert "broken-metric" not in plan.counts
    assert [action.kind for action in plan.actions if action.table == "t"] == [ActionKind.MOVE]


def test_a_metric_that_is_negative_keeps_its_group_back_and_is_said() -> None:
    view = bundle_of({"t": Tablets([GB, 20 * GB], writes=[1, 200]), "other": Tablets([40 * GB])}, ("a",))
    options = BundleOptions(
        balancer=BalancerOptions(groups={"g": GroupOptions(metric="100 - write_rate", reshard_by_metric=True)}),
        tables={"t": TableOptions(desired_tablet_count=2, group="g")},
        heat=QUIET,
    )
    plan = make_plan(view, options)
    assert [action.table for action in plan.actions] == ["other"]
    broken = [one.reason for one in plan.rejections if one.code == "broken-metric"]
    why = "the metric '100 - write_rate' is -100 for tablet 2: it must be zero or more"
    assert broken == [f"group g is neither moved nor split: {why}"]
