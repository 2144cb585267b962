"""Forty moves between twenty nodes: how much is carried, and how long writers wait, by how many run at once.

The nodes are databases on two servers, so a server has ten times the slots, workers and log of a node. `BENCH_ROWS`
(20,000) is a tablet's size.
"""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from balancer.embedded.postgres import PostgresServer, embedded_binaries
from balancer.migration.begin import begin_move
from balancer.migration.journal import read_detail
from balancer.settings import MigrationSettings
from tests.benchmarks.test_migrations import COLUMNS, SETTINGS, quantiles
from tests.support.cluster import Cluster, build, hash_table, hash_tablets, insert_rows
from tests.support.servers import new_database
from tests.support.tables import show_table

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

NODES, MOVES = 20, 40
ROWS = int(os.environ.get("BENCH_ROWS", "20000"))
AT_ONCE = (1, 2, 4, 10, 20)
ROOM = {
    "max_replication_slots": "60",
    "max_wal_senders": "60",
    "max_worker_processes": "80",
    "max_logical_replication_workers": "60",
    "max_connections": "400",
}


@pytest.fixture
def cluster(tmp_path: Path, server_folder: Path) -> Iterator[Cluster]:
    """Forty tablets on the first ten nodes; the other ten are on another server."""
    folder = server_folder / "bench-many"
    folder.mkdir()
    folder.chmod(0o755)
    binaries, settings = embedded_binaries(18), {**SETTINGS, **ROOM}
    with ExitStack() as stack:
        servers = [stack.enter_context(PostgresServer(folder / name, binaries, settings)) for name in "ab"]
        names = [f"n{number}" for number in range(NODES)]
        dsns = {
            name: stack.enter_context(new_database(servers[number * 2 // NODES])).dsn
            for number, name in enumerate(names)
        }
        made = build(tmp_path, dsns, hash_table(), hash_tablets(64, names[: NODES // 2]), COLUMNS)
        insert_rows(made, made.tablets(), range(ROWS * 64 // 10))
        made.settings = replace(made.settings, chunk_size=MigrationSettings().chunk_size)
        yield made
        made.close()


def test_forty_moves_between_twenty_nodes(cluster: Cluster) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    runner = cluster.runner(directory, leadership)
    rows = []
    with psycopg.connect(cluster.dsns["n0"], autocommit=True) as connection:
        found = connection.execute("SELECT pg_total_relation_size(relid) FROM pg_partition_tree('orders') WHERE isleaf")
        size = int(next(found)[0])
    for round_number, at_once in enumerate(AT_ONCE):
        back = round_number % 2 == 1

        def run(tablet: int, back: bool = back) -> float:
            home = (tablet - 1) % (NODES // 2)
            target = f"n{home}" if back else f"n{home + NODES // 2}"
            done = runner.run(begin_move(directory, leadership, tablet, target).id)
            assert done.state == "done", done.error
            return (read_detail(done).pause or 0.0) * 1000

        began = time.monotonic()
        with ThreadPoolExecutor(at_once) as pool:
            pauses = list(pool.map(run, range(1, MOVES + 1)))
        taken = time.monotonic() - began
        rows.append((at_once, taken, MOVES / taken, MOVES * size / taken / 1e6, *quantiles(pauses)))
    show_table(
        f"{MOVES} moves of tablets of {size / 1e6:.1f} MB between {NODES} nodes on two servers",
        ["at once", "seconds", "moves/s", "MB/s", "pause p50 ms", "p90", "p99", "longest"],
        rows,
    )
