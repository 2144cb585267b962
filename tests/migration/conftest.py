"""A cluster of two nodes on different versions of the server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from balancer.embedded.postgres import PostgresServer
from tests.support.cluster import Cluster, blank_node, build, hash_table, hash_tablets, insert_rows
from tests.support.crash_matrix import Victims, victims
from tests.support.servers import Database, new_database

Factory = Callable[[PostgresServer], Database]


@pytest.fixture
def database() -> Iterator[Factory]:
    """Makes databases that live as long as the test: nodes that have our schema and no name yet (`become_node`)."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(new_database(server, fill=blank_node))


@pytest.fixture
def plain_database() -> Iterator[Factory]:
    """The same, without our schema: for tests that care who makes it."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(new_database(server))


@pytest.fixture
def pair(postgres15: PostgresServer, postgres18: PostgresServer, database: Factory) -> dict[str, str]:
    """Databases for node a (PostgreSQL 15) and node b (PostgreSQL 18)."""
    return {"a": database(postgres15).dsn, "b": database(postgres18).dsn}


@pytest.fixture(scope="session")
def killable(server_folder: Path) -> Iterator[Victims]:
    """Servers of their own, for tests that kill them."""
    with victims(server_folder / "victims") as servers:
        yield servers


@pytest.fixture
def cluster(tmp_path: Path, pair: dict[str, str]) -> Iterator[Cluster]:
    """Four vbuckets on node a with a thousand rows."""
    tablets = hash_tablets(4, ["a"])
    made = build(tmp_path, pair, hash_table(), tablets)
    insert_rows(made, tablets, range(1000))
    yield made
    made.close()
