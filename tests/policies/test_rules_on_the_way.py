"""No step breaks a rule that held before it: neither the plan's end, nor anything on the way there."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.policies.options import GB, Apart, BalancerOptions, BudgetOptions, BundleOptions, PlacementOptions
from balancer.policies.options import PlacementRule as Rule
from balancer.policies.plan.plan import make_plan
from balancer.policies.view import BundleView, PlanResult
from tests.support.bundle_views import bundle, moved

pytestmark = pytest.mark.quick

BALANCER = BalancerOptions(enable_cell_balancer=True, enable_tablet_size_balancer=False)
PLANS = 4


def holders(view: BundleView) -> dict[int, str]:
    return {int(one): view.nodes[int(at)].id for one, at in zip(view.tablets.ids, view.tablets.node, strict=True)}


def steps(plan: PlanResult) -> Iterator[tuple[int, str]]:
    """All that a plan starts, and what follows each of its moves."""
    for action in plan.actions:
        yield action.tablets[0], action.target
    for action in plan.actions:
        yield from action.then


@settings(max_examples=30)
@given(
    owner=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    sizes=st.lists(st.floats(0.1, 9.0), min_size=16, max_size=16),
    per_node=st.integers(1, 3),
)
def test_tablets_that_a_rule_keeps_apart_never_share_a_node_on_the_way(
    owner: list[int], sizes: list[float], per_node: int
) -> None:
    """Four tablets that are apart, among others; rows leave a node only when their move is done."""
    view = bundle([0, 1, 2, 3, *owner], 6, sizes=[size * GB for size in sizes])
    view = replace(view, tables=(replace(view.tables[0], name="apart", last=4), replace(view.tables[0], first=4)))
    options = BundleOptions(
        balancer=BALANCER,
        budgets=BudgetOptions(moves_per_node=per_node, moves_total=8),
        rules=(Rule("apart", ("apart",), spread=Apart.TABLETS),),
    )
    for _ in range(PLANS):
        plan = make_plan(view, options)
        held = holders(view)
        there = [held[tablet] for tablet in (1, 2, 3, 4)]
        there += [action.target for action in plan.actions if action.tablets[0] in (1, 2, 3, 4)]
        assert len(set(there)) == len(there), "a copy lands where another one still is"
        goes = dict(steps(plan))
        for action in plan.actions:
            held[action.tablets[0]] = action.target
        for tablet, target in [pair for action in plan.actions for pair in action.then]:
            assert tablet > 4 or target not in [held[one] for one in (1, 2, 3, 4) if one != tablet]
            held[tablet] = target
        if not goes:
            return
        view = moved(view, goes)


@settings(max_examples=30)
@given(
    owner=st.lists(st.integers(0, 3), min_size=12, max_size=16),
    sizes=st.lists(st.floats(0.1, 9.0), min_size=24, max_size=24),
    spread=st.sampled_from((1.0, 1.3, 2.0)),
)
def test_no_plan_gives_a_node_more_of_a_table_than_table_spread_allows(
    owner: list[int], sizes: list[float], spread: float
) -> None:
    view = bundle(owner, 4, sizes=[size * GB for size in sizes[: len(owner)]])
    options = BundleOptions(balancer=BALANCER, placement=PlacementOptions(table_spread=spread))
    limit = int(np.ceil(len(owner) / 4 * spread))
    for _ in range(PLANS):
        goes = dict(steps(make_plan(view, options)))
        if not goes:
            return
        before, view = np.bincount(view.tablets.node, minlength=4), moved(view, goes)
        after = np.bincount(view.tablets.node, minlength=4)
        assert (after <= np.maximum(limit, before)).all()
