"""A database as a node of ours, on each version."""

from collections.abc import Iterator

import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.nodes.session.connection import Address, Connection
from tests.support.emptying import empty
from tests.support.opening import connect
from tests.support.servers import Database, new_database


@pytest.fixture(scope="module")
def shared(any_postgres: PostgresServer) -> Iterator[Database]:
    """One database per version and file."""
    with new_database(any_postgres) as made:
        yield made


@pytest.fixture
def address(shared: Database) -> Iterator[Address]:
    """An empty database on each of the versions; what a test has made there is gone afterwards."""
    yield Address("a", shared.dsn)
    with shared.connect() as connection:
        empty(connection)


@pytest.fixture
def connection(address: Address) -> Iterator[Connection]:
    """A connection to that database, as the balancer opens it, but for its search_path."""
    with connect(address, purpose="test") as opened:
        yield opened
