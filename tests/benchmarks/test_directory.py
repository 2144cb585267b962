"""The directory in ZooKeeper with a million tablets, beside bare ZooKeeper requests of the same bytes."""

import gc
import os
import random
import statistics
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from balancer.clock import SystemClock
from balancer.directory.contract import Leadership
from balancer.directory.model import Counter, Put, Tablet
from balancer.directory.open import open_directory
from balancer.directory.store.commit import Batch, prepare
from balancer.directory.zookeeper.backend import ZooKeeperDirectory
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.policies.keyspace.hash_leaves import Leaf
from tests.support.directories import HASHED, fill, frame, moved, small_cluster, transaction
from tests.support.tables import show_table

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

TABLETS = 1 << int(os.environ.get("BENCH_DIRECTORY_BITS", "20"))
NODES = [f"pg-{number:04d}" for number in range(1000)]
SEED = 20
COMMITS = 200
WATCHERS, PROCESSES, CHANGES = 40, 4, 100
TOP = Path(__file__).parents[2]
clock = SystemClock()


NO_GOAL = ("", "")


def judged(measured: float, goal: float, unit: str) -> tuple[str, str]:
    """The goal, and whether it was reached."""
    return f"≤ {goal:g} {unit}", "reached" if measured <= goal else "missed"


def opened(url: str) -> ZooKeeperDirectory:
    directory = open_directory(url, timeout=120.0)
    assert isinstance(directory, ZooKeeperDirectory)
    return directory


@pytest.fixture(scope="module")
def url(zookeeper: ZooKeeperServer) -> str:
    """A directory with a million tablets, placed at random."""
    address = f"zk://{zookeeper.address}/bench-{uuid4().hex}"
    rng = random.Random(SEED)
    tablets = [Tablet(i + 1, HASHED.id, Leaf(TABLETS, i), rng.choice(NODES)) for i in range(TABLETS)]
    with opened(address) as directory:
        leadership = directory.campaign("bench", timeout=10)
        assert leadership is not None
        records = [*frame(NODES), HASHED, *tablets, Counter("tablet", TABLETS + 1)]
        directory.restore(records, reason="bench", author="bench", leader_epoch=leadership.epoch)
    return address


def test_loading_a_million_tablets(url: str) -> None:
    times: dict[str, list[float]] = {"load": [], "bare reads": []}
    with opened(url) as directory:
        client, pages = directory.session.client, directory.paths.pages
        for _ in range(3):
            begun = clock.monotonic()
            view, _root = directory._load()
            times["load"].append(clock.monotonic() - begun)
            assert view.tablet_count() == TABLETS
            begun = clock.monotonic()
            names = client.get_children(pages)
            size = sum(len(one.get()[0]) for one in [client.get_async(f"{pages}/{name}") for name in names])
            times["bare reads"].append(clock.monotonic() - begun)
    show_table(
        f"Loading {TABLETS:,} tablets on {len(NODES):,} nodes ({len(names):,} pages, {size / 1e6:.1f} MB)",
        ["what", "best s", "median s", "ratio to bare reads", "goal", "verdict"],
        [
            [
                *(name, min(taken), statistics.median(taken), min(taken) / min(times["bare reads"])),
                *(judged(statistics.median(taken), 3.0, "s") if name == "load" else NO_GOAL),
            ]
            for name, taken in times.items()
        ],
    )


def test_memory_of_a_client(url: str) -> None:
    with opened(url) as directory:
        gc.collect()
        tracemalloc.start()
        view = directory.snapshot()
        gc.collect()
        columns = tracemalloc.get_traced_memory()[0] / TABLETS
        tracemalloc.stop()
        tracemalloc.start()
        sample = view.tablets(HASHED.id)[:20_000]
        objects = tracemalloc.get_traced_memory()[0] / len(sample)
        tracemalloc.stop()
    show_table(
        f"Memory of a client with {TABLETS:,} tablets",
        ["what", "bytes per tablet", "goal", "verdict"],
        [
            ["snapshot in columns", columns, *judged(columns, 150.0, "bytes")],
            ["the same as objects", objects, *NO_GOAL],
        ],
    )


def test_commits_beside_bare_requests_of_the_same_bytes(url: str) -> None:
    rows: list[Sequence[object]] = []
    with opened(url) as directory:
        leadership = directory.campaign("bench", timeout=10)
        assert leadership is not None
        directory.snapshot()
        bare = Bare(directory)
        for tablets in (1, 3):
            ours, theirs = _compete(directory, leadership, bare, tablets)
            for name, taken in (("commit", ours), ("bare multi", theirs)):
                middle = statistics.median(taken)
                worst = statistics.quantiles(taken, n=20)[-1]
                ratio = middle / statistics.median(theirs)
                verdict = judged(ratio, 1.5, "×") if name == "commit" else NO_GOAL
                rows.append([f"{name} of {tablets}", middle * 1000, worst * 1000, ratio, *verdict])
    show_table(
        f"Commits among {TABLETS:,} tablets, beside a bare multi of the same bytes",
        ["what", "p50 ms", "p95 ms", "ratio of p50", "goal", "verdict"],
        rows,
    )


class Bare:
    """Plain multis of the bytes that a commit writes, on znodes of their own."""

    def __init__(self, directory: ZooKeeperDirectory) -> None:
        self._client = directory.session.client
        self._base = f"/bare-{uuid4().hex}"
        self._number = 0
        for name in ("root", "epoch", "log", "p0", "p1", "p2"):
            self._client.create(f"{self._base}/{name}", b"", makepath=True)

    def write(self, root: bytes, pages: Sequence[bytes], entry: bytes) -> None:
        request = self._client.transaction()
        request.set_data(f"{self._base}/root", root, version=self._number)
        request.check(f"{self._base}/epoch", 0)
        for place, page in enumerate(pages):
            request.set_data(f"{self._base}/p{place}", page)
        request.create(f"{self._base}/log/{self._number:010d}", entry)
        assert not any(isinstance(one, Exception) for one in request.commit())
        self._number += 1


def _compete(
    directory: ZooKeeperDirectory, leadership: Leadership, bare: Bare, tablets: int
) -> tuple[list[float], list[float]]:
    """The same changes committed and sent bare, turn by turn, so that both meet the same weather."""
    rng = random.Random(SEED)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(COMMITS):
        view = directory.snapshot()
        chosen = [view.tablet(rng.randrange(TABLETS) + 1) for _ in range(tablets)]
        changes = [Put(moved(tablet, rng.choice(NODES))) for tablet in {one.id: one for one in chosen}.values()]
        wish = transaction(changes, view.version, leadership.epoch)
        batch: Batch = prepare(view, 1, wish, 0.0)
        begun = clock.monotonic()
        directory.commit(wish)
        ours.append(clock.monotonic() - begun)
        begun = clock.monotonic()
        bare.write(batch.packed_root, list(batch.changed_pages.values()), batch.entry)
        theirs.append(clock.monotonic() - begun)
    return ours, theirs


def test_a_change_seen_by_watching_clients(zookeeper: ZooKeeperServer) -> None:
    rows: list[Sequence[object]] = []
    address = f"zk://{zookeeper.address}/bench-{uuid4().hex}"
    with opened(address) as directory:
        fill(directory, small_cluster())
        for name, bare in (("follower", False), ("bare watch and read", True)):
            delays = sorted(_delays(address, directory, bare))
            share = [delays[int(len(delays) * part)] * 1000 for part in (0.5, 0.99)]
            verdict = NO_GOAL if bare else judged(share[1], 100.0, "ms at p99")
            rows.append([name, len(delays), *share, delays[-1] * 1000, *verdict])
    show_table(
        f"A change seen by {WATCHERS} watching clients in {PROCESSES} processes, from the sending of the commit",
        ["client", "sightings", "p50 ms", "p99 ms", "most ms", "goal", "verdict"],
        rows,
    )


def _delays(address: str, directory: ZooKeeperDirectory, bare: bool) -> Iterator[float]:
    command = [sys.executable, "-m", "tests.support.watching", address, str(WATCHERS // PROCESSES), str(int(bare))]
    environment = {**os.environ, "PYTHONPATH": str(TOP)}
    watchers = [
        subprocess.Popen(command, cwd=TOP, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(PROCESSES)
    ]
    sent: dict[int, float] = {}
    try:
        for process in watchers:
            assert process.stdout
            for _ in range(WATCHERS // PROCESSES):
                assert process.stdout.readline() == "ready\n"
        for number in range(CHANGES):
            view = directory.snapshot()
            begun = clock.monotonic()
            tablet = view.tablet(number % 8 + 1)
            sent[directory.commit(transaction([Put(moved(tablet, tablet.node))], view.version))] = begun
            clock.sleep(0.05)
        clock.sleep(1.0)
    finally:
        for process in watchers:
            process.terminate()
    for process in watchers:
        out, _ = process.communicate()
        for line in out.splitlines():
            version, seen = line.split()
            if int(version) in sent:
                yield float(seen) - sent[int(version)]
