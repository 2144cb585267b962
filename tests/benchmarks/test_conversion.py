"""What a conversion costs under load: how long writers wait, beside a maintenance window in which rows are copied."""

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from balancer.directory.model import Node
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.features.convert.run import convert
from balancer.nodes.session.connection import Address, connect
from balancer.settings import MigrationSettings
from tests.support.converting import request_of, workplace
from tests.support.servers import Database
from tests.support.tables import show_table

pytestmark = pytest.mark.bench

SCALE = int(os.environ.get("CONVERT_SCALE", "10"))
WINDOW = """
BEGIN;
LOCK TABLE pgbench_accounts IN ACCESS EXCLUSIVE MODE;
CREATE TABLE fresh (LIKE pgbench_accounts INCLUDING DEFAULTS) PARTITION BY HASH (aid);
CREATE TABLE fresh_0 PARTITION OF fresh FOR VALUES WITH (MODULUS 1, REMAINDER 0);
INSERT INTO fresh SELECT * FROM pgbench_accounts;
ALTER TABLE fresh ADD PRIMARY KEY (aid);
ALTER TABLE pgbench_accounts RENAME TO former;
ALTER TABLE fresh RENAME TO pgbench_accounts;
COMMIT
"""


def pgbench(database: Database, *arguments: str) -> list[str]:
    server = database.server
    dsn = f"host=127.0.0.1 port={server.port} user=postgres password={server.password()} dbname={database.name}"
    return [str(server.program("pgbench")), *arguments, dsn]


def test_writers_wait_for_moments_and_not_for_a_copy(
    any_postgres: PostgresServer, database: Callable[[PostgresServer], Database], tmp_path: Path
) -> None:
    fresh = database(any_postgres)
    subprocess.run(pgbench(fresh, "-i", "-q", "-s", str(SCALE)), check=True, capture_output=True)
    load = subprocess.Popen(
        pgbench(fresh, "-n", "-N", "-c", "2", "-T", "600", "-P", "1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        time.sleep(2)
        wanted = request_of("pgbench_accounts", "pgbench_history", key="aid")
        records = [Node("a", "shop", "postgresql:///shop")]
        with open_directory(f"sqlite://{tmp_path}/d.db") as directory, connect(Address("a", fresh.dsn)) as node:
            began = time.perf_counter()
            place = workplace(settings=MigrationSettings())
            done = convert(wanted, directory, {"a": node}, records, "shop", workplace=place)
            whole = time.perf_counter() - began
            version = node.info.server_version // 10000
    finally:
        load.terminate()
        _, said = load.communicate(timeout=60)
    failed = [line for line in said.splitlines() if re.search(r"ERROR|aborted", line)]
    other = database(any_postgres)
    subprocess.run(pgbench(other, "-i", "-q", "-s", str(SCALE)), check=True, capture_output=True)
    with other.connect() as connection:
        began = time.perf_counter()
        connection.execute(WINDOW)
        window = time.perf_counter() - began
    assert failed == []
    assert done.pause is not None
    show_table(
        f"convert pgbench -s {SCALE} under pgbench -N -c 2, PostgreSQL {version}",
        ("way", "others wait, ms", "takes, s", "ratio of waits"),
        [
            ("table convert", done.pause * 1000, whole, 1.0),
            ("CREATE TABLE, INSERT … SELECT under lock", window * 1000, window, window / done.pause),
        ],
    )
