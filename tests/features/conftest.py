"""Two nodes, one on each version, as a table may be spread over them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Node
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.nodes.session.connection import Address, Connection
from tests.support.converting import SHOP, Shop
from tests.support.emptying import empty
from tests.support.opening import connect
from tests.support.servers import Database, new_database


@pytest.fixture(scope="module")
def databases(postgres15: PostgresServer, postgres18: PostgresServer) -> Iterator[dict[str, Database]]:
    with new_database(postgres15) as first, new_database(postgres18) as second:
        yield {"a": first, "b": second}


@pytest.fixture
def nodes(databases: dict[str, Database]) -> Iterator[dict[str, Connection]]:
    """Connections to both; what a test has made there is gone afterwards."""
    with ExitStack() as stack:
        opened = {
            name: stack.enter_context(connect(Address(name, database.dsn))) for name, database in databases.items()
        }
        yield opened
        for connection in opened.values():
            empty(connection)


@pytest.fixture
def shop(any_postgres: PostgresServer, database: Callable[[PostgresServer], Database]) -> Iterator[Shop]:
    """Plain tables with everything that names them."""
    made = Shop(database(any_postgres), f"r{uuid4().hex[:8]}")
    with made.database.connect() as connection:
        connection.execute(SHOP.format(prefix=made.prefix).encode())
    yield made
    made.drop_roles()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as opened:
        yield opened


@pytest.fixture
def records(databases: dict[str, Database]) -> list[Node]:
    """The nodes as the directory knows them: without a password."""
    return [Node(name, "shop", f"postgresql://balancer@{name}/shop", weight=1.0) for name in databases]
