"""Splits do not starve moves, nor moves splits, nor tables each other."""

from dataclasses import replace

import numpy as np
import pytest

from balancer.policies.options import BalancerOptions, BudgetOptions, BundleOptions, HeatOptions
from balancer.policies.plan.plan import by_need, make_plan
from balancer.policies.resize.sizes import MOST_OUTLIERS, plan_sizes
from balancer.policies.simulator.scenario import parse_scenario
from balancer.policies.simulator.simulator import simulate
from balancer.policies.view import Action, ActionKind, BundleView, InFlight
from tests.support.bundle_views import GB, bundle, in_tables

pytestmark = pytest.mark.quick

OPTIONS = BundleOptions(balancer=BalancerOptions(enable_cell_balancer=True), heat=HeatOptions(enable=False))
# n0 has far too much of everything, and every node has tablets that are too large.
CROWDED = bundle(
    [0] * 12 + [0] * 20 + [1, 2, 3, 4, 5],
    6,
    sizes=[40 * GB] * 12 + [10 * GB] * 20 + [40 * GB] * 5,
    writes=[1.0] * 12 + [100.0] * 20 + [1.0] * 5,
)
SHARING = (ActionKind.MOVE, ActionKind.SPLIT)
TICK = 120.0
STORY = """
run 4h
tick 2m
rate 500MB
set balancer.enable_cell_balancer true
set heat.enable false
nodes n1..n6 disk=20TB
table big hash 64 size=1920GB
table orders hash 32 size=320GB writes=3200 on=n1
"""


def kinds(view: BundleView, options: BundleOptions = OPTIONS) -> list[str]:
    return [str(action.kind) for action in make_plan(view, options).actions]


def test_splits_and_moves_share_the_slots() -> None:
    found = kinds(replace(CROWDED, reshaped_last=True))
    assert sorted(found) == ["move", "split", "split", "split"], "all moves leave n0, which has one slot"
    wide = replace(OPTIONS, budgets=BudgetOptions(moves_per_node=4))
    assert sorted(kinds(CROWDED, wide)) == ["move", "move", "split", "split"]


def test_what_is_not_wanted_by_one_kind_is_there_for_the_other() -> None:
    quiet = replace(OPTIONS, balancer=BalancerOptions(enable_cell_balancer=False))
    assert kinds(CROWDED, quiet) == ["split"] * 4
    small = replace(CROWDED, tablets=replace(CROWDED.tablets, sizes=CROWDED.tablets.sizes / 4))
    many = replace(OPTIONS, budgets=BudgetOptions(moves_per_node=4))
    assert kinds(small, many) == ["move"] * 4


def test_one_slot_is_used_in_turn() -> None:
    one = replace(OPTIONS, budgets=BudgetOptions(moves_total=1))
    assert kinds(CROWDED, one) == ["split"]
    assert kinds(replace(CROWDED, reshaped_last=True), one) == ["move"]


def test_a_node_that_a_move_waits_for_is_kept_free_for_it() -> None:
    """On two nodes each with splits to do, one of them would always be busy: a move would wait for ever."""
    view = bundle([0] * 6 + [1] * 2, 2, sizes=[40 * GB] * 2 + [10 * GB] * 4 + [40 * GB] + [1 * GB])
    running = InFlight("m1", (7,), "n1", "n1")
    plan = make_plan(replace(view, in_flight=(running,), reshaped_last=True), OPTIONS)
    assert not plan.actions, "n0 is free, and has splits to do"
    waiting = [rejection for rejection in plan.rejections if rejection.kind is ActionKind.SPLIT]
    assert {rejection.code for rejection in waiting if rejection.tablets != (7,)} == {"moves-per-node"}
    assert any("n0 is kept free for a migration that has waited for it longer" in one.reason for one in waiting)
    later = make_plan(replace(view, reshaped_last=True), OPTIONS)
    assert [str(action.kind) for action in later.actions] == ["move"]


def test_the_table_with_the_most_need_goes_first_whatever_its_name() -> None:
    tables = [("a", 4), ("b", 4)]
    sizes = [30 * GB, 10 * GB, 10 * GB, 10 * GB, 200 * GB, 10 * GB, 10 * GB, 10 * GB]
    view = bundle([0, 1, 2, 3] * 2, 4, tables, sizes=sizes)
    one = replace(OPTIONS, budgets=BudgetOptions(moves_total=1), balancer=BalancerOptions())
    assert [action.table for action in make_plan(view, one).actions] == ["b"]


def test_merges_and_splits_come_in_turn_each_in_the_order_of_need() -> None:
    def action(kind: ActionKind, tablets: int, count: int, size: float) -> Action:
        return Action(kind, f"{kind}{tablets}{count}", tuple(range(tablets)), "", "", size=size, count=count)

    small_split, large_split = action(ActionKind.SPLIT, 1, 2, 25.0), action(ActionKind.SPLIT, 1, 8, 90.0)
    two, five = action(ActionKind.MERGE, 2, 1, 1.0), action(ActionKind.MERGE, 5, 1, 2.0)
    assert by_need([small_split, two, large_split, five]) == [five, large_split, two, small_split]


def test_nothing_waits_for_ever_while_there_is_budget() -> None:
    """64 tablets are too large, and n1 has all of another table: of both kinds something starts every few ticks."""
    story = simulate(parse_scenario(STORY))
    starts = {kind: [now for now, action in story.started if action.kind is kind] for kind in SHARING}
    assert len(starts[ActionKind.SPLIT]) >= 64
    assert len(starts[ActionKind.MOVE]) >= 20
    waits = {kind: max(np.diff([0.0, *times])) / TICK for kind, times in starts.items()}
    assert max(waits.values()) <= 4, waits
    assert min(story.samples[-1].loads.values()) > 0.9, "and in the end all is done"


def test_a_plan_looks_at_so_many_outliers_and_the_largest_are_among_them() -> None:
    count = 3 * MOST_OUTLIERS
    sizes = [25 * GB + at * 1e6 for at in range(count)]
    view = in_tables(bundle([at % 4 for at in range(count)], 4, sizes=sizes))
    found = plan_sizes(view, OPTIONS)
    looked_at = {tablet for action in found.actions for tablet in action.tablets}
    looked_at |= {tablet for one in found.rejections if one.code != "later" for tablet in one.tablets}
    assert len(looked_at) <= MOST_OUTLIERS
    assert int(view.tablets.ids[-1]) in looked_at
    later = [one.reason for one in found.rejections if one.code == "later"]
    assert len(later) == 3
    left = sum(int(reason.split()[0]) for reason in later)
    assert left + len(looked_at) == count


def test_small_outliers_have_their_turn_minute_by_minute() -> None:
    count = 2 * MOST_OUTLIERS
    view = in_tables(bundle([0] * count, 1, sizes=1e6), each=MOST_OUTLIERS)
    options = replace(OPTIONS, heat=HeatOptions(enable=False))
    seen: set[int] = set()
    for minute in range(4):
        found = plan_sizes(replace(view, now=60.0 * minute), options)
        seen |= {tablet for action in found.actions for tablet in action.tablets}
    assert len(seen) == count
