"""pytest's way to the practice cluster: the fixture `balancer_cluster`, present wherever tablet-balancer is installed.

pytest finds it by its entry point. Nothing is imported or started before a test asks for it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from balancer.testing.practice import PracticeCluster, PracticeServers


@pytest.fixture(scope="session")
def balancer_servers() -> "Iterator[PracticeServers]":
    """Two PostgreSQL servers for the whole run. Needs the extra `embedded`."""
    from balancer.testing.practice import PracticeServers  # noqa: PLC0415 - costs a second, and few tests need it

    servers = PracticeServers()
    try:
        servers.start()
        yield servers
    finally:
        servers.close()


@pytest.fixture
def balancer_cluster(balancer_servers: "PracticeServers") -> "Iterator[PracticeCluster]":
    """An empty cluster of two real nodes that moves tablets when told to."""
    with balancer_servers.cluster() as cluster:
        yield cluster
