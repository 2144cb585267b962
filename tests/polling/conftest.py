"""A small adopted table on real nodes, and a primary with its standby."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Node
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.features.tables.adopt import TableRequest, adopt
from balancer.naming import parse_name
from balancer.nodes.session.connection import Address
from tests.support.opening import connect
from tests.support.servers import Database, postgres

Adopt = Callable[[Directory, dict[str, Database]], None]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(f"sqlite://{tmp_path}/shop.db") as opened:
        yield opened


@pytest.fixture
def adopted() -> Adopt:
    """Makes `orders`, one equal part of the hash space per node, and adopts it."""

    def make(directory: Directory, databases: dict[str, Database]) -> None:
        connections = {name: connect(Address(name, database.dsn)) for name, database in databases.items()}
        try:
            for number, connection in enumerate(connections.values()):
                connection.execute("CREATE TABLE orders (id int PRIMARY KEY) PARTITION BY HASH (id)")
                bound = f"FOR VALUES WITH (MODULUS {len(databases)}, REMAINDER {number})"
                connection.execute(f"CREATE TABLE part{number} PARTITION OF orders {bound}")
            request = TableRequest("shop", "orders", (parse_name("orders"),), "hash", ("id",), "test")
            records = [Node(name, "shop", f"postgresql://balancer@{name}/shop") for name in databases]
            adopt(request, directory, connections, records, "shop")
        finally:
            for connection in connections.values():
                connection.close()

    return make


@pytest.fixture
def primary(server_folder: Path) -> Iterator[PostgresServer]:
    """A server of its own: these tests stop and promote it."""
    folder = server_folder / "primary"
    with postgres(folder, 18) as server:
        yield server
    shutil.rmtree(folder)


@pytest.fixture
def standby(primary: PostgresServer, server_folder: Path) -> Iterator[PostgresServer]:
    """A streaming standby of the primary."""
    folder = server_folder / "standby"
    folder.mkdir()
    shutil.copy(primary.folder / "password", folder / "password")
    owner = primary.data.stat()
    subprocess.run(
        [
            primary.program("pg_basebackup"),
            "-D",
            folder / "data",
            "-d",
            primary.dsn(),
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
        ],
        check=True,
        capture_output=True,
    )
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    with postgres(folder, 18) as server:
        yield server
    shutil.rmtree(folder)
