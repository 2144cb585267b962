"""Clients of a workload in processes of their own, so that the migration's process has its core to itself.

A process is forked from a server that has imported everything. Each has some clients, every one with a thread and
connections of its own; they write or read, never both, so that readers continue while writers are held back.
"""

import multiprocessing
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection as Pipe
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Event as SharedEvent
from random import Random
from typing import Any

from balancer.directory.model import RangeBounds, Table
from balancer.directory.open import open_directory
from balancer.policies.keyspace.hash_leaves import Leaf
from tests.support.cluster import Cluster
from tests.support.workloads.approach import Approach
from tests.support.workloads.caller import Caller
from tests.support.workloads.workload import Client, Occurrence, Shown, Workload

WRITES, READS = 0, 1
PATIENCE = 60.0
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.workloads.crew"])


@dataclass(frozen=True)
class Errand:
    """What one process is told."""

    url: str
    dsns: dict[str, str]
    table: Table
    bounds: tuple[Leaf | RangeBounds, ...]
    workload: Workload
    approach: Approach
    seed: int
    first: int
    writers: int
    readers: int
    pace: float


@dataclass
class Told:
    """What one process tells in the end."""

    history: list[Occurrence]
    surprises: list[str]
    retries: int = 0
    error: str = ""


class Crew:
    """Clients at work on the tablets that are migrated."""

    def __init__(self, cluster: Cluster, workload: Workload, approach: Approach, bounds: Sequence[Any]) -> None:
        self.workload = workload
        self.approach = approach
        self.told = Told([], [])
        self._cluster = cluster
        self._bounds = tuple(bounds)
        self._stop: SharedEvent = _FORKS.Event()
        self._counts: SynchronizedArray[Any] = _FORKS.Array("q", 2)
        self._processes: list[tuple[Any, Pipe]] = []
        self._clients = 0
        self.began = self.ended = 0.0

    def start(self, seed: int, processes: int, writers: int, readers: int, pace: float) -> None:
        cluster = self._cluster
        errand = Errand(
            *(cluster.url, dict(cluster.dsns), cluster.table, self._bounds, self.workload, self.approach),
            *(seed, 0, writers, readers, pace),
        )
        for number in range(processes):
            mine, theirs = _FORKS.Pipe()
            mine_to_do = replace(errand, first=number * (writers + readers))
            process = _FORKS.Process(target=_serve, args=(mine_to_do, self._counts, self._stop, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append((process, mine))
        self._clients = processes * (writers + readers)
        self.began = time.monotonic()

    @property
    def operations(self) -> int:
        """Answered so far."""
        return int(self._counts[WRITES] + self._counts[READS])

    def await_operations(self, count: int, seconds: float = PATIENCE) -> bool:
        """Waits until this many were answered in all."""
        return self._await(lambda: self.operations >= count, seconds)

    def await_writes(self, count: int = 1, seconds: float = PATIENCE) -> bool:
        """Waits until this many more were requested and acknowledged: each client had at most one under way."""
        wanted = self._counts[WRITES] + self._clients + count
        return self._await(lambda: bool(self._counts[WRITES] >= wanted), seconds)

    def await_reads(self, count: int = 1, seconds: float = PATIENCE) -> bool:
        """Likewise for reads."""
        wanted = self._counts[READS] + self._clients + count
        return self._await(lambda: bool(self._counts[READS] >= wanted), seconds)

    def finish(self) -> Told:
        """Ends them and collects what they know. Raises what a client raised."""
        self._stop.set()
        self.ended = self.ended or time.monotonic()
        processes, self._processes = self._processes, []
        for process, pipe in processes:
            part: Told = pipe.recv() if pipe.poll(PATIENCE) else Told([], [], error="a process of clients hangs")
            pipe.close()
            process.join(5)
            if process.is_alive():
                process.kill()
            self.told.history += part.history
            self.told.surprises += part.surprises
            self.told.retries += part.retries
            self.told.error = self.told.error or part.error
        assert not self.told.error, self.told.error
        return self.told

    def faults(self) -> list[str]:
        """Everything that is wrong, after `finish`."""
        told = self.finish()
        return told.surprises[:5] + self.workload.faults(told.history, shown_by(self._cluster), self.approach)

    def summary(self) -> str:
        """For people: what was done, and how fast."""
        seconds = (self.ended or time.monotonic()) - self.began
        return (
            f"{self.workload.name}, {self.approach}: {self.operations} operations, {self.operations / seconds:.0f}/s,"
            f" {self.told.retries} retries"
        )

    def _await(self, happened: Any, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not happened():
            if time.monotonic() > deadline or not all(process.is_alive() for process, _ in self._processes):
                return False
            time.sleep(0.005)
        return True


@contextmanager
def at_work(
    cluster: Cluster,
    workload: Workload,
    approach: Approach,
    tablets: Sequence[int],
    *,
    seed: int,
    processes: int = 2,
    writers: int = 3,
    readers: int = 1,
    pace: float = 0.0,
) -> Iterator[Crew]:
    """A crew for the length of a block, on rows of these tablets as they are now."""
    snapshot = cluster.directory().snapshot()
    crew = Crew(cluster, workload, approach, [snapshot.tablet(tablet).bounds for tablet in tablets])
    crew.start(seed, processes, writers, readers, pace)
    try:
        yield crew
    finally:
        crew.finish()


def fill(cluster: Cluster, workload: Workload, node: str) -> None:
    """The rows that are there before the clients come, all on one node."""
    with cluster.connect(node) as connection, connection.cursor() as cursor:
        for root, key, n, note in workload.present():
            cursor.execute(f"INSERT INTO {cluster.table.roots[root]} VALUES ({key}, {n}, '{note}')".encode())


def shown_by(cluster: Cluster) -> Shown:
    """What each node's roots show now."""
    return {
        node: [
            (root, int(str(key)), int(str(n)), None if note is None else str(note))
            for root, name in enumerate(cluster.table.roots)
            for key, n, note in cluster.query(node, f"SELECT id, n, note FROM {name}")
        ]
        for node in cluster.dsns
    }


def _serve(errand: Errand, counts: Any, stop: SharedEvent, pipe: Pipe) -> None:
    """In the forked process."""
    told = Told([], [])
    try:
        # It may be the victim, and down right now.
        with open_directory(errand.url, lease=10.0, timeout=60.0) as directory:
            follower = directory.follow()
            workers = [_Hand(errand, number, follower, counts) for number in range(errand.writers + errand.readers)]
            for worker in workers:
                worker.start()
            stop.wait()
            for worker in workers:
                worker.caller.stop.set()
            for worker in workers:
                worker.join()
                told.history += worker.client.history
                told.surprises += [*worker.client.surprises, *worker.caller.surprises]
                told.retries += worker.caller.retries
                told.error = told.error or worker.error
            follower.close()
    except BaseException:
        told.error = told.error or traceback.format_exc()
    pipe.send(told)
    pipe.close()


class _Hand(threading.Thread):
    """One client's thread."""

    def __init__(self, errand: Errand, number: int, follower: Any, counts: Any) -> None:
        name = errand.first + number
        super().__init__(name=f"client-{name}", daemon=True)
        chance = Random(errand.seed * 1000 + name)
        self.caller = Caller(errand.table, errand.dsns, follower, errand.approach, chance)
        self.client = Client(name, chance, errand.approach, errand.bounds)
        self.error = ""
        self._writes = number < errand.writers
        self._workload = errand.workload
        self._counts = counts
        self._pace = errand.pace

    def run(self) -> None:
        act = self._workload.write if self._writes else self._workload.read
        kind = WRITES if self._writes else READS
        try:
            while not self.caller.stop.is_set():
                act(self.caller, self.client)
                if self.client.history and self.client.history[-1].outcome == "done":
                    with self._counts.get_lock():
                        self._counts[kind] += 1
                if self._pace:
                    self.caller.stop.wait(self._pace)
        except BaseException:
            self.error = traceback.format_exc()
        finally:
            self.caller.close()
