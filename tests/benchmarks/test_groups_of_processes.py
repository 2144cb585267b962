"""Three groups on three hosts, nine processes of `balancer run`: the story of `tests/e2e/test_groups.py`, in full."""

from collections.abc import Callable
from pathlib import Path

import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.embedded.zookeeper import ZooKeeperServer
from tests.support.groups import ALONE, make_groups, tell
from tests.support.servers import Database

pytestmark = pytest.mark.bench


def test_three_groups_on_three_hosts(
    tmp_path: Path,
    postgres18: PostgresServer,
    zookeeper: ZooKeeperServer,
    database: Callable[[PostgresServer], Database],
) -> None:
    hosts = ("host-a", "host-b", "host-c")
    tell(make_groups(tmp_path, zookeeper.address, hosts, lambda: database(postgres18).dsn), ALONE)
