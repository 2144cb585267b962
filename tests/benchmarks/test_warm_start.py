"""How long an application that starts takes to know a million tablets: alone, and where the host's cache is warm.

Each start is a process; the two sides alternate. `BENCH_DIRECTORY_BITS=16` is a smaller directory; two minutes.
"""

import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from balancer.directory.model import Counter, Put, Tablet
from balancer.directory.open import open_directory
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.policies.keyspace.hash_leaves import Leaf
from tests.support.directories import HASHED, frame, moved, transaction
from tests.support.tables import show_table

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

TABLETS = 1 << int(os.environ.get("BENCH_DIRECTORY_BITS", "20"))
NODES = [f"pg-{number:04d}" for number in range(1000)]
STARTS = 5
BEHIND = 100
"""Commits that the cache is behind in its last row: as many as a process that follows lets it be at most."""
GOAL_MS = 100.0
TOP = Path(__file__).parents[2]


@pytest.fixture
def url(zookeeper: ZooKeeperServer) -> str:
    address = f"zk://{zookeeper.address}/warm-{uuid4().hex}"
    rng = random.Random(20)
    tablets = [Tablet(i + 1, HASHED.id, Leaf(TABLETS, i), rng.choice(NODES)) for i in range(TABLETS)]
    with open_directory(address, timeout=120.0) as directory:
        leadership = directory.campaign("bench", timeout=10)
        assert leadership is not None
        records = [*frame(NODES), HASHED, *tablets, Counter("tablet", TABLETS + 1)]
        directory.restore(records, reason="bench", author="bench", leader_epoch=leadership.epoch)
    return address


def started(url: str, *cache: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.support.starting", url, *cache]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    assert found["tablets"] == TABLETS
    return found


def commit(url: str, times: int) -> None:
    with open_directory(url, timeout=120.0) as directory:
        for number in range(times):
            view = directory.snapshot()
            tablet = view.tablet(number * 7919 % TABLETS + 1)
            directory.commit(transaction([Put(moved(tablet, NODES[number]))], view.version))


def test_a_process_that_starts_beside_others(url: str, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    first = started(url, cache)
    sides: dict[str, list[dict[str, float]]] = {"no cache": [], "warm cache": []}
    for _ in range(STARTS):
        sides["no cache"].append(started(url))
        sides["warm cache"].append(started(url, cache))
    sides["first process, writes the cache"] = [first]
    commit(url, BEHIND)
    sides[f"warm cache, {BEHIND} commits behind"] = [started(url, cache) for _ in range(STARTS)]
    alone = statistics.median(one["known_cpu"] for one in sides["no cache"])
    rows = [
        [
            *(name, *(statistics.median(one[what] for one in found) * 1000 for what in ("known_cpu", "known"))),
            statistics.median(one["known_cpu"] for one in found) / alone,
            statistics.median(one["imports_cpu"] for one in found) * 1000,
        ]
        for name, found in sides.items()
    ]
    show_table(
        f"A process that starts and knows {TABLETS:,} tablets on {len(NODES):,} nodes; goal: ≤ {GOAL_MS:g} ms, warm",
        ("start", "cpu ms", "ms", "ratio of cpu", "Python's imports, cpu ms"),
        rows,
    )
