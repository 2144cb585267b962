"""Balancing that has begun goes on to the stop threshold, is paid by what it ends, and chases nothing."""

from dataclasses import replace

import pytest

from balancer.policies.budgets import NOTHING_BEGUN, BalancingCredit
from balancer.policies.options import BalancerOptions, BundleOptions, HeatOptions, PlacementOptions
from balancer.policies.placement.problem import build_problem
from balancer.policies.plan.plan import make_plan
from balancer.policies.plan.score import limit
from balancer.policies.view import Action, ActionKind, PlanResult
from tests.support.bundle_views import GB, bundle
from tests.support.settling import settle

pytestmark = pytest.mark.quick

OPTIONS = BundleOptions(
    balancer=BalancerOptions(enable_cell_balancer=True, enable_tablet_size_balancer=False),
    heat=HeatOptions(enable=False),
    placement=PlacementOptions(dimensions={"bytes": 1.0}),
)
BUSY = PlanResult(unfinished=True, overloaded=frozenset({"a"}))


def move(source: str, size: float = 40.0, code: str = "load") -> Action:
    return Action(ActionKind.MOVE, "t", (1,), "", code, source, "z", size=size)


def test_work_under_budgets_ends_at_the_stop_threshold_and_not_where_it_would_start() -> None:
    settled = settle(bundle([0] * 70 + [1] * 30 + [2] * 50, 3, sizes=1 * GB), OPTIONS)
    assert settled.plan.score_before >= 100.0 / (1.0 + OPTIONS.placement.stop_threshold)


def test_what_has_not_begun_starts_at_the_start_threshold() -> None:
    view = bundle([0] * 53 + [1] * 47 + [2] * 50, 3, sizes=1 * GB)
    assert not make_plan(view, OPTIONS).actions
    assert make_plan(replace(view, balancing=10 * GB), OPTIONS).actions


def test_a_move_below_the_start_threshold_is_not_made_without_the_bytes_for_it() -> None:
    view = bundle([0] * 53 + [1] * 47 + [2] * 50, 3, sizes=1 * GB)
    assert not make_plan(replace(view, balancing=0.5 * GB), OPTIONS).actions


def test_moves_off_overloaded_nodes_earn_and_others_spend() -> None:
    begun = NOTHING_BEGUN.after(BUSY, [move("a")])
    assert begun == BalancingCredit(10.0, frozenset({"a"}))
    assert begun.after(BUSY, [move("b", 4.0)]).bytes == 6.0
    assert begun.after(BUSY, [move("b", 100.0)]).bytes == 0.0
    assert begun.after(BUSY, [move("b", 4.0, "drain")]).bytes == 10.0, "not for balance"


def test_it_ends_when_nothing_is_left_to_do() -> None:
    assert BalancingCredit(30.0, frozenset({"a"})).after(PlanResult(), []) == NOTHING_BEGUN


def test_a_node_that_was_not_overloaded_before_is_a_new_story() -> None:
    wandered = PlanResult(unfinished=True, overloaded=frozenset({"b"}))
    assert BalancingCredit(30.0, frozenset({"a"})).after(wandered, []).bytes == 0.0
    fewer = PlanResult(unfinished=True)
    assert BalancingCredit(30.0, frozenset({"a"})).after(fewer, []).bytes == 30.0


@pytest.mark.parametrize(
    ("owner", "of", "sizes", "best"),
    [
        ([0, 0, 1], 2, 10 * GB, 75.0),  # one of two nodes has two of three
        ([0] * 10, 3, 10 * GB, 10 / 3 / 4 * 100),
        ([0, 0], 2, [90 * GB, 10 * GB], 50 / 90 * 100),  # the heaviest is somewhere
        ([0, 1], 2, 10 * GB, 100.0),
    ],
)
def test_no_placement_is_better_than_the_limit(
    owner: list[int], of: int, sizes: float | list[float], best: float
) -> None:
    assert limit(build_problem(bundle(owner, of, sizes=sizes), OPTIONS)) == pytest.approx(best)


def test_a_pin_limits_what_can_be_reached() -> None:
    view = bundle([0, 0, 0, 1], 2, sizes=10 * GB)
    pinned = replace(view, pinned=frozenset({1, 2, 3}))
    assert limit(build_problem(pinned, OPTIONS)) == pytest.approx(20 / 30 * 100)
    assert make_plan(pinned, OPTIONS).limit == pytest.approx(20 / 30 * 100)
