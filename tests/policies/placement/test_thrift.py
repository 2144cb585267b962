"""The same balance for fewer bytes: what need not move stays, and a smaller tablet goes in a larger one's stead."""

import numpy as np
import pytest

from balancer.policies.options import BalancerOptions, BundleOptions, HeatOptions, PlacementOptions
from balancer.policies.placement.balance import save_bytes
from balancer.policies.placement.problem import build_problem, initial_state, tension
from balancer.policies.view import BundleView, Floats, Ints, NodeCondition, NodeView
from tests.support.bundle_views import GB, bundle, nodes, rough

pytestmark = pytest.mark.quick

OPTIONS = BundleOptions(
    balancer=BalancerOptions(enable_cell_balancer=True, enable_tablet_size_balancer=False),
    heat=HeatOptions(enable=False),
    placement=PlacementOptions(dimensions={"write_rate": 1.0}),
)


def saved(view: BundleView, moves: dict[int, int], kept: tuple[int, ...] = ()) -> list[int]:
    """The owners after these moves (row → node), once bytes were saved; `kept` rows may not move."""
    problem = build_problem(view, OPTIONS)
    state = initial_state(problem)
    for row, node in moves.items():
        state.move(problem, row, node)
    movable = ~np.isin(np.arange(len(problem.ids)), kept)
    save_bytes(problem, state, problem.home, movable, settings=OPTIONS.placement, spread=None)
    return [int(node) for node in state.owner]


def test_a_move_that_is_not_needed_is_not_made() -> None:
    view = bundle([0, 0, 1, 1], 2, writes=[100.0, 2.0, 100.0, 2.0])
    assert saved(view, {1: 1}) == [0, 0, 1, 1]


def test_a_smaller_tablet_with_as_much_load_goes_in_its_stead() -> None:
    view = bundle([0, 0, 0, 1], 2, sizes=[90 * GB, 10 * GB, 50 * GB, 20 * GB], writes=100.0)
    assert saved(view, {0: 1}) == [0, 1, 0, 1]
    assert saved(view, {0: 1}, kept=(1,)) == [0, 0, 1, 1], "the smallest may not move: the next one does"


def test_what_has_to_move_anyway_goes_all_the_way() -> None:
    """One came to make up for one that left: it goes on in its stead, and that one stays."""
    view = bundle([0, 0, 1, 2, 2, 2], 3, sizes=[90 * GB] + [50 * GB] * 5, writes=100.0)
    assert saved(view, {0: 1, 5: 0}, kept=(1, 2, 3, 4)) == [0, 0, 1, 2, 2, 1]


def test_of_two_that_are_nearly_alike_one_goes_all_the_way() -> None:
    """Else a tablet goes to a node from which another, lighter by a hair, goes on to the third."""
    writes = [100.0, 100.0, 101.0, 100.0, 100.0, 100.0, 100.0, 100.0, 320.0]
    view = bundle([0, 0, 0, 1, 1, 1, 2, 2, 3], 4, writes=writes)
    assert saved(view, {2: 1, 3: 2}) == [0, 0, 2, 1, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("fifth", [NodeCondition.ACTIVE, NodeCondition.DRAINING])
def test_the_worst_node_does_not_become_worse_by_a_hair(fifth: NodeCondition) -> None:
    """A node that is being emptied is not the worst, however much it still has."""
    last = 290.0 if fifth is NodeCondition.ACTIVE else 1.0
    writes = [100.0, 100.0, 101.0, 100.0, 100.0, 99.0, 100.0, 101.0, 290.0, last]
    view = bundle([0, 0, 0, 1, 1, 1, 2, 2, 3, 4], (*nodes(4), NodeView("n4", fifth)), writes=writes)
    assert saved(view, {2: 1, 3: 2}) == [0, 0, 1, 2, 1, 1, 2, 2, 3, 4]


@pytest.mark.parametrize("seed", range(8))
def test_no_node_becomes_tighter_than_the_threshold_or_the_worst_and_else_by_a_hair_only(seed: int) -> None:
    view = rough(60, 5, 1.0, seed)
    problem = build_problem(view, OPTIONS)
    state, chance = initial_state(problem), np.random.default_rng(seed + 100)
    for row in range(60):
        state.move(problem, row, int(chance.integers(0, 5)))
    before, bytes_before = tension(problem, state.held), _copied(problem.sizes, problem.home, state.owner)
    save_bytes(problem, state, problem.home, np.ones(60, bool), settings=OPTIONS.placement, spread=None)
    limits = np.maximum(np.minimum(before + 0.005, before.max()), OPTIONS.placement.stop_threshold)
    assert (tension(problem, state.held) <= limits + 1e-9).all()
    assert _copied(problem.sizes, problem.home, state.owner) < bytes_before


def _copied(sizes: Floats, home: Ints, owner: Ints) -> float:
    return float(sizes[home != owner].sum())
