"""Sharding functions: who moves when a node comes or goes, and whether everybody gets his share."""

import jump
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.policies.options import Placement
from balancer.policies.placement.sharding import FUNCTIONS, SLOTS, Node, UInts, compare, place, present

pytestmark = pytest.mark.quick

SEED = 5
EVEN: list[Node] = [(f"node-{number}", 1.0) for number in range(8)]
UNEVEN: list[Node] = [(name, 1.0 + place % 3) for place, (name, _) in enumerate(EVEN)]
CONSISTENT = [Placement.RENDEZVOUS, Placement.RING, Placement.JUMP]


def _keys(count: int = 60_000) -> UInts:
    return np.random.default_rng(SEED).integers(0, 1 << 64, count, np.uint64)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("nodes", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_every_node_gets_its_share_by_weight(function: Placement, nodes: list[Node]) -> None:
    counts = np.bincount(place(function, _keys(), nodes), minlength=len(nodes))
    weights = np.array([weight for _, weight in nodes])
    tolerance = 0.25 if function is Placement.RING else 0.05
    assert counts / counts.sum() == pytest.approx(weights / weights.sum(), rel=tolerance)


@pytest.mark.parametrize("function", CONSISTENT)
@pytest.mark.parametrize("nodes", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("weight", [1.0, 0.5, 3.0])
def test_keys_move_only_to_a_node_that_comes(function: Placement, nodes: list[Node], weight: float) -> None:
    before, after = place(function, _keys(), nodes), place(function, _keys(), [*nodes, ("new", weight)])
    moved = before != after
    assert set(after[moved].tolist()) == {len(nodes)}
    due = weight / (weight + sum(other for _, other in nodes))
    assert moved.mean() == pytest.approx(due, rel=0.3)


@pytest.mark.parametrize("function", CONSISTENT)
def test_only_the_keys_of_a_node_that_goes_move(function: Placement) -> None:
    before, after = place(function, _keys(), UNEVEN), place(function, _keys(), UNEVEN[:-1])
    stayed = before != len(UNEVEN) - 1
    assert (before[stayed] == after[stayed]).all()


@pytest.mark.parametrize("function", [Placement.RENDEZVOUS, Placement.RING])
def test_any_node_may_go_and_the_order_of_nodes_does_not_matter(function: Placement) -> None:
    names = np.array([name for name, _ in UNEVEN])
    before = names[place(function, _keys(), UNEVEN)]
    fewer = UNEVEN[:2] + UNEVEN[3:]
    after = np.array([name for name, _ in fewer])[place(function, _keys(), fewer)]
    assert set(before[before != after].tolist()) == {UNEVEN[2][0]}
    backwards = UNEVEN[::-1]
    assert (np.array([name for name, _ in backwards])[place(function, _keys(), backwards)] == before).all()


def test_modulo_is_the_plain_remainder_where_all_weigh_the_same() -> None:
    assert (place(Placement.MODULO, _keys(), EVEN) == _keys() % np.uint64(8)).all()


def test_modulo_and_fibonacci_spread_vbuckets_in_sequence_evenly() -> None:
    vbuckets = np.arange(1024, dtype=np.uint64)
    for function, most in ((Placement.MODULO, 0), (Placement.FIBONACCI, 8)):
        counts = np.bincount(place(function, vbuckets, EVEN), minlength=8)
        assert np.abs(counts - 128).max() <= most


def test_jump_is_the_published_function() -> None:
    keys = _keys(2000)
    expected = [jump.hash(key, SLOTS * len(EVEN)) // SLOTS for key in keys.tolist()]
    assert place(Placement.JUMP, keys, EVEN).tolist() == expected


@pytest.mark.parametrize("function", FUNCTIONS)
def test_one_node_gets_everything_and_nothing_is_placed_nowhere(function: Placement) -> None:
    assert set(place(function, _keys(100), [("only", 0.01)]).tolist()) == {0}
    assert len(place(function, np.empty(0, np.uint64), EVEN)) == 0


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(list(FUNCTIONS)),
    st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=50),
    st.lists(st.floats(0.01, 100), min_size=1, max_size=12),
)
def test_places_are_those_of_nodes_and_the_same_each_time(
    function: Placement, numbers: list[int], weights: list[float]
) -> None:
    nodes = [(f"n{at}", weight) for at, weight in enumerate(weights)]
    keys = np.array(numbers, np.uint64)
    found = place(function, keys, nodes)
    assert ((found >= 0) & (found < len(nodes))).all()
    assert (found == place(function, keys, nodes)).all()
    assert [int(place(function, keys[at : at + 1], nodes)[0]) for at in range(len(keys))] == found.tolist()


def test_what_cannot_be_placed_is_refused() -> None:
    with pytest.raises(ValueError, match="no node"):
        place(Placement.RING, _keys(10), [])
    with pytest.raises(ValueError, match="weight 0"):
        place(Placement.RING, _keys(10), [("a", 1.0), ("b", 0.0)])
    with pytest.raises(ValueError, match="not a sharding function"):
        place(Placement.BALANCED, _keys(10), EVEN)


def test_comparison_has_the_figures_of_the_literature() -> None:
    found = {function: compare(function, _keys(), EVEN, ("new", 1.0)) for function in FUNCTIONS}
    for function in CONSISTENT:
        assert found[function].stay_when_one_comes == pytest.approx(8 / 9, abs=0.03)
        assert found[function].stay_when_one_goes == pytest.approx(7 / 8, abs=0.03)
    modulo = found[Placement.MODULO]
    assert modulo.stay_when_one_comes == pytest.approx(1 / 9, abs=0.01)
    assert (modulo.most_when_one_comes, modulo.most_when_one_goes) == pytest.approx((8 / 9, 7 / 8))
    assert modulo.keys_per_node == 7500
    assert 0 < modulo.deviation < 200
    assert 1 <= modulo.fullest < 1.05
    assert compare(Placement.JUMP, _keys(100), [("only", 1.0)], ("new", 1.0)).stay_when_one_goes == 0


def test_present_placement_counts_only_what_is_on_the_nodes() -> None:
    found = present([0, 0, 0, 1, -1], [("a", 1.0), ("b", 1.0)])
    assert (found.keys_per_node, found.deviation, found.fullest) == (2.0, 1.0, 1.5)
