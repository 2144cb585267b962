"""Heat over many rounds: splits go on until no tablet is hot but for single keys, cover all keys, and then stop."""

from bisect import bisect_right

import numpy as np
import pytest

from balancer.policies.keyspace.hash_leaves import POSITIONS, Leaf, uncovered
from balancer.policies.keyspace.keys import HIGHEST, KeyType, encode_key
from balancer.policies.options import BundleOptions, HeatOptions
from balancer.policies.resize.heat import plan_heat
from balancer.policies.view import BundleView, KeySamples, SampleSource, TabletHistory
from tests.support.bundle_views import Tablets, bundle_of

pytestmark = pytest.mark.quick

SEED = 11
LIMIT = 1000.0
OPTIONS = BundleOptions(heat=HeatOptions(max_rows_per_second=LIMIT, max_node_share=1.0))
ROUNDS = 15


def _popularity(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Zipf over keys in no order: 10,000 rows per second in all."""
    weights = 1.0 / np.arange(1, count + 1) ** 0.99
    return np.random.default_rng(SEED).permutation(weights / weights.sum() * 10_000)


def _view(tablets: Tablets, owners: list[int], keys: list[bytes], rates: list[float]) -> BundleView:
    """Every key is sampled with its rate as weight, in the tablet that owns it; all heat is confirmed."""
    count = len(tablets.sizes)
    loads = [0.0] * count
    members: list[list[int]] = [[] for _ in range(count)]
    for key, owner in enumerate(owners):
        loads[owner] += rates[key]
        members[owner].append(key)
    tablets.writes = loads
    samples = {
        place + 1: KeySamples(
            SampleSource.CLIENTS, tuple(keys[key] for key in found), tuple(rates[key] for key in found)
        )
        for place, found in enumerate(members)
    }
    history = {place + 1: TabletHistory(hot_polls=3) for place in range(count)}
    return bundle_of({"t": tablets}, ("a",), samples=samples, history=history)


def test_a_range_table_cools_down_to_its_single_hot_keys() -> None:
    print("seed", SEED)
    rates = _popularity(2000).tolist()
    keys = [encode_key((KeyType.BIGINT,), (key,)) for key in range(len(rates))]
    lowers = [b""]
    for _ in range(ROUNDS):
        owners = [bisect_right(lowers, key) - 1 for key in keys]
        view = _view(Tablets([1.0] * len(lowers), lowers=lowers), owners, keys, rates)
        actions, rejections = plan_heat(view, OPTIONS)
        for action in actions:
            assert action.parts[0].lower in lowers
            lowers += [part.lower for part in action.parts[1:]]
        lowers = sorted(lowers)
        assert len(set(lowers)) == len(lowers)
        if not actions:
            break
    assert not actions
    assert lowers[-1] < HIGHEST
    stuck = {rejection.tablets[0] - 1 for rejection in rejections}
    for place, load in enumerate(view.tablets.write_rate.tolist()):
        assert load <= LIMIT or (place in stuck and owners.count(place) < 100)
    assert len(lowers) < 40


def test_a_hash_table_cools_down_to_its_single_hot_keys() -> None:
    print("seed", SEED)
    rates = _popularity(2000).tolist()
    chance = np.random.default_rng(SEED)
    places = chance.integers(0, POSITIONS, len(rates), np.uint64).tolist()
    keys = [place.to_bytes(8, "big") for place in places]
    shape = [Leaf(1, 0)]
    for _ in range(ROUNDS):
        starts = [leaf.start() for leaf in shape]
        owners = [bisect_right(starts, place) - 1 for place in places]
        view = _view(Tablets([1.0] * len(shape), shape), owners, keys, rates)
        actions, rejections = plan_heat(view, OPTIONS)
        for action in actions:
            shape.remove(view.tablets.leaf(action.tablets[0] - 1))
            shape += [part.leaf for part in action.parts if part.leaf is not None]
        shape.sort(key=Leaf.start)
        assert uncovered(shape) is None
        if not actions:
            break
    assert not actions
    hot = [place for place, load in enumerate(view.tablets.write_rate.tolist()) if load > LIMIT]
    assert {rejection.tablets[0] - 1 for rejection in rejections} == set(hot)
    assert len(shape) < 60
