"""A cluster that 0.1.0 wrote is opened, brought up to date and balanced by this version, with nothing lost.

`written_by_0_1_0` is made by that version's own code: see `tests.support.old_cluster`.
"""

import base64
import gzip
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from kazoo.client import KazooClient

from balancer.embedded.postgres import PostgresServer
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.nodes.schema.install import STEPS
from tests.support.commands import balancer_here, started
from tests.support.old_cluster import NODES, ROWS, configuration
from tests.support.servers import Database

WRITTEN = Path(__file__).parent / "written_by_0_1_0"
PATIENCE = 60.0


def in_sqlite(folder: Path, zookeeper: ZooKeeperServer) -> str:
    file = folder / "directory.db"
    file.write_bytes(gzip.decompress((WRITTEN / "directory.db.gz").read_bytes()))
    file.chmod(0o600)
    return f"sqlite://{file}"


def in_zookeeper(folder: Path, zookeeper: ZooKeeperServer) -> str:
    client = KazooClient(zookeeper.address)
    client.start()
    try:
        root = f"/upgrade-{folder.name}"
        for path, (data, version) in json.loads((WRITTEN / "zookeeper.json").read_text()).items():
            client.create(root + path, base64.b64decode(data), makepath=True)
            for _ in range(version):  # writers compare how often a znode was set
                client.set(root + path, base64.b64decode(data))
    finally:
        client.stop()
        client.close()
    return f"zk://{zookeeper.address}{root}/directory"


def in_an_export(folder: Path, zookeeper: ZooKeeperServer) -> str:
    url = f"sqlite://{folder}/directory.db"
    (folder / "balancer.toml").write_text(f'directory = "{url}"\n')
    imported = balancer_here("directory", "import", WRITTEN / "export.json", "--config", folder / "balancer.toml")
    assert imported.code == 0, imported.err
    return url


class Upgraded:
    """The nodes as 0.1.0 left them, and the commands of this version."""

    def __init__(self, config: Path, dsns: dict[str, str]) -> None:
        self._config = config
        self.dsns = dsns

    def run(self, *words: str) -> str:
        done = balancer_here(*words, "--config", self._config)
        assert done.code == 0, (words, done.out, done.err)
        return done.out

    def rows(self, table: str, key: str) -> list[object]:
        found = []
        for dsn in self.dsns.values():
            with psycopg.connect(dsn) as connection:
                found += [row[0] for row in connection.execute(f"SELECT {key} FROM {table}".encode())]
        return sorted(found)

    def versions(self) -> set[object]:
        found = set()
        for dsn in self.dsns.values():
            with psycopg.connect(dsn) as connection:
                found |= {row[0] for row in connection.execute("SELECT schema_version FROM balancer.node")}
        return found

    def everything_is_there(self) -> None:
        assert self.rows("orders", "user_id") == list(range(ROWS))
        assert self.rows("order_items", "user_id") == list(range(ROWS))
        assert self.rows("events", "id") == list(range(0, 300, 3))

    @contextmanager
    def daemon(self) -> Iterator[None]:
        said = self._config.parent / "log"
        with (
            said.open("wb") as log,
            started("-m", "balancer", "run", "--config", self._config, stdout=log, stderr=log) as process,
        ):
            deadline = time.monotonic() + PATIENCE
            while "no instance leads" in balancer_here("status", "--config", self._config).out:
                assert process.poll() is None, said.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.2)
            yield
            process.terminate()
            assert process.wait(PATIENCE) == 0


Opened = Callable[[Callable[[Path, ZooKeeperServer], str]], Upgraded]


@pytest.fixture
def opened(
    tmp_path: Path,
    any_postgres: PostgresServer,
    zookeeper: ZooKeeperServer,
    database: Callable[[PostgresServer], Database],
) -> Opened:
    def open_it(where: Callable[[Path, ZooKeeperServer], str]) -> Upgraded:
        dsns = {}
        for node in NODES:
            dsns[node] = database(any_postgres).dsn
            program, file = any_postgres.program("psql"), WRITTEN / f"{node}.sql"
            command: list[str | Path] = [program, "-qXv", "ON_ERROR_STOP=1", "-f", file, dsns[node]]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        return Upgraded(configuration(where(tmp_path, zookeeper), dsns, tmp_path), dsns)

    return open_it


@pytest.mark.parametrize("where", [in_sqlite, in_zookeeper])
def test_a_directory_of_0_1_0_is_opened_upgraded_and_balanced(
    opened: Opened, where: Callable[[Path, ZooKeeperServer], str]
) -> None:
    cluster = opened(where)
    assert cluster.versions() == {5}, "that of 0.1.0"
    cluster.run("directory", "check")
    before = cluster.run("tablets")
    assert "3" in before
    with cluster.daemon():
        cluster.run("resume", "shop")
        cluster.run("move", "8", "pg-b", "--wait")
        cluster.run("move", "1", "pg-a", "--wait")
        cluster.run("split", "4", "--wait")
        cluster.run("unpin", "3")
        assert cluster.versions() == {len(STEPS)}
        cluster.everything_is_there()
        cluster.run("verify", "orders")
        cluster.run("verify", "events")
    assert "create table orders" in cluster.run("history") or where is in_zookeeper, "what 0.1.0 did is still told"


def test_an_export_of_0_1_0_is_imported(opened: Opened) -> None:
    cluster = opened(in_an_export)
    cluster.run("directory", "check")
    assert cluster.run("tablets") == opened(in_sqlite).run("tablets")
