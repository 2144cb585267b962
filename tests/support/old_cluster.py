"""Makes a cluster with the code of an older version and keeps what it wrote: its directory, twice, and its nodes.

`git worktree add /tmp/old 1ebc997`, which is 0.1.0, then `python -m tests.support.old_cluster /tmp/old
tests/upgrade/written_by_0_1_0`. The results are in the tree, because a checkout need not have its history.
"""

import base64
import gzip
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psycopg
from kazoo.client import KazooClient

from balancer.embedded.process import free_port
from balancer.embedded.zookeeper import ZooKeeperServer
from tests.support.servers import fast_place, kept, new_folder, postgres

NODES = ("pg-a", "pg-b")
ROWS = 400
BUNDLE = """
mode = "autonomous"
[migration]
cool_down = "0s"
retire_grace = "0s"
[tablet_balancer_config]
tablet_balancer_schedule = "hours > 23"
[tables.orders]
roots = ["public.orders", "public.order_items"]
layout = "hash"
key = ["user_id"]
tablets = 4
[tables.events]
roots = ["public.events"]
layout = "range"
key = ["id"]
splits = [100, 200]
"""
DEFINITION = """
CREATE TABLE orders (user_id bigint, n int, note text, PRIMARY KEY (user_id, n)) PARTITION BY HASH (user_id);
CREATE TABLE order_items (user_id bigint, n int, item int, PRIMARY KEY (user_id, n, item),
    FOREIGN KEY (user_id, n) REFERENCES orders) PARTITION BY HASH (user_id);
"""
EVENTS = "CREATE TABLE events (id bigint PRIMARY KEY, what text) PARTITION BY RANGE (id);"


def configuration(directory: str, dsns: dict[str, str], folder: Path) -> Path:
    """The files of a cluster, for the older version and for this one."""
    (folder / "bundles").mkdir(parents=True, exist_ok=True)
    nodes = "".join(f'[nodes.{node}]\ndsn = "{dsn}"\n' for node, dsn in dsns.items())
    (folder / "bundles" / "shop.toml").write_text(BUNDLE + nodes)
    listen = f'[http]\nlisten = "127.0.0.1:{free_port()}"\n'
    (folder / "balancer.toml").write_text(f'directory = "{directory}"\ntick = "1s"\n{listen}')
    return folder / "balancer.toml"


class Older:
    """The commands of a checkout."""

    def __init__(self, checkout: Path, config: Path) -> None:
        self._environment = {**os.environ, "PYTHONPATH": str(checkout), "BALANCER_CONFIG": str(config)}
        self._checkout = checkout

    def command(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "balancer", *map(str, words)]

    def run(self, *words: object) -> str:
        done = subprocess.run(
            self.command(*words), env=self._environment, cwd=self._checkout, capture_output=True, text=True, check=False
        )
        print("$ balancer", *words, done.stdout, done.stderr)
        assert done.returncode == 0
        return done.stdout

    def start(self, *words: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command(*words), env=self._environment, cwd=self._checkout)


def fill(dsns: dict[str, str]) -> None:
    """Every row on the node that takes it."""
    statements = (
        ("INSERT INTO orders VALUES (%s, 1, 'kept')", range(ROWS)),
        ("INSERT INTO order_items VALUES (%s, 1, 1)", range(ROWS)),
        ("INSERT INTO events VALUES (%s, 'kept')", range(0, 300, 3)),
    )
    for dsn in dsns.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            for statement, keys in statements:
                for key in keys:
                    with suppress(psycopg.errors.CheckViolation):  # no partition for this key here
                        connection.execute(statement, (key,))


def grown(older: Older, folder: Path) -> None:
    """Tables are made, and the daemon moves, splits and refuses something, so that there is a history."""
    (folder / "orders.sql").write_text(DEFINITION)
    (folder / "events.sql").write_text(EVENTS)
    older.run("table", "create", "shop", "orders", "--definition", folder / "orders.sql")
    older.run("table", "create", "shop", "events", "--definition", folder / "events.sql")


def worked(older: Older) -> None:
    daemon = older.start("run")
    try:
        time.sleep(8)
        older.run("tablets")
        older.run("move", 1, "pg-b", "--wait")
        older.run("split", 2, "--wait")
        older.run("drain", "pg-a")
        older.run("undrain", "pg-a")
        older.run("pin", 3)
        older.run("pause", "shop")
        older.run("history")
    finally:
        daemon.terminate()
        daemon.wait(60)


def tree(address: str) -> dict[str, tuple[str, int]]:
    """Every znode, what it says and how often it was set; what lives only as long as a session is left out."""
    client = KazooClient(address)
    client.start()
    found: dict[str, tuple[str, int]] = {}

    def visit(path: str) -> None:
        data, stat = client.get(path)
        if not stat.ephemeralOwner:
            found[path] = base64.b64encode(data).decode(), stat.version
            for child in sorted(client.get_children(path)):
                visit(f"{path}/{child}")

    visit("/directory")
    client.stop()
    return found


def main(checkout: Path, results: Path) -> None:
    folder = new_folder(fast_place())
    with (
        kept(folder),
        postgres(folder / "servers", 15) as server,
        ZooKeeperServer(folder / "zookeeper") as directory,
    ):
        dsns = {}
        for node in NODES:
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute(f'CREATE DATABASE "{node}"')
            dsns[node] = server.dsn(node)
        older = Older(checkout, configuration(f"sqlite://{folder}/directory.db", dsns, folder))
        grown(older, folder)
        fill(dsns)
        worked(older)
        older.run("directory", "export", folder / "export.json")
        other = Older(checkout, configuration(f"zk://{directory.address}/directory", dsns, folder / "zk"))
        other.run("directory", "import", folder / "export.json")
        other.run("status")
        keep(folder, results, server.program("pg_dump"), dsns, tree(directory.address))


def keep(folder: Path, results: Path, pg_dump: Path, dsns: dict[str, str], znodes: dict[str, tuple[str, int]]) -> None:
    for node, dsn in dsns.items():
        command: list[str | Path] = [pg_dump, "--no-owner", "--inserts", "--rows-per-insert=100", dsn]
        dumped = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        (results / f"{node}.sql").write_text(dumped)
    packed = gzip.compress((folder / "directory.db").read_bytes(), mtime=0)
    (results / "directory.db.gz").write_bytes(packed)
    (results / "export.json").write_text((folder / "export.json").read_text())
    (results / "zookeeper.json").write_text(json.dumps(znodes, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
