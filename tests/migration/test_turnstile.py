"""Tablets that move at the same time switch one after the other, and none for longer than it needs."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from balancer.directory.model import Migration
from balancer.migration.begin import begin_move
from balancer.migration.machine import State
from balancer.migration.observer import Observer
from balancer.migration.record import read_detail
from tests.support.cluster import AMPLE, Cluster
from tests.support.directed import complaints
from tests.support.failing import end_sessions


class Switches(Observer):
    """When writers were held back, and by which migration."""

    def __init__(self) -> None:
        self.now: set[str] = set()
        self.most = 0
        self._lock = threading.Lock()

    def left(self, migration: Migration, state: State) -> None:
        with self._lock:
            if state is State.FENCING:
                self.now.add(migration.id)
                self.most = max(self.most, len(self.now))
        if state is State.FENCING:
            time.sleep(0.3)  # long enough for the others to come here
        if state is State.OPENING:
            with self._lock:
                self.now.discard(migration.id)


def move_three(cluster: Cluster, observer: Observer) -> list[Migration]:
    cluster.settings = replace(cluster.settings, **AMPLE)
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    runner = cluster.runner(directory, leadership, observer)
    begun = [begin_move(directory, leadership, tablet, "b").id for tablet in (1, 2, 3)]
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(runner.run, begun))


def test_one_switch_at_a_time(cluster: Cluster) -> None:
    before = cluster.rows()["a"]
    seen = Switches()
    done = move_three(cluster, seen)
    assert [(one.state, one.error) for one in done] == [("done", "")] * 3
    assert seen.most == 1
    assert {**cluster.rows()["a"], **cluster.rows()["b"]} == before
    assert complaints(cluster) == []


def test_a_switch_that_fails_lets_the_next_one_in(cluster: Cluster) -> None:
    """The first to be fenced loses its sessions, goes back, and comes again when it is its turn."""

    class Lost(Switches):
        struck = False

        def entered(self, migration: Migration, state: State) -> None:
            if state is State.DRAINING and not self.struck:
                self.struck = True
                end_sessions(cluster.dsns["a"])
            if state is State.CATCHING_UP:
                self.now.discard(migration.id)

    seen = Lost()
    done = move_three(cluster, seen)
    assert [(one.state, one.error) for one in done] == [("done", "")] * 3
    assert sum(read_detail(one).fences for one in done) > 3
    assert complaints(cluster) == []
