"""A former owner that is out of reach at the switch: it stays closed, the new one is open, and people are told."""

import threading
import time
from collections.abc import Callable

import psycopg
import pytest

from balancer.cli.moves import migration_documents
from balancer.directory.contract import Directory
from balancer.directory.model import Migration, MigrationMode
from balancer.errors import Refused
from balancer.features.repair.doctor import examine
from balancer.migration import finish
from balancer.migration.begin import begin_move
from balancer.migration.context import Context
from tests.support.cluster import Cluster
from tests.support.directed import Beside, move
from tests.support.failing import end_sessions
from tests.support.refusals import refused_with
from tests.support.spy import Spy

pytestmark = pytest.mark.always


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def sqlstate(dsn: str, statement: str) -> str | None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        try:
            connection.execute(statement)
        except psycopg.Error as error:
            return refused_with(error)
    return None


@pytest.mark.parametrize("mode", list(MigrationMode))
def test_a_former_owner_out_of_reach_stays_closed_until_it_is_told(cluster: Cluster, mode: MigrationMode) -> None:
    source = cluster.dsns["a"]
    number = cluster.query("a", "SELECT min(id) FROM orders_t2")[0][0]
    write = f"UPDATE orders SET n = 5 WHERE id = {number}"
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    migration = begin_move(directory, leadership, 2, "b", mode=mode)
    ended: list[Migration] = []

    def cut_off() -> None:
        """The owner has changed in the directory; from here on the daemon cannot reach the former one."""
        cluster.dsns["a"] = "host=127.0.0.1 port=1 dbname=nowhere"
        end_sessions(source)

    spy = Spy({"entered:opening": cut_off})
    runner = cluster.runner(directory, leadership, spy)
    thread = threading.Thread(target=lambda: ended.append(runner.run(migration.id)))
    thread.start()
    try:
        watching = cluster.directory()
        words = "the former owner to be told and emptied (the tablet has moved already): node a cannot be reached"
        until(lambda: _waits(watching).startswith(words), "`balancer moves` says what it waits for")
        assert sqlstate(source, write) == "TB001", "the sealed fence stands, for as long as it takes"
        assert sqlstate(source, f"INSERT INTO orders_t2 (id) VALUES ({number})") == "TB001"
        assert sqlstate(cluster.dsns["b"], write) is None, "the new owner is open"
    finally:
        cluster.dsns["a"] = source
        thread.join()
    assert ended[0].state == "done"
    assert cluster.rows()["b"][int(str(number))] == 5
    assert number not in cluster.rows()["a"]
    assert [finding.text for finding in examine(directory, cluster.address)] == []


def _waits(directory: Directory) -> str:
    documents = migration_documents(directory)
    return str(documents[0]["waits_for"] or "") if documents else ""


@pytest.mark.parametrize("after", ["_wait_for_standbys", "_untie"])
def test_rows_stay_if_the_new_owner_forgets_the_tablet_while_they_are_still_waited_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """A reader may keep them for hours after it was seen that the new owner has them; it may go back in time then."""
    before = getattr(finish, after)
    rows = cluster.query("a", "SELECT count(*) FROM orders_t2")

    def forgotten(ctx: Context) -> None:
        before(ctx)
        monkeypatch.setattr(finish, after, before)
        with cluster.connect("b") as connection:
            connection.execute("UPDATE balancer.tablet SET epoch = 1, state = 'incoming' WHERE id = 2")

    monkeypatch.setattr(finish, after, forgotten)
    check, refused = finish._check_opened, threading.Event()

    def watched(ctx: Context) -> None:
        try:
            check(ctx)
        except Refused:
            refused.set()
            raise

    monkeypatch.setattr(finish, "_check_opened", watched)
    moving = Beside(lambda: move(cluster, {}))
    until(lambda: moving.over or refused.is_set(), "the refusal")
    there = cluster.query("a", "SELECT to_regclass('orders_t2') IS NOT NULL")
    assert there == [(True,)], "the last copy was dropped"
    assert cluster.query("a", "SELECT count(*) FROM orders_t2") == rows
    with cluster.connect("b") as connection:
        connection.execute("UPDATE balancer.tablet SET epoch = 2, state = 'owned' WHERE id = 2")
    assert moving.result().state == "done"
