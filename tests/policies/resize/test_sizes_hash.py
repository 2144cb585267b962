"""Splits and merges of vbuckets by size, and doubling and halving of all of them."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.policies.keyspace.hash_leaves import MAX_MODULUS, Leaf, uncovered
from balancer.policies.options import BalancerOptions, BundleOptions, Placement, TableOptions
from balancer.policies.resize.scope import wished_count
from balancer.policies.resize.sizes import Proposals, double, halve, plan_sizes
from balancer.policies.view import ActionKind, BundleView, Rejection, TabletHistory
from tests.support.bundle_views import NOW, Tablets, bundle_of, leaves
from tests.support.outcomes import after

pytestmark = pytest.mark.quick

SMALL = BalancerOptions(50, 100, 200, min_desired_tablet_size=0)


def _options(balancer: BalancerOptions = SMALL, **table: Any) -> BundleOptions:
    return BundleOptions(balancer=balancer, tables={"t": TableOptions(**table)})


def _plan(sizes: list[int], shape: list[Leaf], options: BundleOptions | None = None, **fields: Any) -> Proposals:
    return plan_sizes(bundle_of({"t": Tablets(sizes, shape)}, ("a",), **fields), options or _options())


def _made(proposals: Proposals) -> list[tuple[tuple[int, ...], list[Leaf | None]]]:
    return [(action.tablets, [part.leaf for part in action.parts]) for action in proposals.actions]


def _codes(rejections: tuple[Rejection, ...]) -> list[tuple[tuple[int, ...], str]]:
    return [(rejection.tablets, rejection.code) for rejection in rejections]


def _leaves(view: BundleView) -> list[Leaf]:
    return [view.tablets.leaf(row) for row in range(len(view.tablets))]


def test_a_large_vbucket_is_split_into_its_children() -> None:
    proposals = _plan([210, 100], leaves(2))
    assert _made(proposals) == [((1,), [Leaf(4, 0), Leaf(4, 2)])]
    assert (proposals.actions[0].kind, proposals.actions[0].count) == (ActionKind.SPLIT, 2)


@pytest.mark.parametrize(("size", "parts"), [(201, 2), (282, 2), (284, 4), (400, 4), (560, 4), (570, 8), (1600, 16)])
def test_it_is_split_as_many_levels_as_bring_its_parts_nearest_to_the_desired_size(size: int, parts: int) -> None:
    actions, _ = _plan([size], [Leaf(1, 0)])
    assert actions[0].count == len(actions[0].parts) == parts


def test_two_small_siblings_become_their_parent() -> None:
    proposals = _plan([40, 40, 100, 100], leaves(4))
    assert _made(proposals) == [((1, 2), [Leaf(2, 0)])]
    assert (proposals.actions[0].kind, proposals.actions[0].count) == (ActionKind.MERGE, 1)


def test_a_small_vbucket_joins_a_sibling_of_any_size_below_max() -> None:
    assert _made(_plan([100, 100, 150, 40], leaves(4))) == [((3, 4), [Leaf(2, 1)])]


def test_a_small_vbucket_whose_sibling_is_too_large_stays() -> None:
    actions, rejections = _plan([100, 100, 190, 40], leaves(4))
    assert not actions
    assert _codes(rejections) == [((3, 4), "merged-too-large")]


@pytest.mark.parametrize(
    ("sizes", "modulus"),
    [([1, 210, 100, 100], 4), ([210, 1, 100, 100], 4), ([1, 210], 2), ([100, 100, 1, 210], 4), ([210, 1, 1, 1], 4)],
    ids=str,
)
def test_a_large_vbucket_beside_a_small_one_is_split(sizes: list[int], modulus: int) -> None:
    proposals = _plan(sizes, leaves(modulus))
    assert [action.tablets for action in proposals.actions if action.kind is ActionKind.SPLIT] == [
        (sizes.index(210) + 1,)
    ]


def test_what_a_split_took_nothing_from_is_not_split_again() -> None:
    past = {1: TabletHistory(split_of=660.0)}
    actions, rejections = _plan([640, 1, 100, 100], leaves(4), history=past)
    assert [action for action in actions if 1 in action.tablets] == []
    assert ((1,), "one-key") in _codes(rejections)
    reason = next(one.reason for one in rejections if one.code == "one-key")
    assert "the split that made it left it 640 B of 660 B: nearly all of it has one key" in reason
    assert _plan([640, 1, 100, 100], leaves(4), history={1: TabletHistory(split_of=800.0)}).actions[0].tablets == (1,)
    grown = _plan([640, 640, 100, 100], leaves(4), history=past)
    assert grown.actions[0].tablets == (1,), "both parts have grown since"


def test_what_splits_in_vain_have_left_tells_after_they_are_forgotten() -> None:
    shape = [Leaf(8, 0), Leaf(8, 4), Leaf(4, 2), Leaf(2, 1)]
    assert ((1,), "one-key") in _codes(_plan([640, 1, 1, 1], shape).rejections)
    assert ((1,), "one-key") in _codes(_plan([640, 0, 0, 9], shape).rejections)
    assert _plan([640, 1, 1, 100], shape).actions[0].tablets == (1,)
    other = [Leaf(2, 0), Leaf(4, 1), Leaf(8, 3), Leaf(8, 7)]
    assert ((4,), "one-key") in _codes(_plan([1, 1, 1, 640], other).rejections)


def test_a_small_vbucket_without_a_sibling_leaf_stays_and_the_reason_names_the_sibling() -> None:
    actions, rejections = _plan([10, 100, 100], [Leaf(2, 0), Leaf(4, 1), Leaf(4, 3)])
    assert not actions
    assert _codes(rejections) == [((1,), "no-sibling")]
    assert "(2, 1) is split further" in rejections[0].reason


def test_neighbours_that_are_no_siblings_are_not_merged() -> None:
    proposals = _plan([100, 40, 40, 100], [Leaf(2, 0), Leaf(4, 1), Leaf(8, 3), Leaf(8, 7)])
    assert _made(proposals) == [((3, 4), [Leaf(4, 3)])]
    assert _codes(proposals.rejections) == [((2,), "no-sibling")]


def test_a_sibling_in_another_state_is_named() -> None:
    actions, rejections = _plan([40, 40], leaves(2), quarantined=frozenset({2}))
    assert not actions
    assert _codes(rejections) == [((1,), "quarantined"), ((2,), "quarantined")]
    assert "sibling 2" in rejections[0].reason


def test_a_split_whose_parts_would_be_merged_again_is_not_made() -> None:
    narrow = _options(BalancerOptions(80, 100, 120, min_desired_tablet_size=0))
    actions, rejections = _plan([130], [Leaf(1, 0)], narrow)
    assert not actions
    assert _codes(rejections) == [((1,), "no-good-count")]


def test_no_modulus_grows_beyond_the_largest() -> None:
    actions, rejections = _plan([250], [Leaf(MAX_MODULUS, 5)])
    assert not actions
    assert _codes(rejections) == [((1,), "modulus-limit")]


def test_min_tablet_count_is_a_budget_for_vbuckets_too() -> None:
    options = _options(BalancerOptions(5, 10, 20, min_desired_tablet_size=0), min_tablet_count=7)
    sizes = [4, 4, 4, 4, 100, 100, 100, 100]
    actions, rejections = _plan(sizes, leaves(8), options)
    merges = [action for action in actions if action.kind is ActionKind.MERGE]
    assert [action.tablets for action in merges] == [(3, 4)]
    assert _codes(rejections) == [((1,), "min-tablet-count"), ((2,), "min-tablet-count")]


def test_siblings_on_different_nodes_are_moved_together_first() -> None:
    view = bundle_of({"t": Tablets([40, 30], leaves(2), nodes=(0, 1))})
    actions, rejections = plan_sizes(view, _options())
    assert [(action.kind, action.tablets, action.target) for action in actions] == [(ActionKind.MOVE, (2,), "a")]
    assert _codes(rejections) == [((1, 2), "gathering")]
    assert _made(plan_sizes(after(view, actions), _options())) == [((1, 2), [Leaf(1, 0)])]


def test_siblings_that_heat_has_split_stay_apart_for_an_hour() -> None:
    history = {1: TabletHistory(split_for_heat_at=NOW - 3599), 2: TabletHistory(split_for_heat_at=NOW - 3599)}
    actions, rejections = _plan([40, 40], leaves(2), history=history)
    assert not actions
    assert _codes(rejections) == [((1, 2), "too-warm")]
    history = {1: TabletHistory(split_for_heat_at=NOW - 3600), 2: TabletHistory(split_for_heat_at=NOW - 3600)}
    assert len(_plan([40, 40], leaves(2), history=history).actions) == 1


def test_tablets_that_were_warm_in_the_last_five_minutes_are_not_merged() -> None:
    history = {2: TabletHistory(max_rate_5m=50.0)}  # half of min_rows_per_second
    assert _codes(_plan([40, 40], leaves(2), history=history).rejections) == [((1, 2), "too-warm")]


def test_doubling_splits_every_vbucket_whatever_its_size() -> None:
    view = bundle_of({"t": Tablets([1, 1, 1, 1000], leaves(4))}, ("a",))
    actions, rejections = double(view, _options(enable_auto_reshard=False), view.tables[0])
    assert not rejections
    assert _leaves(after(view, actions)) == leaves(8)
    assert {action.code for action in actions} == {"double"}


def test_halving_undoes_doubling() -> None:
    view = bundle_of({"t": Tablets([1] * 8, leaves(8))}, ("a",))
    actions, rejections = halve(view, _options(placement=Placement.MODULO), view.tables[0])
    assert not rejections
    assert _leaves(after(view, actions)) == leaves(4)


def test_halving_moves_siblings_together_first() -> None:
    view = bundle_of({"t": Tablets([1, 2], leaves(2), nodes=(0, 1))})
    actions, rejections = halve(view, _options(placement=Placement.MODULO), view.tables[0])
    assert [(action.kind, action.tablets) for action in actions] == [(ActionKind.MOVE, (1,))]
    assert [rejection.code for rejection in rejections] == ["gathering"]


def test_halving_of_an_uneven_table_names_the_leaves_without_a_sibling() -> None:
    view = bundle_of({"t": Tablets([1, 1, 1], [Leaf(2, 0), Leaf(4, 1), Leaf(4, 3)])}, ("a",))
    actions, rejections = halve(view, _options(), view.tables[0])
    assert [action.tablets for action in actions] == [(2, 3)]
    assert _codes(rejections) == [((1,), "no-sibling")]


def test_doubling_and_halving_leave_blocked_vbuckets_alone() -> None:
    view = bundle_of({"t": Tablets([1, 1], leaves(2))}, ("a",), pinned=frozenset({1}))
    assert _codes(double(view, _options(), view.tables[0]).rejections) == [((1,), "pinned")]
    assert _codes(halve(view, _options(), view.tables[0]).rejections) == [((1,), "pinned"), ((2,), "pinned")]


def test_doubling_beyond_the_limit_is_refused_as_a_whole() -> None:
    view = bundle_of({"t": Tablets([1] * 8192, leaves(8192))}, ("a",))
    proposals = double(view, _options(), view.tables[0])
    assert not proposals.actions
    assert [rejection.code for rejection in proposals.rejections] == ["tablet-limit"]


def test_range_tables_are_neither_doubled_nor_halved() -> None:
    view = bundle_of({"t": Tablets([1, 1])}, ("a",))
    for operation in (double, halve):
        assert [one.code for one in operation(view, _options(), view.tables[0]).rejections] == ["range-table"]


@st.composite
def vbuckets(draw: st.DrawFn) -> Tablets:
    """A trie that was split at random, with sizes at random."""
    chance = random.Random(draw(st.integers(0, 1 << 32)))
    shape = [Leaf(1, 0)]
    for _ in range(draw(st.integers(0, 30))):
        shape += shape.pop(chance.randrange(len(shape))).children()
    shape.sort(key=Leaf.start)
    return Tablets([chance.choice((0, 10, 100, 1000)) * chance.random() for _ in shape], shape)


@given(vbuckets(), st.one_of(st.none(), st.integers(1, 20)))
def test_plans_settle_and_every_step_covers_all_hashes(tablets: Tablets, least: int | None) -> None:
    options = _options(min_tablet_count=least)
    view = bundle_of({"t": tablets}, ("a",))
    for _ in range(20):
        actions, _ = plan_sizes(view, options)
        if not actions:
            break
        view = after(view, actions)
        assert uncovered(_leaves(view)) is None
        assert _leaves(view) == sorted(_leaves(view), key=Leaf.start)
    assert not plan_sizes(view, options).actions


@pytest.mark.parametrize(
    ("asked", "count"), [(1, 1), (3, 4), (5, 4), (6, 8), (10, 8), (11, 8), (12, 16), (23, 32), (10000, 8192)]
)
def test_a_wished_number_becomes_the_nearest_power_of_two(asked: int, count: int) -> None:
    assert wished_count(TableOptions(desired_tablet_count=asked), hashed=True) == count
    assert wished_count(TableOptions(desired_tablet_count=asked), hashed=False) == asked


def test_the_least_number_of_tablets_holds_for_the_power_of_two() -> None:
    assert wished_count(TableOptions(desired_tablet_count=11, min_tablet_count=10), hashed=True) == 16


@pytest.mark.parametrize("begun", [1, 2, 4, 8, 16, 32])
def test_a_wished_number_leads_to_the_same_table_wherever_it_began(begun: int) -> None:
    options, view = _options(desired_tablet_count=10), bundle_of({"t": Tablets([6400 // begun] * begun, leaves(begun))})
    for _ in range(8):
        actions, _ = plan_sizes(view, options)
        assert all("desired_tablet_count = 10, for a hash table 8" in action.reason for action in actions)
        view = after(view, actions)
    assert len(view.tablets) == 8
