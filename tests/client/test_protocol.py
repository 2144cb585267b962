"""docs/protocol.md: its promises on PostgreSQL 15 and 18, and the client for Node.js that was written from it."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from balancer.api.app import create_app
from balancer.api.server import ApiServer
from balancer.embedded.postgres import PostgresServer
from tests.support.instance import TOKEN, http_settings
from tests.support.running import Running, product, until

TREE = Path(__file__).parents[2]
KEY = 900_001
LANES = 4


@dataclass(frozen=True)
class Served:
    """A cluster and its coordinator."""

    running: Running
    url: str


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, postgres15: PostgresServer, postgres18: PostgresServer
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("protocol")
    http = http_settings()
    with (
        product(folder, {"old": postgres15, "new": postgres18}) as running,
        running.daemon() as daemon,
        ApiServer(create_app(daemon, http), http) as server,
    ):
        (folder / "token").write_text(TOKEN)
        write_passwords(running)
        yield Served(running, server.url)


def write_passwords(running: Running) -> None:
    """As applications have them: the coordinator's addresses have none."""
    file = running.folder / "passfile"
    file.touch(mode=0o600)
    servers = [database.server for database in running.databases.values()]
    file.write_text("".join(f"127.0.0.1:{server.port}:*:postgres:{server.password()}\n" for server in servers))


def environment(running: Running) -> dict[str, str]:
    return {**os.environ, "PGPASSFILE": str(running.folder / "passfile"), "BALANCER_TOKEN": TOKEN}


def conformance(served: Served, *more: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(TREE / "clients" / "conformance.py"), served.url, "orders", str(KEY)]
    token = ["--token-file", str(served.running.folder / "token")]
    command = [*program, *token, *more]
    return subprocess.run(
        command, env=environment(served.running), capture_output=True, text=True, check=False, timeout=200
    )


def test_the_promises_are_kept_on_both_versions_while_the_key_moves_between_them(served: Served) -> None:
    said = conformance(served, "--moves", "2")
    print(said.stdout)
    assert said.returncode == 0, said.stdout + said.stderr
    kept = set(re.findall(r"\bc(\d+)_|_c(\d+)_", said.stdout))
    numbers = {int(one or other) for one, other in kept}
    promised = {int(number) for number in re.findall(r"\(C(\d+)\)", (TREE / "docs" / "protocol.md").read_text())}
    assert numbers == promised == set(range(1, 13))


def test_a_node_without_the_proof_breaks_them(served: Served) -> None:
    """The script can fail: on a cluster whose nodes believe everything, promises are named as broken."""
    owner = next(iter(served.running.databases.values()))
    with owner.connect() as connection:
        source = connection.execute("SELECT pg_get_functiondef('balancer.hold'::regproc)").fetchone()
        assert source is not None
    try:
        for database in served.running.databases.values():
            with database.connect() as connection:
                connection.execute(
                    "CREATE OR REPLACE PROCEDURE balancer.hold(wanted bigint, known_epoch bigint, writing boolean)"
                    " LANGUAGE plpgsql AS 'BEGIN END'"
                )
        said = conformance(served)
    finally:
        for database in served.running.databases.values():
            with database.connect() as connection:
                connection.execute(str(source[0]).encode())
    assert said.returncode == 1
    assert "broken  c8_wrong_epochs_are_refused: Broken: it was not refused with 40001 TB002" in said.stdout
    assert conformance(served).returncode == 0


@pytest.fixture(scope="module")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client with what its lock file names, in a folder of its own."""
    npm = shutil.which("npm")
    assert npm is not None, "the test of the client for Node.js needs node and npm: apt install nodejs npm"
    folder = tmp_path_factory.mktemp("node")
    for file in ("package.json", "package-lock.json", "index.js", "writer.js"):
        shutil.copy(TREE / "clients" / "node" / file, folder)
    command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, f"npm ci did not install what package-lock.json names:\n{done.stderr[-2000:]}"
    return folder


def test_the_client_for_node_writes_while_tablets_move(served: Served, node_client: Path) -> None:
    running = served.running
    node = shutil.which("node")
    assert node is not None
    lines: list[str] = []
    with subprocess.Popen(
        [node, "writer.js", served.url, "orders", str(LANES)],
        cwd=node_client,
        env=environment(running),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        reader = threading.Thread(target=lambda: lines.extend(writer.stdout or ()))
        reader.start()
        until(lambda: len(lines) > 20 or writer.poll() is not None, "it writes")
        before = {tablet.id: tablet.node for tablet in running.snapshot().tablets(_table(running))}
        for tablet, owner in before.items():
            move(running, tablet, "old" if owner == "new" else "new")
        seen = len(lines)
        until(lambda: len(lines) > seen + 20 or writer.poll() is not None, "it writes after the moves")
        writer.stdin.close()
        writer.wait(60)
        reader.join()
    *written, last = lines
    assert json.loads(last) == {"failures": []}
    acknowledged = sorted(int(line.split()[1]) for line in written)
    rows = []
    for database in running.databases.values():
        with database.connect() as connection:
            rows += connection.execute("SELECT id, note FROM orders WHERE id >= 1000000").fetchall()
    assert sorted(int(str(number)) for number, _ in rows) == acknowledged
    assert {note for _, note in rows} == {"seen"}
    after = {tablet.id: tablet.node for tablet in running.snapshot().tablets(_table(running))}
    assert all(after[tablet] != owner for tablet, owner in before.items())


def _table(running: Running) -> int:
    return running.snapshot().table("orders").id


def move(running: Running, tablet: int, node: str) -> None:
    """Until it is there: a busy machine may undo a move."""
    for _ in range(5):
        running.balancer("move", str(tablet), node, "--wait")
        if running.snapshot().tablet(tablet).node == node:
            return
    raise AssertionError(f"tablet {tablet} was not moved to {node}")
