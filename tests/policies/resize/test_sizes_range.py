"""Splits and merges of range tables by size."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.policies.options import BalancerOptions, BundleOptions, GroupOptions, Placement, TableOptions
from balancer.policies.resize.by_layout import merge_shares
from balancer.policies.resize.scope import MOST_AT_ONCE
from balancer.policies.resize.sizes import Proposals, plan_sizes
from balancer.policies.view import Action, ActionKind, InFlight, NodeCondition, NodeView
from tests.support.bundle_views import Tablets, bundle_of
from tests.support.outcomes import after

pytestmark = pytest.mark.quick

SMALL = BalancerOptions(min_tablet_size=50, desired_tablet_size=100, max_tablet_size=200, min_desired_tablet_size=0)


def _options(balancer: BalancerOptions = SMALL, **table: Any) -> BundleOptions:
    return BundleOptions(balancer=balancer, tables={"t": TableOptions(**table)})


def _plan(*sizes: int, options: BundleOptions | None = None, **fields: Any) -> Proposals:
    return plan_sizes(bundle_of({"t": Tablets(sizes)}, ("a",), **fields), options or _options())


def _shapes(actions: tuple[Action, ...]) -> list[tuple[ActionKind, tuple[int, ...], int]]:
    return [(action.kind, action.tablets, action.count) for action in actions]


def test_tablets_inside_the_bounds_are_left_alone() -> None:
    assert _plan(50, 200, 100) == Proposals((), ())


def test_a_large_tablet_is_split_into_the_rounded_number() -> None:
    actions, _ = _plan(100, 349, 100)
    assert _shapes(actions) == [(ActionKind.SPLIT, (2,), 3)]
    assert actions[0].code == "split-size"
    assert (actions[0].source, actions[0].size) == ("a", 349.0)
    assert "349 B" in actions[0].reason
    assert "over 200 B" in actions[0].reason
    assert _shapes(_plan(350)[0]) == [(ActionKind.SPLIT, (1,), 4)]


def test_a_small_tablet_joins_its_left_neighbour_first() -> None:
    assert _shapes(_plan(100, 10, 100)[0]) == [(ActionKind.MERGE, (1, 2), 1)]


def test_the_first_tablet_joins_the_right_one() -> None:
    assert _shapes(_plan(10, 100)[0]) == [(ActionKind.MERGE, (1, 2), 1)]


def test_a_range_grows_left_then_right_until_it_is_good() -> None:
    assert _shapes(_plan(20, 10, 10, 10, 100)[0]) == [(ActionKind.MERGE, (1, 2, 3, 4), 1)]


def test_many_may_become_many() -> None:
    actions, _ = _plan(140, 40)
    assert _shapes(actions) == [(ActionKind.RESHARD, (1, 2), 2)]
    assert actions[0].code == "reshard-size"


def test_all_tiny_tablets_of_a_table_become_one_although_it_is_small() -> None:
    assert _shapes(_plan(1, 1, 1)[0]) == [(ActionKind.MERGE, (1, 2, 3), 1)]


def test_the_only_tablet_may_be_small() -> None:
    assert _plan(1) == Proposals((), ())


def test_an_empty_bundle_has_nothing_to_do() -> None:
    assert plan_sizes(bundle_of({}), _options()) == Proposals((), ())


def test_a_tablet_that_no_number_of_parts_brings_inside_is_left_with_the_reason() -> None:
    narrow = BalancerOptions(
        min_tablet_size=90, desired_tablet_size=100, max_tablet_size=110, min_desired_tablet_size=0
    )
    actions, rejections = _plan(140, options=_options(narrow))
    assert not actions
    assert rejections[0].code == "no-good-count"


def test_equal_tablets_that_cannot_be_good_are_not_cut_over_and_over() -> None:
    narrow = BalancerOptions(140, 150, 160, min_desired_tablet_size=0)
    actions, rejections = _plan(125, 125, options=_options(narrow))
    assert not actions
    assert [(one.code, one.tablets) for one in rejections] == [("no-good-count", (1, 2))]


def test_a_table_never_reaches_ten_thousand_tablets() -> None:
    sizes = [100] * 9996 + [500]
    actions, rejections = _plan(*sizes)
    assert not actions
    assert rejections[0].code == "tablet-limit"
    assert _shapes(_plan(*sizes[2:])[0]) == [(ActionKind.SPLIT, (9995,), 5)]


def test_splits_of_one_plan_count_together_towards_the_limit() -> None:
    actions, rejections = _plan(*([100] * 9992), 500, 500)
    assert len(actions) == 1
    assert [one.code for one in rejections] == ["tablet-limit"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"pinned": frozenset({2})}, "pinned"),
        ({"quarantined": frozenset({2})}, "quarantined"),
        ({"in_flight": (InFlight("m7", (2,), "a", "b"),)}, "in-flight"),
    ],
)
def test_tablets_in_another_state_are_neither_cut_nor_drawn_in(fields: dict[str, Any], code: str) -> None:
    actions, rejections = _plan(100, 500, **fields)
    assert not actions
    assert [(one.tablets, one.code) for one in rejections] == [((2,), code)]
    assert _shapes(_plan(100, 100, 10, 100, **fields)[0]) == [(ActionKind.MERGE, (3, 4), 1)]


def test_tablets_of_a_node_that_is_down_wait() -> None:
    view = bundle_of({"t": Tablets((500,))}, (NodeView("a", NodeCondition.DOWN),))
    assert [one.code for one in plan_sizes(view, _options()).rejections] == ["source-down"]


OFF = {
    "size-balancer-off": BundleOptions(balancer=BalancerOptions(enable_tablet_size_balancer=False)),
    "table-off": BundleOptions(tables={"t": TableOptions(enable_auto_reshard=False)}),
    "group-off": BundleOptions(
        balancer=BalancerOptions(groups={"cold": GroupOptions(enable_reshard=False)}),
        tables={"t": TableOptions(group="cold")},
    ),
}


@pytest.mark.parametrize("code", OFF)
def test_a_switch_that_is_off_is_named_once(code: str) -> None:
    actions, rejections = _plan(1, 1, 1, options=OFF[code])
    assert not actions
    assert [(one.code, one.tablets) for one in rejections] == [(code, (1, 2, 3))]
    assert "enable_" in rejections[0].reason


def test_a_switch_that_is_off_is_not_mentioned_where_nothing_is_wrong() -> None:
    assert _plan(1 << 30, options=OFF["table-off"]) == Proposals((), ())


def test_min_tablet_count_stops_merges() -> None:
    actions, rejections = _plan(1, 10, 19, options=_options(min_tablet_count=3))
    assert not actions
    assert {one.code for one in rejections} == {"min-tablet-count"}


def test_min_tablet_count_does_not_stop_splits() -> None:
    options = _options(min_tablet_count=2)
    assert _shapes(_plan(100, 900, options=options)[0]) == [(ActionKind.SPLIT, (2,), 9)]


def test_allowed_merges_are_spread_evenly_and_to_the_right() -> None:
    rows = list(range(10, 16))
    assert merge_shares(rows, 6, 5) == {15: 1}
    assert merge_shares(rows, 6, 4) == {15: 1, 12: 1}
    assert merge_shares(rows, 6, 3) == {15: 1, 13: 1, 11: 1}
    assert merge_shares(rows, 100, 1) == dict.fromkeys(rows, 1)
    assert merge_shares(rows, 6, 6) == {}
    assert merge_shares(rows, 6, 0) is None


def test_each_absorbed_neighbour_is_paid_from_either_share() -> None:
    options = _options(BalancerOptions(90, 100, 1000, min_desired_tablet_size=0), min_tablet_count=5)
    sizes = (10, 10, 400, 10, 400, 10, 400)  # two merges: the shares lie on tablets 6 and 2
    actions, rejections = _plan(*sizes, options=options)
    assert _shapes(actions) == [(ActionKind.MERGE, (1, 2), 1), (ActionKind.RESHARD, (5, 6), 4)]
    assert [(one.tablets, one.code) for one in rejections] == [((4,), "min-tablet-count")]


def test_merges_never_go_below_min_tablet_count() -> None:
    sizes = [1000] * 4 + [1] * 20
    view = bundle_of({"t": Tablets(sizes)}, ("a",))
    options = _options(BalancerOptions(5, 1000, 1500, min_desired_tablet_size=0), min_tablet_count=18)
    for _ in range(10):
        actions, _ = plan_sizes(view, options)
        view = after(view, actions)
    assert len(view.tablets) == 18


def test_neighbours_on_different_nodes_are_moved_together_first() -> None:
    view = bundle_of({"t": Tablets((100, 10), nodes=(0, 1))})
    actions, rejections = plan_sizes(view, _options())
    assert [(one.kind, one.tablets, one.source, one.target, one.code) for one in actions] == [
        (ActionKind.MOVE, (2,), "b", "a", "gather")
    ]
    assert [(one.kind, one.code) for one in rejections] == [(ActionKind.MERGE, "gathering")]
    assert _shapes(plan_sizes(after(view, actions), _options()).actions) == [(ActionKind.MERGE, (1, 2), 1)]


def test_neighbours_elsewhere_that_lie_together_become_one_before_they_are_moved() -> None:
    view = bundle_of({"t": Tablets((4, 3, 2, 1, 5), nodes=(0, 0, 1, 1, 1))})
    actions, rejections = plan_sizes(view, _options())
    assert _shapes(actions) == [(ActionKind.MERGE, (1, 2), 1)]
    assert "these 2, 7 B, become one" in actions[0].reason
    assert [(one.kind, one.code) for one in rejections] == [(ActionKind.MERGE, "gathering")]
    view = after(view, actions)
    actions, _ = plan_sizes(view, _options())
    assert [(one.kind, one.source, one.target, one.code) for one in actions] == [(ActionKind.MOVE, "a", "b", "gather")]
    assert [(one.kind, len(one.tablets)) for one in plan_sizes(after(view, actions), _options()).actions] == [
        (ActionKind.MERGE, 4)
    ]


def test_small_tablets_join_each_other_before_they_join_a_good_one() -> None:
    """Else each would join what the last one has joined, and rewrite all of it."""
    assert _shapes(_plan(100, 20, 20, 20, 100)[0]) == [(ActionKind.MERGE, (2, 3, 4), 1)]
    assert _shapes(_plan(100, 10, 20, 100)[0]) == [(ActionKind.MERGE, (1, 2, 3), 1)]


def test_a_small_tablet_waits_for_one_beside_it_that_is_on_its_way() -> None:
    view = bundle_of({"t": Tablets((100, 10, 20, 100))}, ("a",), in_flight=(InFlight("m1", (3,), "b", "a"),))
    actions, rejections = plan_sizes(view, _options())
    assert not actions
    assert [(one.tablets, one.code) for one in rejections] == [((2,), "in-flight"), ((3,), "in-flight")]
    assert "tablet 3 beside it" in rejections[0].reason


def test_what_may_not_be_moved_is_merged_where_it_lies_together() -> None:
    view = bundle_of({"t": Tablets((1, 1, 1), nodes=(0, 0, 1))})
    options = _options(enable_auto_tablet_move=False)
    actions, _ = plan_sizes(view, options)
    assert _shapes(actions) == [(ActionKind.MERGE, (1, 2), 1)]
    assert [one.code for one in plan_sizes(after(view, actions), options).rejections] == ["apart"]


def test_a_merge_of_very_many_is_done_in_pieces() -> None:
    view = bundle_of({"t": Tablets([0] * 1000)}, ("a",))
    rounds = []
    while actions := plan_sizes(view, _options()).actions:
        assert max(len(action.tablets) for action in actions) <= MOST_AT_ONCE
        rounds.append(len(actions))
        view = after(view, actions)
    assert (rounds, len(view.tablets)) == ([63, 4, 1], 1)


@pytest.mark.parametrize("table", [{"enable_auto_tablet_move": False}, {"placement": Placement.JUMP}])
def test_neighbours_that_may_not_be_moved_stay_apart(table: dict[str, Any]) -> None:
    view = bundle_of({"t": Tablets((100, 10), nodes=(0, 1))})
    actions, rejections = plan_sizes(view, _options(**table))
    assert not actions
    assert [one.code for one in rejections] == ["apart"]


def test_tablets_are_gathered_on_an_active_node_in_the_zones_of_the_table() -> None:
    nodes = (NodeView("a", NodeCondition.DRAINING), NodeView("b", zone="west"), NodeView("c", zone="east"))
    view = bundle_of({"t": Tablets((40, 5, 4), nodes=(0, 1, 2))}, nodes)
    assert {action.target for action in plan_sizes(view, _options()).actions} == {"b"}
    assert {action.target for action in plan_sizes(view, _options(zones=("east",))).actions} == {"c"}


def test_tables_of_a_bundle_are_planned_on_their_own() -> None:
    view = bundle_of({"t": Tablets((10,)), "u": Tablets((10, 900)), "v": Tablets((500,))}, ("a",))
    actions, _ = plan_sizes(view, _options())
    assert [(action.table, action.tablets) for action in actions] == [("u", (2, 3)), ("v", (4,))]


SIZES = st.lists(st.integers(0, 3000).map(lambda size: size * 720_720), min_size=1, max_size=40)


@given(SIZES, st.one_of(st.none(), st.integers(1, 10)), st.one_of(st.none(), st.integers(10, 30)))
def test_plans_settle(sizes: list[int], least: int | None, count: int | None) -> None:
    balancer = BalancerOptions(50 * 720_720, 100 * 720_720, 200 * 720_720, min_desired_tablet_size=0)
    options = _options(balancer, min_tablet_count=least, desired_tablet_count=count)
    view = bundle_of({"t": Tablets(sizes)}, ("a",))
    for _ in range(8):
        actions, _ = plan_sizes(view, options)
        if not actions:
            break
        view = after(view, actions)
    assert not plan_sizes(view, options).actions


@given(SIZES, st.integers(0, 2**32))
def test_actions_do_not_share_tablets_and_keep_the_bytes(sizes: list[int], blocked: int) -> None:
    pinned = frozenset(place + 1 for place in range(len(sizes)) if blocked >> (place % 32) & 1)
    balancer = BalancerOptions(50 * 720_720, 100 * 720_720, 200 * 720_720)
    view = bundle_of({"t": Tablets(sizes)}, ("a",), pinned=pinned)
    actions, _ = plan_sizes(view, _options(balancer))
    touched = [tablet for action in actions for tablet in action.tablets]
    assert len(touched) == len(set(touched))
    assert not pinned & set(touched)
    assert after(view, actions).tablets.sizes.sum() == pytest.approx(sum(sizes))
    assert plan_sizes(view, _options(balancer)) == (actions, plan_sizes(view, _options(balancer)).rejections)
