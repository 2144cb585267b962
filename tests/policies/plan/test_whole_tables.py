"""Whole tables are balanced like any tablet, and never cut, however large and hot they are."""

import pytest

from balancer.policies.keyspace.keys import KeyType
from balancer.policies.options import BalancerOptions, BundleOptions, HeatOptions
from balancer.policies.plan.plan import make_plan
from balancer.policies.resize.sizes import double
from balancer.policies.view import ActionKind, BundleView, TabletHistory
from tests.support.bundle_views import GB, Tablets, bundle_of, leaves

pytestmark = pytest.mark.quick

OPTIONS = BundleOptions(balancer=BalancerOptions(enable_cell_balancer=True), heat=HeatOptions())


def four_tables(*, whole: bool) -> BundleView:
    """All on one of two nodes: larger than a tablet should be, and one of them with most of the load."""
    names = ("users", "settings", "wiki", "mail")
    tables = {
        name: Tablets(
            [30 * GB],
            leaves(1),
            writes=9000.0 if name == "mail" else 10.0,
            key_types=() if whole else (KeyType.BIGINT,),
        )
        for name in names
    }
    return bundle_of(tables, history={4: TabletHistory(hot_polls=9)})


def test_they_move_and_are_not_split() -> None:
    plan = make_plan(four_tables(whole=True), OPTIONS)
    assert {action.kind for action in plan.actions} == {ActionKind.MOVE}
    assert {action.kind for action in make_plan(four_tables(whole=False), OPTIONS).actions} >= {ActionKind.SPLIT}


def test_a_hot_one_is_told_why_it_stays_in_one_piece() -> None:
    plan = make_plan(four_tables(whole=True), OPTIONS)
    told = [found.reason for found in plan.rejections if found.code == "whole-table"]
    assert len(told) == 1
    assert told[0].endswith("but mail is a whole table, which is never split")


def test_an_order_to_double_one_is_refused() -> None:
    view = four_tables(whole=True)
    found = double(view, OPTIONS, view.tables[0])
    assert (found.actions, [rejection.code for rejection in found.rejections]) == ((), ["whole-table"])
