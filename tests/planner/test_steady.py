"""When a plan that found nothing need not be made again."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.planner.tick import KEPT_SECONDS, much_the_same, starts_nothing
from balancer.policies.options import BundleOptions
from balancer.policies.plan.plan import make_plan
from balancer.policies.view import Action, ActionKind, BundleView, InFlight, NodeCondition, PlanResult, TabletHistory
from tests.support.bundle_views import GB, bundle

pytestmark = pytest.mark.quick

VIEW = bundle([0, 1, 0, 1], 2, sizes=10 * GB, writes=100.0)


def tablets(view: BundleView, **columns: Any) -> BundleView:
    return replace(view, tablets=replace(view.tablets, **columns))


def test_time_alone_changes_nothing_for_a_while() -> None:
    assert much_the_same(VIEW, replace(VIEW, now=VIEW.now + KEPT_SECONDS))
    assert not much_the_same(VIEW, replace(VIEW, now=VIEW.now + KEPT_SECONDS + 1))
    assert not much_the_same(VIEW, replace(VIEW, now=VIEW.now - 1)), "the clock was set back"


@pytest.mark.parametrize(
    "changed",
    [
        tablets(VIEW, node=np.array([0, 1, 1, 1])),
        tablets(VIEW, sizes=VIEW.tablets.sizes * 1.05),
        tablets(VIEW, write_rate=VIEW.tablets.write_rate * 1.05),
        tablets(VIEW, ids=np.array([1, 2, 3, 5])),
        replace(VIEW, pinned=frozenset({1})),
        replace(VIEW, history={1: TabletHistory(failures=1)}),
        replace(VIEW, in_flight=(InFlight("m1", (1,), "n0", "n1"),)),
        replace(VIEW, nodes=(VIEW.nodes[0], replace(VIEW.nodes[1], condition=NodeCondition.DRAINING))),
        replace(VIEW, nodes=(VIEW.nodes[0], replace(VIEW.nodes[1], disk_used=5 * GB))),
    ],
)
def test_what_a_plan_looks_at_does(changed: BundleView) -> None:
    assert not much_the_same(VIEW, changed)


def test_a_longer_window_does_and_a_shorter_one_does_not() -> None:
    then = replace(VIEW, window_seconds_left=50.0)
    assert much_the_same(then, replace(VIEW, window_seconds_left=40.0))
    assert not much_the_same(then, replace(VIEW, window_seconds_left=60.0))
    assert not much_the_same(then, VIEW)


@given(st.lists(st.floats(-0.005, 0.005), min_size=4, max_size=4))
def test_what_counts_as_the_same_is_planned_the_same(noise: list[float]) -> None:
    shaken = tablets(VIEW, write_rate=VIEW.tablets.write_rate * (1 + np.array(noise)))
    assert much_the_same(VIEW, shaken)
    assert starts_nothing(make_plan(VIEW, BundleOptions()))
    assert starts_nothing(make_plan(shaken, BundleOptions()))


def test_what_runs_is_no_reason_to_plan_again_but_its_end_is() -> None:
    flying = replace(VIEW, in_flight=(InFlight("m1", (1,), "n0", "n1"),))
    assert much_the_same(flying, replace(flying, now=VIEW.now + 10))
    assert not much_the_same(flying, VIEW)
    assert not much_the_same(VIEW, replace(VIEW, balancing=1.0))


def test_a_plan_that_starts_something_is_never_kept() -> None:
    assert starts_nothing(PlanResult())
    assert starts_nothing(PlanResult(pending_moves=1)), "they wait for what runs"
    assert not starts_nothing(PlanResult(actions=(Action(ActionKind.MOVE, "t", (1,), "", "load"),)))
