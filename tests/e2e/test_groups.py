"""A directory for each group of bundles: hosts share out who leads, and a host that dies gets its group back.

`tests/benchmarks/test_groups_of_processes.py` is the same with three hosts and a process for each instance.
"""

from collections.abc import Callable
from pathlib import Path

from balancer.embedded.postgres import PostgresServer
from balancer.embedded.zookeeper import ZooKeeperServer
from tests.support.groups import TOGETHER, make_groups, tell
from tests.support.servers import Database


def test_hosts_share_out_the_groups_and_one_that_dies_gets_its_own_back(
    tmp_path: Path,
    postgres18: PostgresServer,
    zookeeper: ZooKeeperServer,
    database: Callable[[PostgresServer], Database],
) -> None:
    hosts = ("host-a", "host-b")
    tell(make_groups(tmp_path, zookeeper.address, hosts, lambda: database(postgres18).dsn), TOGETHER)
