"""Bundles with hardly any freedom: tiny budgets, one node, pins, zones. Nothing breaks, nothing forbidden is done."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from balancer.planner.bundle_state import StateWord
from balancer.policies.options import BalancerOptions, BudgetOptions, BundleOptions, HeatOptions
from balancer.policies.options import TableOptions as Table
from balancer.policies.plan.plan import make_plan
from balancer.policies.view import BundleView
from tests.support.bundle_views import GB, bundle, small
from tests.support.settling import settle, stands_below, word

pytestmark = pytest.mark.quick

NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
BALANCER = BalancerOptions(enable_cell_balancer=True, enable_tablet_size_balancer=False)
OPTIONS = BundleOptions(balancer=BALANCER, heat=HeatOptions(enable=False))
SEEDS = st.integers(0, 10**6)
BUDGETS = st.builds(
    BudgetOptions,
    moves_per_node=st.integers(1, 2),
    moves_total=st.integers(1, 3),
    bytes_per_window=st.sampled_from([None, 1, int(5 * GB), int(20 * GB)]),
)


def check(view: BundleView, options: BundleOptions) -> BundleView:
    """Runs it to rest, and looks at what it is called; says where everything is then."""
    settled = settle(view, options)
    assert not (word(settled) is StateWord.BALANCED and stands_below(settled, options)), settled.plan
    return settled.view


@settings(max_examples=15, deadline=None, phases=NO_SHRINKING)
@given(SEEDS, BUDGETS)
def test_tiny_budgets(seed: int, budgets: BudgetOptions) -> None:
    check(small(seed), replace(OPTIONS, budgets=budgets))


@settings(max_examples=15, deadline=None, phases=NO_SHRINKING)
@given(SEEDS, BUDGETS, st.sampled_from([0.3, 0.8, 1.0]))
def test_pinned_tablets_stay(seed: int, budgets: BudgetOptions, share: float) -> None:
    view = small(seed)
    pinned = np.random.default_rng(seed).random(len(view.tablets)) < share
    view = replace(view, pinned=frozenset(view.tablets.ids[pinned].tolist()))
    after = check(view, replace(OPTIONS, budgets=budgets))
    assert (after.tablets.node == view.tablets.node)[pinned].all()


@settings(max_examples=15, deadline=None, phases=NO_SHRINKING)
@given(SEEDS, BUDGETS)
def test_nothing_is_brought_outside_of_its_zone(seed: int, budgets: BudgetOptions) -> None:
    view = zoned(small(seed))
    after = check(view, replace(OPTIONS, budgets=budgets, tables={"first": Table(zones=("even",))}))
    table = view.tables[0]
    rows = slice(table.first, table.last)
    before, now = view.tablets.node[rows], after.tablets.node[rows]
    assert (now[before != now] % 2 == 0).all()


def zoned(view: BundleView) -> BundleView:
    """Two tables of half the tablets each; every other node is in another zone."""
    middle = len(view.tablets) // 2
    (table,) = view.tables
    halves = (replace(table, name="first", last=middle), replace(table, name="second", first=middle))
    nodes = tuple(replace(node, zone="odd" if at % 2 else "even") for at, node in enumerate(view.nodes))
    return replace(view, tables=halves, nodes=nodes)


@settings(max_examples=15, deadline=None, phases=NO_SHRINKING)
@given(SEEDS, BUDGETS)
def test_one_node_has_nothing_to_do(seed: int, budgets: BudgetOptions) -> None:
    view = small(seed)
    alone = replace(view, nodes=view.nodes[:1], tablets=replace(view.tablets, node=np.zeros_like(view.tablets.node)))
    plan = make_plan(alone, replace(OPTIONS, budgets=budgets))
    assert (plan.actions, plan.pending_moves, plan.score_before) == ((), 0, 100.0)


def test_a_budget_that_no_tablet_fits_blocks_a_lopsided_bundle() -> None:
    """Else the laws above could hold because nothing is ever below its bound."""
    settled = settle(bundle([0] * 8, 2), replace(OPTIONS, budgets=BudgetOptions(bytes_per_window=1)))
    assert stands_below(settled, OPTIONS)
    assert word(settled) is StateWord.BLOCKED
