"""Two nodes, one on each version, as a table may be spread over them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

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
