"""A changed address in the file: clients are sent there only when the server there has proven to be that node."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from balancer.daemon.housekeeping import enrol
from balancer.directory.contract import Directory, Leadership
from balancer.directory.identity import made_identity
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.nodes.session.connection import Address
from tests.support.cluster import blank_node
from tests.support.fleet import Fleet
from tests.support.opening import connect
from tests.support.servers import Database, new_database


@pytest.fixture
def leading(fleet: Fleet) -> Iterator[tuple[Directory, Leadership]]:
    with open_directory(fleet.url, lease=20.0) as directory:
        leadership = directory.campaign("test", 20.0)
        assert leadership is not None
        made_identity("test", directory, leadership.epoch)
        enrol(directory, leadership, fleet.settings())
        yield directory, leadership


def published(fleet: Fleet, leading: tuple[Directory, Leadership], dsn: str) -> bool:
    """Whether node a is to be found there, after the leader has read a file that says so."""
    directory, leadership = leading
    before = directory.snapshot().nodes["a"].dsn
    fleet.dsns["a"] = dsn
    fleet.write("autonomous")
    enrol(directory, leadership, fleet.settings())
    return directory.snapshot().nodes["a"].dsn != before


def test_the_server_of_another_node_is_not_published(fleet: Fleet, leading: tuple[Directory, Leadership]) -> None:
    assert not published(fleet, leading, fleet.dsns["b"])


def test_an_empty_database_and_nobody_are_not_published(
    fleet: Fleet, leading: tuple[Directory, Leadership], postgres18: PostgresServer, database: Callable[..., Database]
) -> None:
    assert not published(fleet, leading, database(postgres18).dsn)
    assert not published(fleet, leading, "postgresql://balancer@127.0.0.1:1/shop")


def test_a_server_of_that_name_without_its_tablets_is_not_published(
    fleet: Fleet, leading: tuple[Directory, Leadership], postgres18: PostgresServer, tmp_path: Path
) -> None:
    with new_database(postgres18, fill=blank_node) as other:
        with connect(Address("a", other.dsn)) as connection:
            connection.execute("UPDATE balancer.node SET cluster = 'shop', node = 'a'")
        assert not published(fleet, leading, other.dsn)


def test_the_node_itself_by_another_address_is_published(fleet: Fleet, leading: tuple[Directory, Leadership]) -> None:
    assert published(fleet, leading, fleet.dsns["a"].replace("127.0.0.1", "localhost"))


def test_the_address_of_a_node_that_owns_nothing_is_published_at_once(
    fleet: Fleet, leading: tuple[Directory, Leadership]
) -> None:
    directory, leadership = leading
    fleet.dsns["b"] = "postgresql://balancer@127.0.0.1:1/shop"
    fleet.write("autonomous")
    enrol(directory, leadership, fleet.settings())
    assert "127.0.0.1:1" in directory.snapshot().nodes["b"].dsn
