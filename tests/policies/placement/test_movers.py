"""YT's three movers decide as YT does, each behind its switch."""

from dataclasses import replace

import numpy as np
import pytest

from balancer.policies.options import (
    BalancerOptions,
    BundleOptions,
    GroupOptions,
    InMemoryMode,
    Mover,
    PlacementOptions,
)
from balancer.policies.options import TableOptions as Table
from balancer.policies.placement.movers import quotas
from balancer.policies.placement.problem import build_problem
from balancer.policies.plan.wanted import Moves, plan_moves
from balancer.policies.view import BundleView, NodeView, TabletHistory
from tests.support.bundle_views import GB, bundle

pytestmark = pytest.mark.quick

IN_MEMORY = Table(in_memory_mode=InMemoryMode.UNCOMPRESSED)


def owners(view: BundleView, options: BundleOptions) -> list[int]:
    return [int(at) for at in run(view, options).after.owner]


def run(view: BundleView, options: BundleOptions) -> Moves:
    return plan_moves(build_problem(view, options), options)


def in_memory(sizes: list[int], owner: list[int], of: int) -> BundleView:
    figures = [size * GB for size in sizes]
    return bundle(owner, of, sizes=figures, memory=figures)


def test_in_memory_does_nothing_at_the_hard_threshold() -> None:
    """(20 - 17) / 20 is exactly 0.15."""
    view = in_memory([10, 10, 10, 7], [0, 0, 1, 1], 2)
    assert owners(view, BundleOptions(tables={"t": IN_MEMORY})) == [0, 0, 1, 1]


def test_in_memory_moves_the_first_tablets_of_the_fullest_node_to_the_emptiest() -> None:
    view = in_memory([4, 4, 4, 4, 4, 4], [0, 0, 0, 0, 1, 1], 3)
    assert owners(view, BundleOptions(tables={"t": IN_MEMORY})) == [2, 2, 0, 0, 1, 1]


def test_in_memory_does_not_move_a_tablet_as_large_as_the_difference() -> None:
    view = in_memory([10, 10], [0, 0], 2)
    assert owners(view, BundleOptions(tables={"t": IN_MEMORY})) == [1, 0]
    view = in_memory([10], [0], 2)
    assert owners(view, BundleOptions(tables={"t": IN_MEMORY})) == [0]


def test_in_memory_stops_at_the_soft_threshold() -> None:
    options = BundleOptions(
        balancer=BalancerOptions(soft_in_memory_cell_balance_threshold=0.5), tables={"t": IN_MEMORY}
    )
    view = in_memory([1] * 10 + [1] * 4, [0] * 10 + [1] * 4, 2)
    moved = owners(view, options)
    assert moved.count(0) == 9


def test_in_memory_is_behind_its_switch() -> None:
    options = BundleOptions(balancer=BalancerOptions(enable_in_memory_cell_balancer=False), tables={"t": IN_MEMORY})
    assert owners(in_memory([4] * 4, [0] * 4, 2), options) == [0] * 4


def test_in_memory_respects_a_nodes_memory() -> None:
    nodes = [NodeView("a", memory=100 * GB, weight=2.0), NodeView("b", memory=5 * GB)]
    view = bundle([0] * 6, nodes, sizes=4 * GB, memory=4 * GB)
    assert owners(view, BundleOptions(tables={"t": IN_MEMORY})).count(1) == 1


COUNT = BundleOptions(
    balancer=BalancerOptions(enable_cell_balancer=True), placement=PlacementOptions(ordinary_mover=Mover.COUNT)
)


def test_ordinary_gives_every_node_an_equal_number_and_the_fullest_keep_the_rest() -> None:
    moved = owners(bundle([0] * 6 + [1] * 3 + [2], 3), COUNT)
    assert [moved.count(node) for node in range(3)] == [4, 3, 3]


def test_ordinary_evens_out_each_table_on_its_own() -> None:
    view = bundle([0, 0, 0, 0, 1, 1, 1, 1], 2, tables=(("x", 4), ("y", 4)))
    moved = owners(view, COUNT)
    assert [moved[:4].count(0), moved[4:].count(0)] == [2, 2]


def test_ordinary_is_off_unless_it_is_switched_on() -> None:
    options = replace(COUNT, balancer=BalancerOptions())
    assert owners(bundle([0] * 6, 3), options) == [0] * 6


def test_ordinary_moves_the_smallest_tablets() -> None:
    moved = owners(bundle([0] * 4, 2, sizes=[9 * GB, 1 * GB, 8 * GB, 2 * GB]), COUNT)
    assert moved == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("count", "weights", "expected"),
    [
        ([6, 3, 1], [1, 1, 1], [4, 3, 3]),
        ([0, 0, 10], [1, 1, 1], [3, 3, 4]),
        ([5, 5, 0], [1, 1, 0], [5, 5, 0]),
        ([9, 0, 0], [1, 1, 2], [3, 2, 4]),
    ],
)
def test_quotas(count: list[int], weights: list[float], expected: list[int]) -> None:
    found = quotas(np.array(count), np.array(weights, dtype=np.float64), sum(count))
    assert found.tolist() == expected


def metric(**settings: object) -> BundleOptions:
    group = GroupOptions(metric="write_rate", **settings)  # type: ignore[arg-type]
    return BundleOptions(balancer=BalancerOptions(groups={"hot": group}), tables={"t": Table(group="hot")})


def test_by_metric_takes_the_move_with_the_largest_gain() -> None:
    """2t(src - dst - t) for t in 50, 30, 20 with a difference of 100 is largest for 50."""
    view = bundle([0, 0, 0, 1], 2, writes=[50.0, 30.0, 20.0, 0.0])
    assert owners(view, metric()) == [1, 0, 0, 1]


def test_by_metric_waits_for_the_deviation_threshold() -> None:
    view = bundle([0, 0, 0, 1], 2, writes=[50.0, 2.0, 2.0, 50.0])
    assert owners(view, metric()) == [0, 0, 0, 1]
    thresholds = metric(node_deviation_threshold=0.05, cell_deviation_threshold=0.05)
    assert owners(view, thresholds) == [0, 1, 0, 1]


def test_by_metric_stops_at_max_action_count() -> None:
    view = bundle([0] * 20, 4, writes=10.0)
    moved = owners(view, metric(max_action_count=3))
    assert sum(node != 0 for node in moved) == 3


def two_tables(**settings: object) -> BundleOptions:
    """Tables t and u in one group."""
    group = GroupOptions(metric="write_rate", **settings)  # type: ignore[arg-type]
    tables = {"t": Table(group="hot"), "u": Table(group="hot")}
    return BundleOptions(balancer=BalancerOptions(groups={"hot": group}), tables=tables)


def test_by_metric_a_table_may_be_spread_by_itself() -> None:
    """Together the loads are even already: table t is on node 0 only, table u on node 1 only."""
    view = bundle([0] * 4 + [1] * 4, 2, (("t", 4), ("u", 4)), writes=10.0)
    assert owners(view, two_tables()) == [0] * 4 + [1] * 4
    found = owners(view, two_tables(per_table_uniform=True))
    assert (sum(found[:4]), sum(found[4:])) == (2, 2)


def test_by_metric_tables_that_are_spread_by_themselves_share_the_actions() -> None:
    view = bundle([0] * 4 + [1] * 4, 2, (("t", 4), ("u", 4)), writes=10.0)
    found = owners(view, two_tables(per_table_uniform=True, max_action_count=3))
    assert (sum(found[:4]), sum(found[4:])) == (2, 3)


def test_by_metric_a_table_may_stay_out_of_it() -> None:
    view = bundle([0, 0, 0, 1], 2, writes=[50.0, 30.0, 20.0, 0.0])
    options = metric()
    off = replace(options, tables={"t": Table(group="hot", enable_parameterized=False)})
    assert owners(view, off) == [0, 0, 0, 1]


def test_in_memory_tables_that_name_no_group_are_in_the_bundles_group_for_them() -> None:
    options = BundleOptions(
        balancer=BalancerOptions(
            groups={"hot": GroupOptions(metric="write_rate"), "own": GroupOptions()}, default_in_memory_group="hot"
        ),
        tables={
            "t": Table(in_memory_mode=InMemoryMode.COMPRESSED),
            "own": Table(in_memory_mode=InMemoryMode.COMPRESSED, group="own"),
            "disk": Table(),
        },
    )
    assert [options.group_name(name) for name in ("t", "own", "disk")] == ["hot", "own", "default"]
    view = bundle([0, 0, 0, 1], 2, writes=[50.0, 30.0, 20.0, 0.0])
    assert owners(view, options) == [1, 0, 0, 1]


def test_moves_fill_memory_up_to_the_safe_ratio_only() -> None:
    nodes = (NodeView("n0"), NodeView("n1", memory=10 * GB))
    view = replace(in_memory([4, 4, 4, 4], [0] * 4, 2), nodes=nodes)
    for safe, moved in ((0.8, 2), (0.79, 1)):
        balancer = BalancerOptions(safe_used_tablet_static_ratio=safe)
        assert sum(owners(view, BundleOptions(balancer=balancer, tables={"t": IN_MEMORY}))) == moved


def test_by_metric_ignores_gains_below_the_relative_improvement() -> None:
    view = bundle([0, 0, 0, 1, 1], 2, writes=[100.0, 100.0, 1.0, 100.0, 70.0])
    assert owners(view, metric(min_relative_metric_improvement=0.1)) == [0, 0, 0, 1, 1]


def test_by_metric_rests_after_an_action() -> None:
    view = bundle([0, 0, 0, 1], 2, writes=[50.0, 30.0, 20.0, 0.0])
    recent = replace(view, history={4: TabletHistory(last_migrated=view.now - 60)})
    assert owners(recent, metric()) == [0, 0, 0, 1]


def test_each_mover_finds_nothing_after_itself() -> None:
    for view, options in (
        (in_memory([7, 3, 9, 2, 8, 1, 6], [0] * 7, 3), BundleOptions(tables={"t": IN_MEMORY})),
        (bundle([0] * 11, 4), COUNT),
        (bundle([0] * 9, 3, writes=[9.0, 1.0, 7.0, 3.0, 8.0, 2.0, 4.0, 6.0, 5.0]), metric()),
    ):
        once = owners(view, options)
        again = replace(view, tablets=replace(view.tablets, node=np.array(once)))
        assert owners(again, options) == once
