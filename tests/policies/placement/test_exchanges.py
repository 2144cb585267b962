"""What an exchange must be worth, and that noise starts nothing."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from balancer.policies.budgets import Admission
from balancer.policies.options import BalancerOptions, BudgetOptions, BundleOptions
from balancer.policies.placement.problem import LoadState, build_problem, joint_floor, move_gains, tension
from balancer.policies.plan.order import Picker
from balancer.policies.plan.plan import make_plan, step_actions
from balancer.policies.plan.wanted import Moves, plan_moves
from balancer.policies.view import BundleView, TabletHistory
from tests.support.bundle_views import bundle

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
@example(152)
@example(184)
def test_no_exchange_gains_less_than_its_floor(seed: int) -> None:
    view = random_bundle(seed)
    moves = plan_moves(build_problem(view, OPTIONS), OPTIONS)
    picker = Picker(moves, Admission(view, OPTIONS))
    before = picker.state.copy()
    for step in picker.others(np.zeros(len(moves.problem.ids), dtype=np.bool_)):
        if len(step.rows) > 1:
            assert step.gain > floor_of(moves, before, step.rows)
        before = picker.state.copy()


def floor_of(moves: Moves, state: LoadState, rows: tuple[int, ...]) -> float:
    """The lower floor only where one of the moves leaves a node that is over the start threshold at that moment."""
    problem, placement = moves.problem, OPTIONS.placement
    sources = tension(problem, state.held)[moves.before.owner[list(rows)]]
    pressing = bool((sources > placement.start_threshold).any())
    carried = problem.loads[list(rows)].sum(axis=0)
    return float(joint_floor(carried, problem.floors, placement.min_gain, pressing=pressing))


def test_no_set_has_a_move_that_it_can_do_without() -> None:
    """A move too many keeps the slots of its nodes from what would relieve them."""
    one_slot = replace(OPTIONS, budgets=BudgetOptions())
    sets = 0
    for seed in range(64):
        view = half_hot_bundle(seed)
        moves = plan_moves(build_problem(view, one_slot), one_slot)
        picker = Picker(moves, Admission(view, one_slot))
        before, budget = picker.state.copy(), picker.admission
        for step in picker.others(np.zeros(len(moves.problem.ids), dtype=np.bool_)):
            able = [row for row in step.rows if nodes_of(moves, row).isdisjoint(budget.busy)]
            for row in step.rows if len(step.rows) > 2 else ():
                fewer = [one for one in step.rows if one != row]
                if set(fewer) & set(able):
                    assert not worth_it(moves, before, fewer), (seed, step, row)
            sets += len(step.rows) > 1
            before = picker.state.copy()
            for action in step_actions(moves, step, one_slot):
                budget.admit(action)
    assert sets


OWNERS = "1000100030103000121232221202222201110111011101110333333333333333"


def half_hot_bundle(first: int) -> BundleView:
    """Tablets of one size, sixteen of them three times as hot: what is even in bytes is not in writes."""
    hot = {at % 64 for at in range(first, first + 16)}
    writes = [125.0 if at in hot else 42.0 for at in range(64)]
    return bundle([int(node) for node in OWNERS], 4, writes=writes, reads=[2 * rate for rate in writes])


def nodes_of(moves: Moves, row: int) -> set[str]:
    return {moves.problem.nodes[int(state.owner[row])].id for state in (moves.before, moves.after)}


def worth_it(moves: Moves, state: LoadState, rows: list[int]) -> bool:
    """Whether these moves gain enough together, and make no node worse than the worst was."""
    problem, changed = moves.problem, state.copy()
    total = 0.0
    for row in rows:
        target = moves.after.owner[[row]]
        total += float(move_gains(problem, changed, np.array([row]), target)[0])
        changed.move(problem, row, int(target[0]))
    floor = floor_of(moves, state, tuple(rows))
    worst = [float(tension(problem, one.held).max()) for one in (state, changed)]
    return total > max(floor, 1e-12) and worst[1] <= worst[0] + 1e-12


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
