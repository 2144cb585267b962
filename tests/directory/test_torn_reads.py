"""Whole loads while somebody commits at full speed, page splits and merges included: never a torn view."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from operator import itemgetter, lt
from uuid import uuid4

import pytest

from balancer.directory.model import Counter
from balancer.directory.open import open_directory
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.backend import PagedDirectory
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.policies.keyspace.keys import HIGHEST, LOWEST
from tests.support.commands import started
from tests.support.directories import RANGED, frame, ranges
from tests.support.writing import PARTS

TABLETS = 29_997
THIRD = TABLETS // 3
THIRDS = [itemgetter(*range(part * THIRD + 1, (part + 1) * THIRD + 1)) for part in range(3)]


@contextmanager
def writer(url: str, seed: int) -> Iterator[None]:
    with started("-m", "tests.support.writing", url, str(seed)) as process:
        yield
        assert process.poll() is None, "the writer has ended early"


def check_whole(view: Snapshot) -> None:
    """Pages tile the key space, ids are there once, and tablets that change together are seen together."""
    pages = view.pages_of(RANGED.id)
    assert pages[0].start == LOWEST
    assert pages[-1].end == HIGHEST
    assert all(left.end == right.start for left, right in pairwise(pages))
    epochs: dict[int, int] = {}
    for page in pages:
        assert all(map(lt, page.starts, page.starts[1:]))
        epochs.update(zip(page.ids, page.epochs, strict=True))
    assert len(epochs) == view.tablet_count()
    assert len(epochs) in (TABLETS, TABLETS + PARTS)
    first, second, third = (part(epochs) for part in THIRDS)
    assert first == second == third
    assert sum(first) - THIRD == view.counters["moves"].next - 1


@pytest.mark.timeout(300)
def test_100_snapshots_under_a_full_speed_writer_are_all_consistent(zookeeper: ZooKeeperServer) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    url = f"zk://{zookeeper.address}/torn-{uuid4().hex}"
    with open_directory(url, timeout=60.0) as directory:
        assert isinstance(directory, PagedDirectory)
        leadership = directory.campaign("loader", timeout=10)
        assert leadership is not None
        records = [*frame(), RANGED, *ranges(range(TABLETS - 1), first=1), Counter("tablet", TABLETS + 1)]
        directory.restore([*records, Counter("moves", 1)], reason="test", author="test", leader_epoch=leadership.epoch)
        with writer(url, seed):
            versions: list[int] = []
            while len(versions) < 100:
                view, root = directory._load()
                assert view.version == root.version
                if view.version > 3:  # the writer has begun
                    check_whole(view)
                    versions.append(view.version)
    print(f"100 loads from version {versions[0]} to {versions[-1]}, {len(set(versions))} different")
    assert len(set(versions)) > 50
