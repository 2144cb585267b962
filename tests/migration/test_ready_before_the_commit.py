"""What follows the directory's commit is ready on both nodes before it, uncommitted, and writers are kept out from the
fence to the end: what if a session with it is lost, hangs, or is not needed any more."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from balancer.directory.model import Migration
from balancer.features.repair.doctor import examine
from balancer.migration import switch
from balancer.migration.begin import begin_move
from balancer.migration.journal import read_detail
from balancer.migration.machine import State
from balancer.migration.progress import Observer
from balancer.nodes.tablets.fence import Expired
from tests.support.cluster import Cluster
from tests.support.refusals import refused_with
from tests.support.spy import Spy
from tests.support.waiting import came

pytestmark = pytest.mark.always

_SESSIONS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name LIKE 'tablet-balancer migration %' AND xact_start IS NOT NULL"
)


def move(cluster: Cluster, observer: Observer) -> Migration:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    return cluster.runner(directory, leadership, observer).run(begin_move(directory, leadership, 2, "b").id)


def prove(cluster: Cluster, node: str) -> str | None:
    """How a node refuses a client that wants to write to the tablet; None if it does not."""
    with cluster.connect(node) as connection, connection.transaction(force_rollback=True):
        try:
            connection.execute(
                f"CALL balancer.hold(2, {cluster.directory().snapshot().tablet(2).epoch}, true)".encode()
            )
        except psycopg.Error as error:
            return refused_with(error)
    return None


def test_a_former_owner_whose_session_is_lost_after_the_commit_is_told_later(cluster: Cluster) -> None:
    cut = f"SELECT pg_terminate_backend(pid) FROM ({_SESSIONS}) AS s"
    told: list[object] = []
    points: dict[str, Callable[[], object]] = {
        "entered:opening": lambda: told.extend(cluster.query("a", cut)),
        "entered:retiring": lambda: told.append(prove(cluster, "b")),
    }
    done = move(cluster, Spy(points))
    assert (done.state, read_detail(done).fences) == ("done", 1)
    assert told == [(True,), None], "it was not lost, or the new owner was not open"
    assert len(cluster.rows()["b"]) + len(cluster.rows()["a"]) == 1000
    assert [finding.text for finding in examine(cluster.directory(), cluster.address)] == []


def test_a_former_owner_that_hangs_does_not_keep_the_new_one_closed(cluster: Cluster) -> None:
    opened: list[object] = []
    stopped: list[int] = []

    def hang() -> None:
        stopped.extend(int(str(row[0])) for row in cluster.query("a", _SESSIONS))
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        threading.Thread(target=look_and_go_on, daemon=True).start()

    def look_and_go_on() -> None:
        try:
            opened.append(came(lambda: prove(cluster, "b") is None, 30.0))
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)

    done = move(cluster, Spy({"entered:opening": hang}))
    assert (done.state, len(stopped), opened) == ("done", 1, [True])
    assert [finding.text for finding in examine(cluster.directory(), cluster.address)] == []


class _AtSecondFence(Observer):
    """Dawdles once before the seal, and looks when the next fence is due."""

    def __init__(self, dawdle: Callable[[], object], look: Callable[[], object]) -> None:
        self._dawdle, self._look = dawdle, look
        self.fences = 0

    def entered(self, migration: Migration, state: State) -> None:
        self.fences += state is State.FENCING
        if state is State.SEALING and self.fences == 1:
            self._dawdle()
        if state is State.FENCING and self.fences == 2:
            self._look()


def test_a_switch_that_takes_too_long_lets_those_go_who_wait(cluster: Cluster) -> None:
    cluster.settings = replace(cluster.settings, write_pause_budget=0.2)
    seen: list[str | None] = []
    observer = _AtSecondFence(lambda: threading.Event().wait(0.3), lambda: seen.append(prove(cluster, "a")))
    assert move(cluster, observer).state == "done"
    assert seen == [None]


def test_clients_who_wait_are_not_woken_by_the_seal(cluster: Cluster) -> None:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"
    answers: list[str | None] = []
    client = threading.Thread(target=lambda: answers.append(prove(cluster, "a")), daemon=True)
    slept: list[bool] = []

    def wait() -> None:
        client.start()
        assert came(lambda: cluster.query("a", waiting), 5.0)

    def look() -> None:
        client.join(0.2)
        slept.append(client.is_alive())

    cluster.settings = replace(cluster.settings, write_pause_budget=2.0, fence_deadline=5.0)
    done = move(cluster, Spy({"entered:draining": wait, "entered:committing": look}))
    client.join(5)
    assert (done.state, read_detail(done).fences, slept) == ("done", 1, [True])
    assert answers == ["TB002"], "it was not told where the tablet went"


def test_a_seal_that_fails_leaves_the_target_to_who_is_attaching_there(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two speak to the target's one session at once otherwise: ATTACH would stand without its guard."""
    between, failed = threading.Event(), threading.Event()
    attach, seal = switch._attach_locked, switch._seal_locked
    seen: list[object] = []

    def attach_slowly(*given: Any) -> None:
        between.set()
        assert failed.wait(10)
        threading.Event().wait(0.1)  # for who would roll back meanwhile
        attach(*given)

    def fail(*given: Any) -> None:
        assert between.wait(10)
        failed.set()
        monkeypatch.undo()
        seal(*given)
        raise Expired("on purpose")

    def look() -> None:
        guarded = "SELECT tgenabled FROM pg_trigger WHERE tgrelid = inhrelid AND tgname = '!balancer_fence'"
        attached = f"SELECT ({guarded}) FROM pg_inherits WHERE inhrelid = to_regclass('public.orders_t2')"
        seen.extend(cluster.query("b", attached))

    monkeypatch.setattr(switch, "_attach_locked", attach_slowly)
    monkeypatch.setattr(switch, "_seal_locked", fail)
    cluster.settings = replace(cluster.settings, write_pause_budget=5.0, fence_deadline=10.0)
    assert move(cluster, _AtSecondCatchingUp(look)).state == "done"
    assert seen == [("A",)]


class _AtSecondCatchingUp(Observer):
    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self._entered = 0

    def entered(self, migration: Migration, state: State) -> None:
        self._entered += state is State.CATCHING_UP
        if state is State.CATCHING_UP and self._entered == 2:
            self._look()
