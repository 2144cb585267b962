"""A database as a node of ours, on each version."""

from collections.abc import Callable, Iterator

import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.nodes.connection import Address, Connection, connect
from tests.support.servers import Database

Factory = Callable[[PostgresServer], Database]


@pytest.fixture
def address(any_postgres: PostgresServer, database: Factory) -> Address:
    """A fresh database on each of the versions."""
    return Address("a", database(any_postgres).dsn)


@pytest.fixture
def connection(address: Address) -> Iterator[Connection]:
    """A connection to that database, as the balancer opens it."""
    with connect(address, purpose="test") as opened:
        yield opened
