"""Two nodes, one on each version, as a table may be spread over them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Node
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.nodes.connection import Address, Connection, connect
from tests.support.servers import Database


@pytest.fixture
def databases(
    postgres15: PostgresServer, postgres18: PostgresServer, database: Callable[[PostgresServer], Database]
) -> dict[str, Database]:
    return {"a": database(postgres15), "b": database(postgres18)}


@pytest.fixture
def nodes(databases: dict[str, Database]) -> Iterator[dict[str, Connection]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(connect(Address(name, database.dsn))) for name, database in databases.items()}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as opened:
        yield opened


@pytest.fixture
def records(databases: dict[str, Database]) -> list[Node]:
    """The nodes as the directory knows them: without a password."""
    return [Node(name, "shop", f"postgresql://balancer@{name}/shop", weight=1.0) for name in databases]
