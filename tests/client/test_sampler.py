"""Key samples: in proportion to weight, bounded, readable by the planner, and off by one word."""

import time
from collections import Counter
from uuid import uuid4

import pytest

from balancer.client import Router
from balancer.client.keys.routes import Routes
from balancer.client.observing import MOST_CROWD, Reservoir, Sampler
from balancer.directory.notes import SAMPLES, SLOTS
from balancer.directory.open import open_directory
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.policies.keyspace.hash_leaves import position
from balancer.policies.keyspace.hashing import partition_hash
from balancer.policies.keyspace.keys import encode_key
from tests.support.directories import HASHED, RANGED, fill
from tests.support.shards import Shards


def test_a_key_is_kept_in_proportion_to_its_weight() -> None:
    kept: Counter[object] = Counter()
    for _ in range(2000):
        reservoir = Reservoir(1)
        for number, weight in ((1, 1.0), (2, 3.0), (3, 6.0)):
            reservoir.add(number, weight, True)
        ((key, share, _),) = reservoir.samples()
        kept[key] += 1
        assert share == pytest.approx(10.0)
    assert 100 < kept[1] < 310  # 200 expected; five standard deviations are 67
    assert 490 < kept[2] < 710
    assert 1080 < kept[3] < 1320


def test_however_many_keys_are_used_few_are_kept() -> None:
    reservoir = Reservoir(40)
    for key in range(10_000):
        reservoir.add(key, 2.0, key % 2 == 0)
    samples = reservoir.samples()
    assert len(samples) == 40
    assert sum(weight for _, weight, _ in samples) == pytest.approx(20_000)


def test_the_note_holds_positions_weights_and_kinds(routes: Routes) -> None:
    sampler = Sampler(routes)
    sampler.note("orders", 5, 1.0, True)
    sampler.note("events", 7, 2.0, False)
    sampler.note("nowhere", 7, 1.0, True)
    sampler.note("events", "seven", 0.0, True)
    sampler.publish()
    ((client, note),) = routes.directory.published(SAMPLES).items()
    hashed = position(partition_hash(HASHED.key_types, (5,)))
    assert note["tables"] == {
        str(HASHED.id): [[hashed.to_bytes(8, "big").hex(), 1.0, True]],
        str(RANGED.id): [[encode_key(RANGED.key_types, (7,)).hex(), 2.0, False]],
    }
    assert abs(note["at"] - time.time()) < 60
    assert client in SLOTS
    sampler.close()
    sampler.close()
    assert routes.directory.published(SAMPLES) == {}


def test_the_thread_publishes_by_itself(routes: Routes) -> None:
    sampler = Sampler(routes, period=0.05)
    deadline = time.monotonic() + 10
    while not routes.directory.published(SAMPLES):
        sampler.note("orders", 1, 1.0, True)
        time.sleep(0.01)
        assert time.monotonic() < deadline
    sampler.close()


def test_transactions_are_sampled_unless_that_is_switched_off(shards: Shards) -> None:
    with Router.connect(shards.url) as router:
        with router.transaction("orders", 5, read_only=True):
            pass
        assert router._sampler is not None
        router._sampler.publish()
        ((_, note),) = shards.directory.published(SAMPLES).items()
        assert [writing for _, _, writing in note["tables"]["1"]] == [False]
    with Router.connect(shards.url, samples=False) as router:
        assert router._sampler is None


def test_clients_that_share_a_note_write_it_no_oftener_than_one_alone(zookeeper: ZooKeeperServer) -> None:
    url = f"zk://{zookeeper.address}/crowd-{uuid4().hex}"
    with open_directory(url) as directory:
        fill(directory)
    routes = Routes.open(url)
    sampler = Sampler(routes, period=1000.0)
    try:
        for others, crowd in ((0, 1), (0, 1), (4, 5), (0, 1), (10 * MOST_CROWD, MOST_CROWD)):
            for _ in range(others):
                routes.directory.publish(SAMPLES, sampler._note, {})
            sampler.note("orders", 5, 1.0, True)
            sampler.publish()
            assert sampler.pause == 1000.0 * crowd
    finally:
        sampler.close()
        routes.close()
