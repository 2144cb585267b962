"""What an idle daemon costs: some 8,000 tablets (BENCH_TABLETS) on 10 nodes, and nothing happens.

The nodes are ten databases of one server with eight hundred real, empty partitions each; the instance is `balancer run`
as a process of its own, with its default tick, on a SQLite directory. Beside it, in the same run: an instance that has
nothing to look after. CPU is what the kernel says of the process.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from balancer.embedded.postgres import PostgresServer
from tests.support.fleet import Fleet, running, until
from tests.support.servers import Database
from tests.support.tables import show_table
from tests.support.vitals import vitals

pytestmark = pytest.mark.bench

NODES = 10
TABLETS = int(os.environ.get("BENCH_TABLETS", "8192"))  # a hash table has a power of two of them
SECONDS = float(os.environ.get("BENCH_SECONDS", "60"))


def test_idle_cost(tmp_path: Path, postgres18: PostgresServer, database: Callable[[PostgresServer], Database]) -> None:
    """CPU of a core while nothing happens."""
    fleet = Fleet(tmp_path, f"sqlite://{tmp_path}/shop.db", {}, tablets=TABLETS)
    bare = measure(fleet, "bare", 0)
    fleet.dsns = {f"n{number}": database(postgres18).dsn for number in range(NODES)}
    fleet.write("autonomous")
    began = time.monotonic()
    fleet.create(list(fleet.dsns))
    print(f"\n{TABLETS} partitions made in {time.monotonic() - began:.0f} s")
    full = measure(fleet, "full", TABLETS)
    rows = [("no bundles", 0, *bare), (f"{NODES} nodes", TABLETS, *full)]
    show_table(
        f"An idle instance, {SECONDS:.0f} s", ("what", "tablets", "CPU, % of a core", "memory, MB", "threads"), rows
    )


def measure(fleet: Fleet, name: str, tablets: int) -> tuple[float, float, int]:
    """CPU share in percent, memory and threads of an instance that has settled."""
    config = fleet.write_daemon(name, tick="10s")
    with running(config) as process:
        if tablets:
            metric = 'balancer_plans_total{bundle="shop"}'
            until(lambda: (process.metric(metric) or 0) >= 2, 120, "two ticks")
        before, began = vitals(process.pid), time.monotonic()
        time.sleep(SECONDS)
        after = vitals(process.pid)
        share = (after.cpu_seconds - before.cpu_seconds) / (time.monotonic() - began)
    return 100 * share, after.memory_bytes / 1e6, after.threads
