"""Tables placed by a sharding function: it alone decides, and nodes that cannot take anything are waited for."""

from collections import Counter
from dataclasses import replace

import pytest

from balancer.policies.options import BalancerOptions, BudgetOptions, BundleOptions, HeatOptions, Placement
from balancer.policies.options import TableOptions as Table
from balancer.policies.placement.problem import build_problem
from balancer.policies.placement.urgent import natural_order
from balancer.policies.plan.plan import make_plan
from balancer.policies.view import NodeCondition, NodeView
from tests.support.bundle_views import bundle, moved, nodes

pytestmark = pytest.mark.quick


def options(function: Placement) -> BundleOptions:
    return BundleOptions(
        balancer=BalancerOptions(enable_tablet_size_balancer=False),
        heat=HeatOptions(enable=False),
        tables={"t": Table(placement=function)},
        budgets=BudgetOptions(moves_per_node=1000, moves_total=1000),
    )


@pytest.mark.parametrize("function", [function for function in Placement if function is not Placement.BALANCED])
def test_the_function_decides_and_then_nothing_is_left_to_do(function: Placement) -> None:
    view = bundle([0] * 64, 4)
    plan = make_plan(view, options(function))
    assert {action.code for action in plan.actions} == {"function"}
    after = moved(view, {action.tablets[0]: action.target for action in plan.actions})
    assert not make_plan(after, options(function)).actions
    assert len(Counter(after.tablets.node.tolist())) == 4


def test_modulo_is_the_remainder() -> None:
    view = bundle([0] * 8, 4)
    targets = {action.tablets[0]: action.target for action in make_plan(view, options(Placement.MODULO)).actions}
    assert targets == {tablet: f"n{(tablet - 1) % 4}" for tablet in range(1, 9) if (tablet - 1) % 4}


def test_a_node_that_is_away_for_a_while_changes_nothing_for_the_others() -> None:
    settled = bundle([at % 4 for at in range(8)], 4)
    down = replace(settled, nodes=(*nodes(3), NodeView("n3", NodeCondition.DOWN)))
    assert not make_plan(down, options(Placement.MODULO)).actions


def test_a_draining_node_is_emptied_to_where_the_function_says() -> None:
    settled = bundle([at % 4 for at in range(8)], 4)
    draining = replace(settled, nodes=(*nodes(3), NodeView("n3", NodeCondition.DRAINING)))
    plan = make_plan(draining, options(Placement.MODULO))
    drained = {action.tablets[0]: action.target for action in plan.actions if action.code == "drain"}
    assert drained == {4: "n0", 8: "n1"}


def test_nodes_are_counted_as_people_count() -> None:
    problem = build_problem(bundle([0], [NodeView(f"n{at}") for at in (10, 2, 1)]), BundleOptions())
    assert [problem.nodes[at].id for at in natural_order(problem)] == ["n1", "n2", "n10"]


def test_a_tables_ring_has_the_points_that_its_options_give_it() -> None:
    """With one point each the shares of three nodes are far apart."""
    view, few = bundle([0] * 256, 3), options(Placement.RING)
    many = replace(few, tables={"t": Table(placement=Placement.RING, virtual_nodes=1000)})
    few = replace(few, tables={"t": Table(placement=Placement.RING, virtual_nodes=1)})
    fullest = []
    for one in (few, many):
        plan = make_plan(view, one)
        after = moved(view, {action.tablets[0]: action.target for action in plan.actions})
        fullest.append(max(Counter(after.tablets.node.tolist()).values()))
    assert fullest[0] > 1.5 * fullest[1]
