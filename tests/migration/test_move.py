"""A tablet moves: its rows arrive, its former owner lets go, nothing is left behind."""

import threading
import time
from dataclasses import replace

import psycopg
import pytest

from balancer.directory.model import MigrationMode
from balancer.errors import Refused
from balancer.features.repair.doctor import examine
from balancer.migration import copy
from balancer.migration.begin import begin_move
from balancer.migration.journal import read_detail
from balancer.policies import pacing
from balancer.policies.options import AUTO
from tests.support.cluster import AMPLE, Cluster
from tests.support.spy import Spy


@pytest.mark.parametrize("mode", list(MigrationMode))
def test_a_move_carries_every_row_and_changes_the_owner(cluster: Cluster, mode: MigrationMode) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    before = cluster.rows()["a"]
    migration = begin_move(directory, leadership, 2, "b", mode=mode)
    done = cluster.runner(directory, leadership).run(migration.id)
    assert (done.state, done.error) == ("done", "")
    after = cluster.rows()
    assert {**after["a"], **after["b"]} == before
    assert after["b"]
    tablet = directory.snapshot().tablet(2)
    assert (tablet.node, tablet.epoch) == ("b", 2)
    assert examine(directory, cluster.address) == []
    assert read_detail(done).pause is not None


def test_a_tablet_can_come_back(cluster: Cluster) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    before = cluster.rows()
    runner = cluster.runner(directory, leadership)
    for target in ("b", "a"):
        assert runner.run(begin_move(directory, leadership, 2, target).id).state == "done"
    assert cluster.rows() == before
    assert directory.snapshot().tablet(2).epoch == 3
    assert examine(directory, cluster.address) == []


def test_changes_made_while_it_moves_arrive(cluster: Cluster) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)

    def change() -> None:
        with cluster.connect("a") as connection:
            connection.execute("UPDATE orders SET n = 7 WHERE id % 3 = 0")
            connection.execute("DELETE FROM orders WHERE id % 5 = 0")
            connection.execute("UPDATE orders SET id = id + 100000 WHERE id % 7 = 0")

    spy = Spy({"entered:copying": change, "entered:catching_up": change, "entered:fencing": change})
    done = cluster.runner(directory, leadership, spy).run(begin_move(directory, leadership, 2, "b").id)
    assert (done.state, done.error) == ("done", "")
    rows = cluster.rows()
    merged = {**rows["a"], **rows["b"]}
    assert len(merged) == len(rows["a"]) + len(rows["b"])
    assert all(n == 7 for number, n in merged.items() if number % 3 == 0 and number < 100000)
    assert not any(number % 5 == 0 for number in merged if number < 100000)


def test_a_row_that_changes_all_the_time_does_not_keep_its_tablet_from_moving(cluster: Cluster) -> None:
    """Each of its changes is logged; what was not equal in a round stays, but once."""
    cluster.settings = replace(cluster.settings, **AMPLE, verify_keys_in_fence=60)
    number = cluster.query("a", "SELECT min(id) FROM orders_t2")[0][0]
    stop, changes = threading.Event(), [0]

    def hammer() -> None:
        with cluster.connect("a") as connection:
            while not stop.is_set():
                try:
                    changes[0] += connection.execute(
                        f"UPDATE orders SET n = n + 1 WHERE id = {number}".encode()
                    ).rowcount
                except psycopg.errors.SerializationFailure:
                    continue

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        directory = cluster.directory()
        leadership = cluster.become_leader(directory)
        done = cluster.runner(directory, leadership).run(begin_move(directory, leadership, 2, "b").id)
    finally:
        stop.set()
        thread.join()
    assert (done.state, done.error) == ("done", "")
    assert changes[0] > 60
    assert cluster.rows()["b"][int(str(number))] == changes[0]


def test_it_is_too_late_to_cancel_after_the_commit(cluster: Cluster) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    migration = begin_move(directory, leadership, 2, "b")
    runner = cluster.runner(directory, leadership, spy := Spy())
    refused: list[str] = []

    def try_to_cancel() -> None:
        with pytest.raises(Refused, match="too late") as raised:
            runner.cancel(migration.id)
        refused.append(str(raised.value))

    spy.work["entered:opening"] = try_to_cancel
    assert runner.run(migration.id).state == "done"
    assert refused


def test_a_paused_move_waits_and_goes_on(cluster: Cluster) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    migration = begin_move(directory, leadership, 2, "b")
    runner = cluster.runner(directory, leadership, spy := Spy())
    clock: list[float] = []

    def hold() -> None:
        clock.append(time.monotonic())
        runner.pause(migration.id)
        threading.Timer(0.6, go_on).start()

    def go_on() -> None:
        clock.append(time.monotonic())
        runner.resume(migration.id)

    spy.work["entered:catching_up"] = hold
    assert runner.run(migration.id).state == "done"
    assert clock[1] - clock[0] >= 0.6


def test_a_pause_over_budget_lets_writers_on_and_tries_again(cluster: Cluster) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)

    def slow() -> None:
        with cluster.connect("a") as connection:
            connection.execute("SET lock_timeout TO '50ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                connection.execute("UPDATE orders SET n = n + 1")
        time.sleep(0.3)

    spy = Spy({"entered:draining": slow})
    done = cluster.runner(directory, leadership, spy).run(begin_move(directory, leadership, 2, "b").id)
    assert done.state == "done"
    detail = read_detail(done)
    assert detail.fences >= 2  # on a busy machine the next pause may be too long as well
    assert "more than the 250 ms allowed" in detail.retreat
    assert [str(state) for state in spy.states].count("catching_up") == detail.fences


def test_what_is_refused_from_the_directory_alone(cluster: Cluster) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    with pytest.raises(Refused, match="on node a already"):
        begin_move(directory, leadership, 2, "a")
    with pytest.raises(Refused, match="no node"):
        begin_move(directory, leadership, 2, "nowhere")
    begin_move(directory, leadership, 2, "b")
    with pytest.raises(Refused, match="part of migration"):
        begin_move(directory, leadership, 2, "b")


def test_a_copy_whose_rate_follows_the_commits_of_its_nodes(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It rests until it is known how long a commit takes; the rate then follows what is seen meanwhile."""
    rates: list[float] = []
    looks: list[list[float]] = []

    def adjusted(rate: float, quiet: list[float], busy: list[float], share: float) -> float:
        looks.extend((quiet, busy))
        rates.append(pacing.adjusted(rate, quiet, busy, share))
        return 30_000.0  # slow enough to be looked at again

    monkeypatch.setattr(copy, "adjusted", adjusted)
    monkeypatch.setattr(copy, "FIRST", 30_000.0)
    monkeypatch.setattr(copy, "LOOK", 0.01)
    cluster.settings = replace(cluster.settings, throttle=AUTO)
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    before = cluster.rows()["a"]
    assert cluster.runner(directory, leadership).run(begin_move(directory, leadership, 2, "b").id).state == "done"
    assert {**cluster.rows()["a"], **cluster.rows()["b"]} == before
    assert len(rates) >= 2  # for both nodes
    assert all(seconds > 0 for look in looks for seconds in look)


def test_a_throttle_slows_the_copy_down(cluster: Cluster) -> None:
    cluster.settings = replace(cluster.settings, throttle=20_000)
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    began = time.monotonic()
    assert cluster.runner(directory, leadership).run(begin_move(directory, leadership, 2, "b").id).state == "done"
    assert time.monotonic() - began > 0.3
