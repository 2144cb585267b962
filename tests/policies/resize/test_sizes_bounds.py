"""Between which sizes a table's tablets should be: every rule and each number that users of YT know."""

import pytest

from balancer.policies.options import GB, MB, BalancerOptions, InMemoryMode, TableOptions
from balancer.policies.resize.scope import MAX_TABLETS, SizeBounds, round_half_up, size_bounds

pytestmark = pytest.mark.quick

PLAIN = BalancerOptions()
EXACT = BalancerOptions(min_desired_tablet_size=0)  # the floor out of the way of small figures


def _bounds(
    table: TableOptions, table_bytes: int = 100 * GB, nodes: int = 4, options: BalancerOptions = PLAIN
) -> SizeBounds:
    return size_bounds(options, table, table_bytes, nodes)


def _figures(bounds: SizeBounds) -> tuple[int, int, int]:
    return bounds.min, bounds.desired, bounds.max


def test_defaults_of_a_bundle() -> None:
    assert _figures(_bounds(TableOptions())) == (128 * MB, 10 * GB, 20 * GB)
    assert "bundle's sizes" in _bounds(TableOptions()).source


@pytest.mark.parametrize("mode", [InMemoryMode.COMPRESSED, InMemoryMode.UNCOMPRESSED])
def test_defaults_of_an_in_memory_table(mode: InMemoryMode) -> None:
    bounds = _bounds(TableOptions(in_memory_mode=mode))
    assert _figures(bounds) == (512 * MB, 1 * GB, 2 * GB)
    assert "in-memory" in bounds.source


def test_the_three_sizes_of_a_table_come_before_those_of_its_bundle() -> None:
    own = TableOptions(min_tablet_size=1 * GB, desired_tablet_size=2 * GB, max_tablet_size=4 * GB)
    assert _figures(_bounds(own)) == (1 * GB, 2 * GB, 4 * GB)


@pytest.mark.parametrize(
    "own",
    [
        TableOptions(min_tablet_size=1 * GB, desired_tablet_size=2 * GB),
        TableOptions(min_tablet_size=2 * GB, desired_tablet_size=2 * GB, max_tablet_size=4 * GB),
        TableOptions(min_tablet_size=1 * GB, desired_tablet_size=4 * GB, max_tablet_size=4 * GB),
    ],
)
def test_sizes_of_a_table_that_are_not_three_and_increasing_do_not_count(own: TableOptions) -> None:
    assert _figures(_bounds(own)) == (128 * MB, 10 * GB, 20 * GB)


def test_desired_tablet_count_overrides_every_size() -> None:
    table = TableOptions(
        desired_tablet_count=7, min_tablet_size=1 * GB, desired_tablet_size=2 * GB, max_tablet_size=4 * GB
    )
    bounds = _bounds(table, 100 * GB + 1)
    desired = -(-(100 * GB + 1) // 7)
    assert _figures(bounds) == (desired * 10 // 19, desired, desired * 19 // 10)
    assert "desired_tablet_count = 7" in bounds.source


@pytest.mark.parametrize(("wish", "used"), [(0, 1), (-5, 1), (20000, 10000)])
def test_desired_tablet_count_is_clamped(wish: int, used: int) -> None:
    bounds = _bounds(TableOptions(desired_tablet_count=wish), 50_000_000, options=EXACT)
    assert bounds.desired == 50_000_000 // used


def test_desired_tablet_count_is_not_capped_by_the_number_of_nodes() -> None:
    options = BalancerOptions(tablet_to_cell_ratio=1.0)
    assert _bounds(TableOptions(desired_tablet_count=100), 1000 * GB, 2, options).desired == 10 * GB


def test_too_few_nodes_raise_desired_and_max_but_not_min() -> None:
    options = BalancerOptions(tablet_to_cell_ratio=2.5)
    bounds = _bounds(TableOptions(), 500 * GB, 3, options)  # floor(7.5) tablets
    desired = -(-500 * GB // 7)
    assert _figures(bounds) == (128 * MB, desired, desired * 19 // 10)
    assert "7 tablets" in bounds.source


def test_a_cap_of_exactly_ten_thousand_raises_min_too() -> None:
    bounds = _bounds(TableOptions(), 500_000 * GB, 4)
    assert _figures(bounds) == (50 * GB * 10 // 19, 50 * GB, 50 * GB * 19 // 10)


def test_a_cap_that_is_not_reached_changes_nothing() -> None:
    options = BalancerOptions(tablet_to_cell_ratio=10.0)
    assert _figures(_bounds(TableOptions(), 100 * GB, 1, options)) == (128 * MB, 10 * GB, 20 * GB)


def test_min_tablet_count_lowers_desired_and_min_but_not_max() -> None:
    bounds = _bounds(TableOptions(min_tablet_count=50), 100 * GB)
    assert _figures(bounds) == (128 * MB, 2 * GB, 20 * GB)
    smaller = _bounds(TableOptions(min_tablet_count=1000), 50 * GB)
    desired = 50 * GB // 1000
    assert _figures(smaller) == (desired - 1, desired, 20 * GB)
    assert smaller.min_count == 1000


def test_min_tablet_count_of_an_almost_empty_table_leaves_a_desired_size_of_two_bytes() -> None:
    assert _figures(_bounds(TableOptions(min_tablet_count=10), 5, options=EXACT)) == (1, 2, 20 * GB)


def test_the_floor_under_the_desired_size() -> None:
    bounds = _bounds(TableOptions(desired_tablet_count=100), 100 * MB)
    assert _figures(bounds) == (MB * 10 // 19, 5 * MB, 10 * MB)
    assert "min_desired_tablet_size" in bounds.source


def test_the_floor_keeps_a_larger_max_and_halves_itself_for_min() -> None:
    own = TableOptions(min_tablet_size=3 * MB, desired_tablet_size=4 * MB, max_tablet_size=64 * MB)
    assert _figures(_bounds(own, 1 * GB)) == (5 * MB // 2, 5 * MB, 64 * MB)


@pytest.mark.parametrize(
    ("size", "desired", "count"), [(14, 10, 1), (15, 10, 2), (24, 10, 2), (25, 10, 3), (1, 3, 0), (2, 3, 1), (4, 3, 1)]
)
def test_counts_are_rounded_half_up(size: int, desired: int, count: int) -> None:
    assert round_half_up(size, desired) == count


def test_a_range_is_cut_into_one_to_ten_thousand_tablets() -> None:
    bounds = SizeBounds(1, 10, 20, "")
    assert bounds.count(1) == 1
    assert bounds.count(10**9) == MAX_TABLETS == 10000


def test_bounds_are_inclusive() -> None:
    bounds = SizeBounds(5, 10, 14, "")
    assert [bounds.good(size) for size in (4, 5, 14, 15, 28, 29)] == [False, True, True, True, True, True]
    assert not SizeBounds(9, 10, 11, "").good(13)


def test_an_empty_table_without_a_floor_has_bounds_too() -> None:
    bounds = _bounds(TableOptions(desired_tablet_count=4), 0, options=EXACT)
    assert bounds.desired == 1
    assert bounds.count(0) == 1
