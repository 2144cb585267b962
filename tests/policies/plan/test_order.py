"""What is started, and how: exchanges and chains also with one slot per node, nothing that makes things worse."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from balancer.policies.budgets import Admission
from balancer.policies.options import BalancerOptions, BudgetOptions, BundleOptions, HeatOptions, PlacementOptions
from balancer.policies.placement.problem import build_problem
from balancer.policies.plan.order import Picker, quiet_seconds
from balancer.policies.plan.plan import make_plan
from balancer.policies.plan.wanted import plan_moves
from balancer.policies.view import InFlight, NodeView, TabletHistory
from tests.support.bundle_views import GB, bundle, nodes, small
from tests.support.settling import Run, settle

pytestmark = pytest.mark.quick

NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
BALANCER = BalancerOptions(enable_cell_balancer=True, enable_tablet_size_balancer=False)
DEFAULTS = BundleOptions(balancer=BALANCER, heat=HeatOptions(enable=False))
BYTES = replace(DEFAULTS, placement=PlacementOptions(dimensions={"bytes": 1.0}))
EXCHANGE = bundle([0, 0, 1, 1], 2, sizes=[60 * GB, 60 * GB, 40 * GB, 40 * GB])


def held(run: Run) -> list[float]:
    columns = run.view.tablets
    sums = np.bincount(columns.node, weights=columns.sizes, minlength=len(run.view.nodes)) / GB
    return [float(value) for value in sums]


def test_with_one_slot_per_node_the_halves_of_an_exchange_go_one_after_the_other() -> None:
    run = Run(EXCHANGE, BYTES)
    (first,) = run.tick()
    assert (first.code, first.source, first.target) == ("swap", "n0", "n1")
    assert [target for _, target in first.then] == ["n0"]
    assert first.reason.endswith(f", followed by tablet {first.then[0][0]} from n1 to n0: they help only together")
    (second,) = run.tick()
    assert (second.tablets[0], second.target) == first.then[0]
    assert held(run) == [100.0, 100.0]
    assert not any(run.tick() for _ in range(20))


def test_with_two_slots_per_node_both_halves_start_at_once() -> None:
    run = Run(EXCHANGE, replace(BYTES, budgets=BudgetOptions(moves_per_node=2)))
    actions = run.tick()
    assert [(action.code, action.then) for action in actions] == [("swap", ()), ("swap", ())]
    assert held(run) == [100.0, 100.0]


def test_half_an_exchange_is_neither_taken_back_nor_built_upon() -> None:
    """While the first half runs, and after it, the other one counts as done."""
    moved = bundle([1, 0, 1, 1], 2, sizes=[60 * GB, 60 * GB, 40 * GB, 40 * GB])
    assert make_plan(moved, BYTES).actions, "without the promise a plan would do something about it"
    promised = InFlight("promised-3", (3,), "n1", "n0", waits=True)
    plan = make_plan(replace(moved, in_flight=(promised,)), BYTES)
    assert not plan.actions
    assert plan.score_before == 100.0


def test_a_promise_keeps_its_nodes_free_but_takes_no_slot_of_the_total() -> None:
    view = bundle([0] * 8 + [2] * 8, 4)
    promised = InFlight("promised-1", (1,), "n0", "n1", waits=True)
    options = replace(BYTES, budgets=BudgetOptions(moves_total=1))
    plan = make_plan(replace(view, in_flight=(promised,)), options)
    assert {action.source for action in plan.actions} == {"n2"}
    assert {action.target for action in plan.actions} == {"n3"}


def test_no_half_starts_where_the_target_has_no_room_for_the_time_between() -> None:
    """After the exchange both would fit; before it, neither node has room for one tablet more."""
    capacity = 170 * GB  # closes at 85 %: 144.5 GB; moves for balance leave another 8.5 GB free
    view = bundle([0, 0, 1, 1], nodes(2, disk_capacity=capacity), sizes=[60 * GB, 60 * GB, 40 * GB, 40 * GB])
    narrow = make_plan(view, BYTES)
    assert len(narrow.actions) == 1, "60 GB fit beside 80 GB"
    tight = bundle([0, 0, 1, 1], nodes(2, disk_capacity=155 * GB), sizes=[60 * GB, 60 * GB, 40 * GB, 40 * GB])
    plan = make_plan(tight, BYTES)
    assert not plan.actions, "140 GB do not fit into 131.75 GB"
    assert plan.counts["target-disk"] == 2
    assert plan.pending_moves == 2


def test_a_small_overload_is_exchanged_away_only_where_nothing_has_been_migrated_for_a_while() -> None:
    view = bundle([0, 0, 1, 1], 2, sizes=[56 * GB, 56 * GB, 44 * GB, 44 * GB])  # 12 % above
    lately = {4: TabletHistory(last_migrated=view.now - quiet_seconds(BYTES) + 1)}
    plan = make_plan(replace(view, history=lately), BYTES)
    assert not plan.actions
    assert (plan.counts["unsettled"], plan.pending_moves) == (2, 2)
    assert [action.code for action in make_plan(view, BYTES).actions] == ["swap"]
    begun = replace(view, history=lately, balancing=200 * GB)
    assert [action.code for action in make_plan(begun, BYTES).actions] == ["swap"], "what has begun pays for it"
    worse = bundle([0, 0, 1, 1], 2, sizes=[60 * GB, 60 * GB, 40 * GB, 40 * GB])
    assert [action.code for action in make_plan(replace(worse, history=lately), BYTES).actions] == ["swap"]


def test_no_exchange_begins_whose_second_half_would_find_no_room() -> None:
    """Something else has taken so much of n0 in the meantime that what leaves it does not make up for it."""
    problem = build_problem(bundle([0, 0, 1, 1], nodes(2, disk_capacity=300 * GB), sizes=EXCHANGE.tablets.sizes), BYTES)
    moves = plan_moves(problem, BYTES)
    nothing = np.zeros(4, dtype=np.bool_)
    assert len(list(Picker(moves, Admission(problem.view, BYTES)).others(nothing))) == 1
    picker = Picker(moves, Admission(problem.view, BYTES))
    picker.disk_room[0] = -30 * GB
    assert list(picker.others(nothing)) == []


def test_a_chain_is_begun_although_its_first_move_alone_makes_things_worse() -> None:
    """The large tablet fits nowhere unless the middle node first passes one of its own on."""
    sizes = [50 * GB, 50 * GB, 30 * GB, 50 * GB, 20 * GB, 40 * GB]
    run = Run(bundle([0, 0, 0, 1, 1, 2], 3, sizes=sizes), BYTES)
    codes = [action.code for _ in range(30) for action in run.tick()]
    assert max(held(run)) <= 90.0
    assert codes


@settings(max_examples=15, deadline=None, phases=NO_SHRINKING)
@given(st.integers(0, 10**6))
@example(85)
@example(161)
def test_small_bundles_come_to_rest_and_never_get_worse_on_the_way(seed: int) -> None:
    settled = settle(small(seed), DEFAULTS)
    assert settled.plan.pending_moves == 0
    assert np.diff(settled.scores).min(initial=0.0) > -1e-9, "no plan makes the score worse"
    assert settled.soonest >= DEFAULTS.budgets.cool_down, "no tablet is carried twice within minutes"


@settings(max_examples=25, deadline=None, phases=NO_SHRINKING)
@given(st.integers(0, 10**6))
def test_a_plan_for_balance_never_has_a_worse_score_than_it_found(seed: int) -> None:
    plan = make_plan(small(seed), DEFAULTS)
    assert plan.score_after > plan.score_before - 1e-9


def test_a_tablet_that_was_just_moved_is_not_carried_on_when_its_node_fills_up() -> None:
    of = [
        NodeView("a", disk_capacity=100 * GB),
        NodeView("b", disk_capacity=100 * GB),
        NodeView("c", disk_capacity=1000 * GB),
    ]
    view = bundle([0, 0, 0], of, sizes=[50 * GB, 30 * GB, 10 * GB])
    moved = {2: TabletHistory(last_migrated=view.now - 60.0)}
    assert [action.tablets for action in make_plan(view, DEFAULTS).actions] == [(2,)], "the smallest that suffices"
    plan = make_plan(replace(view, history=moved), DEFAULTS)
    assert [action.tablets for action in plan.actions] == [(1,)]
    rested = replace(view, history=moved, now=view.now + DEFAULTS.budgets.cool_down)
    assert [action.tablets for action in make_plan(rested, DEFAULTS).actions] == [(2,)]
