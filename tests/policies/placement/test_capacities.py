"""Capacities for reads and writes: kept to wherever that is possible, beside an exact solver; shares follow them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import highspy
import numpy as np
import pytest

from balancer.policies.options import BalancerOptions, BudgetOptions, BundleOptions, PlacementOptions
from balancer.policies.placement.candidates import over_capacity
from balancer.policies.placement.problem import Problem, build_problem
from balancer.policies.plan.explain import why_not
from balancer.policies.plan.plan import make_plan
from balancer.policies.plan.wanted import plan_moves
from balancer.policies.view import BundleView, DaySpan, NodeView, ProfileColumns
from tests.support.bundle_views import bundle, nodes
from tests.support.settling import settle

OFF = BundleOptions(balancer=BalancerOptions(enable_cell_balancer=False))
ON = BundleOptions(balancer=BalancerOptions(enable_cell_balancer=True, enable_tablet_size_balancer=False))
SEEDS = range(80)


def with_capacities(writes: Sequence[float | None], reads: Sequence[float | None] = ()) -> tuple[NodeView, ...]:
    made = [replace(node, write_capacity=most) for node, most in zip(nodes(len(writes)), writes, strict=True)]
    return tuple(
        replace(node, read_capacity=most) for node, most in zip(made, reads or [None] * len(made), strict=True)
    )


def tight(seed: int) -> BundleView:
    """Some tablets on a few nodes whose capacities are just above what some placement, or an even one, needs."""
    chance = np.random.default_rng(seed)
    tablets, count = int(chance.integers(5, 26)), int(chance.integers(2, 6))
    loads = [chance.lognormal(3.0, 1.0, tablets) for _ in range(2)]
    slack, hidden = chance.choice([1.05, 1.1, 1.2, 1.4]), chance.integers(0, count, tablets)
    needed = [np.bincount(hidden, load, count) for load in loads]
    if chance.random() < 0.5:
        needed = [np.full(count, load.sum() / count) for load in loads]
    limits = [(each * slack + 1.0).tolist() for each in needed]
    owner = chance.integers(0, count, tablets).tolist()
    return bundle(owner, with_capacities(*limits), writes=loads[0], reads=loads[1])


def is_feasible(problem: Problem) -> bool:
    """Whether any placement keeps to all capacities, says the solver; in doubt (its time is over): no."""
    tablets, places = problem.limited.shape[0], len(problem.nodes)
    model: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in (("output_flag", False), ("time_limit", 5.0), ("threads", 1)):
        model.setOptionValue(name, value)
    place = [[model.addBinary() for _ in range(places)] for _ in range(tablets)]
    for row in range(tablets):
        model.addConstr(sum(place[row]) == 1)
    for at, node in enumerate(problem.nodes):
        for column, limit in enumerate(problem.limits):
            load = sum(float(problem.limited[row, column]) * place[row][at] for row in range(tablets))
            model.addConstr(load <= limit.capacity(node))
    model.minimize(place[0][0])
    return bool(model.getModelStatus() == highspy.HighsModelStatus.kOptimal)


@pytest.mark.parametrize("options", [OFF, ON], ids=["movers off", "movers on"])
def test_no_plan_exceeds_a_capacity_where_some_placement_does_not(options: BundleOptions) -> None:
    feasible = 0
    for seed in SEEDS:
        problem = build_problem(tight(seed), options)
        if len(over_capacity(problem, plan_moves(problem, options).after)):
            assert not is_feasible(problem), seed
        else:
            feasible += 1
    assert feasible > len(SEEDS) / 2


def test_budgets_lead_to_the_same_end() -> None:
    """One move at a time, and exchanges in halves: at rest no node is over its capacity."""
    options = replace(OFF, budgets=BudgetOptions(cool_down=0.0))
    for seed in range(0, 24, 3):
        view = tight(seed)
        if not len(plan_moves(build_problem(view, options), options).overfull):
            at_rest = build_problem(settle(view, options).view, options)
            assert (at_rest.limit_room >= -1e-6).all(), seed


def test_a_node_over_its_capacity_gives_at_once_and_says_why() -> None:
    view = bundle([0, 0, 0, 1], with_capacities([150.0, 500.0]), writes=[100.0, 60.0, 20.0, 30.0])
    (action,) = make_plan(view, OFF).actions
    assert (action.code, action.source, action.target) == ("capacity", "n0", "n1")
    assert "n0 does 180 rows/s of writes, and its capacity is 150 rows/s" in action.reason


def test_what_no_placement_keeps_to_is_said_by_name() -> None:
    view = bundle([0, 0, 1], with_capacities([150.0, 100.0]), writes=[100.0, 90.0, 90.0])
    plan = make_plan(view, OFF)
    (found,) = [one for one in plan.rejections if one.code == "over-capacity"]
    assert found.reason.startswith("n0 stays 20 % over its capacity for writes (150 rows/s): all tablets do 280 rows/s")
    assert found.reason in plan.notes


def test_shares_follow_the_capacities_where_no_weights_are_given() -> None:
    options = BundleOptions(placement=PlacementOptions(dimensions={"write_rate": 1.0, "read_rate": 1.0}))
    view = bundle([0, 1], with_capacities([300.0, 100.0]), writes=10.0, reads=10.0)
    problem = build_problem(view, options)
    assert problem.due.tolist() == [[0.75, 0.5], [0.25, 0.5]]
    weighted = (replace(view.nodes[0], weight=2.0), view.nodes[1])
    assert build_problem(replace(view, nodes=weighted), options).due[0].tolist() == pytest.approx([2 / 3, 2 / 3])


def test_balancing_never_fills_a_node_over_its_capacity() -> None:
    """n1 has little bytes and would be given much, but it can bear two writing tablets only."""
    nodes_ = with_capacities([None, 25.0])
    view = bundle([0] * 12 + [1], nodes_, writes=10.0)
    result = settle(view, ON).view
    assert float(result.tablets.write_rate[result.tablets.node == 1].sum()) <= 25.0
    answer = why_not(result, ON, int(result.tablets.ids[result.tablets.node == 0][0]), "n1")
    assert answer.code == "target-capacity"
    assert "may be given 5.0 rows/s of writes more, this does 10 rows/s" in answer.reason


def test_a_capacity_holds_in_every_part_of_the_day() -> None:
    view = bundle([0, 0, 1, 1], with_capacities([100.0, 100.0]), writes=10.0)
    rates = np.full((2, 4, 2), 10.0, np.float32)
    rates[0, :2, 1] = 80.0
    view = replace(view, profile=ProfileColumns((DaySpan(0, 17), DaySpan(18, 20)), rates))
    (action,) = make_plan(view, OFF).actions
    assert "n0 does 160 rows/s of writes from 18 to 21 h" in action.reason
