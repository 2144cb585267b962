"""The directory is recovered while a migration was at its end, and a leader begins before the doctor was asked: it
takes no node for one that has gone back in time."""

from datetime import UTC, datetime

import pytest

from balancer.daemon.node_guard import NodeGuard
from balancer.directory.contract import Directory, Leadership
from balancer.migration import finish
from balancer.migration.pool import MigrationPool
from balancer.migration.progress import Observer
from balancer.polling.poller import Poller
from tests.daemon.conftest import directory as directory
from tests.features.repair.test_recover_half_way import (  # noqa: F401
    Writers,
    cluster,
    dsns,
    exported,
    imported,
    mended,
    move,
    recovered,
    run_until,
)
from tests.support.cluster import Cluster
from tests.support.manual_clock import ManualClock


def guarded(cluster: Cluster, directory: Directory, leadership: Leadership) -> dict[str, str]:  # noqa: F811
    """One look of a leader; which nodes it calls rewound, and why."""
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    pool = MigrationPool(
        directory,
        leadership,
        addresses=cluster.address,
        settings_of=lambda _: cluster.settings,
        observer=Observer(),
        clock=clock,
    )
    guard = NodeGuard(directory, leadership, cluster.address, pool, clock)
    poller = Poller(directory.snapshot().nodes["a"].bundle, clock)
    try:
        snapshot = directory.snapshot()
        poll = poller.poll(snapshot, {node: cluster.address(node) for node in cluster.dsns})
        assert guard.look(poll, snapshot) == {}
    finally:
        guard.close()
        poller.close()
    return {node.id: node.rewound for node in directory.snapshot().nodes.values() if node.rewound}


def test_no_node_is_called_rewound(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Killed between the new owner's opening and the former one's word."""
    document = exported(cluster)
    monkeypatch.setattr(finish, "tell_source", lambda ctx: ctx.reopen())
    run_until(cluster, move, "left:opening")
    assert cluster.query("a", "SELECT state FROM balancer.tablet WHERE id = 1") == [("fenced",)]
    new, directory = imported(cluster, document)
    writers = Writers(new)
    leadership = recovered(new, directory)
    writers.write()
    assert guarded(new, directory, leadership) == {}
    writers.write()
    assert mended(new, directory, leadership, writers.write) == []
    assert writers.found() == writers.kept
    assert min(writers.kept.values()) > 0
