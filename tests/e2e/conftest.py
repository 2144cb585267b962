"""Clusters on real servers with configuration files, for instances that run as processes of their own."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.embedded.zookeeper import ZooKeeperServer
from tests.support.fleet import Fleet
from tests.support.servers import Database


@pytest.fixture
def fleet(
    tmp_path: Path,
    postgres18: PostgresServer,
    zookeeper: ZooKeeperServer,
    database: Callable[[PostgresServer], Database],
) -> Fleet:
    """Three nodes, a directory of its own in ZooKeeper, eight vbuckets, all of them on node a."""
    dsns = {name: database(postgres18).dsn for name in ("a", "b", "c")}
    made = Fleet(tmp_path, f"zk://{zookeeper.address}/shop{uuid4().hex[:8]}", dsns)
    made.bundle |= {
        "tablet_balancer_config": "enable_cell_balancer = true",
        "placement": "dimensions = { tablets = 1.0 }",
        "migration": 'retire_grace = "100ms"\nmoves_per_node = 2\nmoves_total = 4\ncool_down = "0s"',
    }
    made.write_daemon()
    return made
