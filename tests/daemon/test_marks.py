"""Marks by which nodes are known, written beside each other: one that hangs, and one that comes too late."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from balancer.clock import SystemClock
from balancer.daemon import node_guard
from balancer.daemon.node_guard import NodeGuard
from balancer.directory.contract import Directory
from balancer.embedded.postgres import PostgresServer
from balancer.migration.pool import MigrationPool
from balancer.migration.progress import Observer
from balancer.nodes.session.ask_all import AskPool
from balancer.nodes.session.connection import Address
from balancer.nodes.tablets.closed import MARK, MARK_EVERY
from balancer.polling.poller import Poller
from tests.support.cluster import Cluster, build, hash_table, hash_tablets
from tests.support.fleet import until
from tests.support.manual_clock import ManualClock
from tests.support.servers import Database
from tests.support.tcp_proxy import StallingProxy

pytestmark = pytest.mark.always

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Watch:
    """A leader that polls nodes a and b, and guards them; the guard reaches a through a proxy."""

    cluster: Cluster
    directory: Directory
    clock: ManualClock
    poller: Poller
    guard: NodeGuard
    proxy: StallingProxy
    patch: pytest.MonkeyPatch

    def look(self, patience: float = 60.0) -> dict[str, str]:
        """One poll, and what the guard could not do; a minute later. By `patience` alone the marks are waited for."""
        self.patch.setattr(node_guard, "MARK_PATIENCE", patience)
        self.clock.advance(MARK_EVERY + 1)
        snapshot = self.directory.snapshot()
        poll = self.poller.poll(snapshot, {node: self.cluster.address(node) for node in self.cluster.dsns})
        return dict(self.guard.look(poll, snapshot))

    def mark(self, node: str) -> int:
        found = self.cluster.query(node, f"SELECT number FROM balancer.marker WHERE migration = '{MARK}'")
        return int(str(found[0][0])) if found else 0


@pytest.fixture
def watch(
    tmp_path: Path,
    postgres18: PostgresServer,
    database: Callable[[PostgresServer], Database],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Watch]:
    dsns = {"a": database(postgres18).dsn, "b": database(postgres18).dsn}
    cluster = build(tmp_path, dsns, hash_table(), hash_tablets(2, ["a", "b"]))
    directory, clock = cluster.directory(), ManualClock(START)
    leadership = cluster.become_leader(directory)
    pool = MigrationPool(
        directory,
        leadership,
        addresses=cluster.address,
        settings_of=lambda _: cluster.settings,
        observer=Observer(),
        clock=clock,
    )
    poller = Poller(directory.snapshot().nodes["a"].bundle, clock)
    with StallingProxy("127.0.0.1", urlsplit(dsns["a"]).port or 0) as proxy:
        through = proxy.dsn(dsns["a"])

        def address(node: str) -> Address:
            return Address(node, through if node == "a" else dsns[node])

        guard = NodeGuard(directory, leadership, address, pool, clock)
        monkeypatch.setattr(node_guard, "MARK_LONGEST", 90.0)
        yield Watch(cluster, directory, clock, poller, guard, proxy, monkeypatch)
        guard.close()
        poller.close()
    cluster.close()


def test_a_mark_that_hangs_is_not_waited_for_and_not_asked_for_twice(watch: Watch) -> None:
    assert watch.look() == {}
    first = watch.mark("a"), watch.mark("b")
    assert min(first) > 0
    watch.proxy.stall()
    assert watch.look(0.2) == {}
    hanging = watch.guard._marking["a"]
    until(lambda: watch.mark("b") > first[1], 30, "the other node's mark")
    assert watch.mark("a") == first[0]
    assert watch.look(0.2) == {}
    assert watch.guard._marking["a"] is hanging
    watch.proxy.resume()
    hanging.result(30)
    assert watch.look() == {}
    assert watch.mark("a") > first[0]


def test_a_mark_that_hangs_for_long_is_given_up_and_written_by_another_connection(watch: Watch) -> None:
    """Something between us and the node keeps the connection open: no timeout of the node's ends it."""
    watch.look()
    first = watch.mark("a")
    watch.proxy.stall()
    watch.patch.setattr(node_guard, "MARK_LONGEST", 0.2)
    assert "a" in watch.look()
    watch.patch.setattr(node_guard, "MARK_LONGEST", 90.0)
    watch.proxy.resume()
    assert watch.look() == {}
    assert watch.mark("a") > first


def test_what_is_in_the_way_is_said_until_a_mark_is_written(watch: Watch) -> None:
    """Also by a look that finds the next mark still waiting for it."""
    watch.look()
    with psycopg.connect(watch.cluster.dsns["b"], autocommit=True) as holder:
        holder.execute("BEGIN; SELECT FROM balancer.marker FOR UPDATE")
        (first,) = watch.look().items()
        assert first[0] == "b"
        assert "lock timeout" in first[1]
        assert watch.look(0.0) == dict([first])
        holder.execute("ROLLBACK")
    until(lambda: watch.look() == {}, 30, "a mark")


def test_a_mark_that_comes_late_does_not_hide_that_its_node_has_gone_back(watch: Watch) -> None:
    watch.look()
    watch.look()
    known = watch.mark("a")
    askers, busy = AskPool(SystemClock(), at_once=1, most=1), threading.Event()
    watch.patch.setattr(node_guard, "SHARED", askers)
    askers.submit(busy.wait)
    watch.look(0.2)
    waiting = watch.guard._marking["a"]
    assert not waiting.done()
    with watch.cluster.connect("a") as connection:  # a backup that is older than the last mark
        connection.execute("UPDATE balancer.marker SET number = number - 1000 WHERE migration = %s", (MARK,))
    busy.set()
    waiting.result(30)
    assert watch.mark("a") == known - 1000
    watch.look()
    assert "it is as it was" in watch.directory.snapshot().nodes["a"].rewound
