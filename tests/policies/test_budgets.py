"""Budgets: what is in the way of an action, with its numbers."""

from dataclasses import replace

import pytest

from balancer.policies.budgets import Admission, moves_at_once
from balancer.policies.options import AUTO, MB, BudgetOptions, BundleOptions
from balancer.policies.reasons import Left
from balancer.policies.view import Action, ActionKind, InFlight
from tests.support.bundle_views import GB, bundle

pytestmark = pytest.mark.quick

VIEW = bundle([0, 0, 1], 3)


def move(size: float = 10 * GB, source: str = "n0", target: str = "n1") -> Action:
    return Action(ActionKind.MOVE, "t", (1,), "", "load", source, target, size=size)


def test_running_migrations_count_in_total() -> None:
    flying = tuple(InFlight(f"m{at}", (at,), f"x{at}", f"y{at}") for at in range(4))
    admission = Admission(replace(VIEW, in_flight=flying), BundleOptions())
    assert admission.obstacle(move()) is Left.MOVES_TOTAL
    assert admission.explain(move(), Left.MOVES_TOTAL) == "4 migrations run or start, and moves_total is 4"


def test_running_migrations_count_on_both_nodes() -> None:
    admission = Admission(replace(VIEW, in_flight=(InFlight("m", (3,), "n1", "n2"),)), BundleOptions())
    assert admission.obstacle(move()) is Left.MOVES_PER_NODE
    assert admission.explain(move(), Left.MOVES_PER_NODE) == "n1 takes part in 1 migration, and moves_per_node is 1"
    assert admission.obstacle(move(target="n3")) is None


def test_a_split_counts_once_on_its_node() -> None:
    admission = Admission(VIEW, BundleOptions(budgets=BudgetOptions(moves_per_node=2)))
    admission.admit(replace(move(target="n0"), kind=ActionKind.SPLIT))
    assert admission.free_slots("n0") == 1


def test_bytes_per_window_includes_what_was_moved_before() -> None:
    options = BundleOptions(budgets=BudgetOptions(bytes_per_window=int(25 * GB)))
    admission = Admission(replace(VIEW, bytes_moved_in_window=10 * GB), options)
    assert admission.obstacle(move(15 * GB)) is None
    assert admission.obstacle(move(16 * GB)) is Left.BYTES_PER_WINDOW
    assert "10.0 GB of the 25.0 GB" in admission.explain(move(16 * GB), Left.BYTES_PER_WINDOW)


def test_only_what_ends_before_the_window_closes_is_started() -> None:
    view = replace(VIEW, window_seconds_left=100.0, measured_bytes_per_second=100.0 * MB)
    admission = Admission(view, BundleOptions())
    assert admission.obstacle(move(9 * GB)) is None
    assert admission.obstacle(move(10 * GB)) is Left.WINDOW_TOO_SHORT
    assert admission.explain(move(10 * GB), Left.WINDOW_TOO_SHORT) == (
        "10.0 GB take 102 s at the rate seen, the window leaves 100 s"
    )


def test_without_a_measured_rate_the_expected_one_counts() -> None:
    options = BundleOptions(budgets=BudgetOptions(expected_bytes_per_second=1.0 * GB))
    assert Admission(replace(VIEW, window_seconds_left=10.0), options).bytes_that_fit == 10 * GB


@pytest.mark.parametrize(
    ("nodes", "per_node", "rate", "expected"),
    [
        (20, 1, 20 * MB, 10),  # each needs two nodes
        (20, 2, 20 * MB, 20),
        (3, 1, 20 * MB, 1),
        (1, 1, 20 * MB, 1),
        (200, 1, 50 * MB, 8),  # all of them go through one process
        (200, 1, 4000 * MB, 1),
        (200, 1, None, 12),  # nothing was measured yet: as expected
    ],
)
def test_auto_is_what_nodes_and_one_process_can_carry(
    nodes: int, per_node: int, rate: float | None, expected: int
) -> None:
    view = replace(bundle([0], nodes), measured_bytes_per_second=rate)
    options = BundleOptions(budgets=BudgetOptions(moves_total=AUTO, moves_per_node=per_node))
    assert moves_at_once(view, options) == expected
    flying = tuple(InFlight(f"m{at}", (at,), f"x{at}", f"y{at}") for at in range(expected))
    admission = Admission(replace(view, in_flight=flying), options)
    assert admission.obstacle(move()) is Left.MOVES_TOTAL
    assert admission.explain(move(), Left.MOVES_TOTAL).endswith(f"moves_total is {expected} (auto)")
