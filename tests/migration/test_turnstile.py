"""Tablets that move at the same time switch one after the other, and none for longer than it needs."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from balancer.directory.model import Migration
from balancer.migration import concurrency, context
from balancer.migration.begin import begin_move
from balancer.migration.journal import read_detail
from balancer.migration.machine import State, Track
from balancer.migration.progress import Observer
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.connection import Connection, Cursor
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


def test_nothing_else_is_begun_on_the_nodes_beside_a_switch(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers would wait for it. The limits are for real servers: here a busy machine must not reach them."""
    monkeypatch.setattr(concurrency, "_REST", 60.0)
    monkeypatch.setattr(concurrency, "_QUIET", 60.0)
    at_work: list[str] = []
    beside: list[str] = []

    class Watching(Switches):
        def left(self, migration: Migration, state: State) -> None:
            if state is State.FENCING:
                beside.extend(f"{one} was not over" for one in at_work if migration.id not in one)
            super().left(migration, state)

    seen = Watching()

    @contextmanager
    def watched(connection: Connection, *given: Any, **named: Any) -> Iterator[Cursor]:
        who = connection.info.get_parameters()["application_name"]
        beside.extend(f"{who} has begun" for one in seen.now if one not in who)
        at_work.append(who)
        try:
            with node_transaction(connection, *given, **named) as cursor:
                yield cursor
        finally:
            at_work.remove(who)

    monkeypatch.setattr(context, "node_transaction", watched)
    done = move_three(cluster, seen)
    assert [(one.state, one.error) for one in done] == [("done", "")] * 3
    assert beside == []
    assert at_work == []


def test_who_has_passed_waits_for_those_at_work_but_not_for_those_that_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "_REST", 60.0)
    monkeypatch.setattr(concurrency, "_QUIET", 60.0)
    gate = concurrency.Turnstile()
    first: Any = SimpleNamespace(id="first", track=Track.MOVE_REPLICATE)
    begun, rest = threading.Event(), threading.Event()

    def copy() -> None:
        with gate.work("other", waits=True):
            begun.set()
            rest.wait()
            gate.give_way("other")  # as between two blocks

    copying = threading.Thread(target=copy, daemon=True)
    passing = threading.Thread(target=gate.pass_in, args=(first, State.FENCING), daemon=True)
    copying.start()
    begun.wait()
    passing.start()
    passing.join(0.2)
    assert passing.is_alive()
    rest.set()
    passing.join(30)
    assert (passing.is_alive(), copying.is_alive()) == (False, True)
    gate.leave(first)
    copying.join(30)
    assert not copying.is_alive()


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
