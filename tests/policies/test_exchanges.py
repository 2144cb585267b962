"""What an exchange must be worth, and that noise starts nothing."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.policies.budgets import Admission
from balancer.policies.bundle_view import BundleView, TabletHistory
from balancer.policies.objective import joint_floor
from balancer.policies.options import BalancerOptions, BudgetOptions, BundleOptions
from balancer.policies.order import Picker
from balancer.policies.placement_loads import build_problem
from balancer.policies.plan import make_plan
from balancer.policies.wanted_moves import plan_moves
from tests.support.clusters import bundle

pytestmark = pytest.mark.quick

OPTIONS = BundleOptions(
    balancer=BalancerOptions(enable_cell_balancer=True, enable_tablet_size_balancer=False),
    budgets=BudgetOptions(moves_per_node=4, moves_total=64),
)


def random_bundle(seed: int) -> BundleView:
    """Some dozens of large tablets: few single moves help, so that exchanges are looked for."""
    rng = random.Random(seed)
    count, places = rng.randint(6, 40), rng.randint(2, 5)
    view = bundle([rng.randrange(places) for _ in range(count)], places)
    figures = [np.array([rng.lognormvariate(0, 1) * scale for _ in range(count)]) for scale in (10 << 30, 100, 100)]
    columns = replace(view.tablets, sizes=figures[0], write_rate=figures[1], read_rate=figures[2])
    return replace(view, tablets=columns)


@settings(max_examples=30)
@given(st.integers(0, 10**6))
def test_no_exchange_gains_less_than_its_floor(seed: int) -> None:
    view = random_bundle(seed)
    moves = plan_moves(build_problem(view, OPTIONS), OPTIONS)
    picker = Picker(moves, Admission(view, OPTIONS))
    min_gain = OPTIONS.placement.min_gain
    for step in picker.others(np.zeros(len(moves.problem.ids), dtype=np.bool_)):
        if len(step.rows) > 1:
            carried = moves.problem.loads[list(step.rows)].sum(axis=0)
            assert step.gain > joint_floor(carried, moves.problem.weights, min_gain)


def test_some_of_those_bundles_have_exchanges() -> None:
    """Else the law above would say nothing."""
    plans = [make_plan(random_bundle(seed), OPTIONS) for seed in range(30)]
    assert sum(any(action.code in ("swap", "chain") for action in plan.actions) for plan in plans) >= 3


@pytest.mark.parametrize(("places", "each"), [(3, 8), (4, 16), (6, 20)])
def test_a_balanced_bundle_with_a_tenth_of_noise_is_left_alone(places: int, each: int) -> None:
    rng = random.Random(5)
    view = bundle([place for place in range(places) for _ in range(each)], places)
    for tick in range(100):
        noisy = [
            column * np.array([rng.uniform(0.9, 1.1) for _ in range(places * each)])
            for column in (view.tablets.sizes, np.full(places * each, 50.0), np.full(places * each, 100.0))
        ]
        columns = replace(view.tablets, sizes=noisy[0], write_rate=noisy[1], read_rate=noisy[2])
        plan = make_plan(replace(view, tablets=columns, now=view.now + 60.0 * tick), OPTIONS)
        assert (tick, plan.actions) == (tick, ())


def test_of_two_equal_tablets_the_one_that_has_rested_longer_is_moved() -> None:
    view = bundle([0] * 5 + [1] * 3, 2)
    lately = {int(tablet): TabletHistory(last_migrated=view.now - 7200.0) for tablet in view.tablets.ids[:4]}
    plan = make_plan(replace(view, history=lately), OPTIONS)
    assert [action.tablets for action in plan.actions] == [(int(view.tablets.ids[4]),)]
