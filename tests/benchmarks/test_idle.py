"""What an idle daemon costs: 10,000 tablets on 10 nodes, and nothing happens.

The nodes are ten databases of one server with a thousand real, empty partitions each; the instance is `balancer run` as
a process of its own, with its default tick and session, on each kind of directory. A hash table has a power of two of
tablets, so there is a range table beside it for the rest. Beside it, in the same run: an instance that has nothing to
look after. CPU is what the kernel says of the process.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from balancer.directory.model import Node
from balancer.embedded.postgres import PostgresServer
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.features.tables.adopt import TableRequest
from balancer.features.tables.create import create
from balancer.naming import cluster_name, parse_name
from balancer.nodes.session.connection import Address
from tests.support.fleet import Fleet, running, until
from tests.support.opening import connect
from tests.support.servers import Database
from tests.support.tables import show_table
from tests.support.vitals import vitals

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

NODES = 10
TABLETS = int(os.environ.get("BENCH_TABLETS", "10000"))
VBUCKETS = 1 << (TABLETS.bit_length() - 1)
SECONDS = float(os.environ.get("BENCH_SECONDS", "60"))
# Empty tablets are within these bounds: with the default ones the instance would be busy merging them.
EVENTS = """roots = ["public.events"]
layout = "range"
key = ["id"]
min_tablet_size = "1KB"
desired_tablet_size = "10GB"
max_tablet_size = "20GB"
"""


@pytest.mark.parametrize("kind", ["sqlite", "zookeeper"])
def test_idle_cost(
    kind: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    postgres18: PostgresServer,
    database: Callable[[PostgresServer], Database],
) -> None:
    """CPU of a core while nothing happens."""
    url = f"sqlite://{tmp_path}/shop.db" if kind == "sqlite" else zookeeper_url(request.getfixturevalue("zookeeper"))
    fleet = Fleet(tmp_path, url, {}, tablets=VBUCKETS)
    bare = measure(fleet, "bare", 0)
    fleet.dsns = {f"n{number}": database(postgres18).dsn for number in range(NODES)}
    fleet.write("autonomous", **{"tables.events": EVENTS})
    began = time.monotonic()
    fleet.create(list(fleet.dsns))
    if TABLETS > VBUCKETS:
        create_events(fleet, TABLETS - VBUCKETS)
    print(f"\n{TABLETS} partitions made in {time.monotonic() - began:.0f} s")
    full = measure(fleet, "full", TABLETS)
    rows = [("no bundles", 0, *bare), (f"{NODES} nodes", TABLETS, *full)]
    show_table(
        f"An idle instance on {kind}, {SECONDS:.0f} s",
        ("what", "tablets", "CPU, % of a core", "memory, MB", "threads"),
        rows,
    )


def zookeeper_url(server: ZooKeeperServer) -> str:
    return f"zk://{server.address}/idle"


def create_events(fleet: Fleet, tablets: int) -> None:
    """A range table on all nodes."""
    connections = {name: connect(Address(name, dsn)) for name, dsn in fleet.dsns.items()}
    request = TableRequest("shop", "events", (parse_name("public.events"),), "range", ("id",), "test")
    records = [Node(name, "shop", "postgresql:///shop") for name in fleet.dsns]
    definition = "CREATE TABLE public.events (id bigint PRIMARY KEY) PARTITION BY RANGE (id)"
    splits = [1000 * number for number in range(1, tablets)]
    place = cluster_name(fleet.url)
    try:
        with fleet.directory() as directory:
            create(request, directory, connections, records, place, tablets=0, splits=splits, definition=definition)
    finally:
        for connection in connections.values():
            connection.close()


def measure(fleet: Fleet, name: str, tablets: int) -> tuple[float, float, int]:
    """CPU share in percent, memory and threads of an instance that has settled."""
    config = fleet.write_daemon(name, tick="10s", session_timeout="10s")
    with running(config, fresh=True) as process:
        if tablets:
            metric = 'balancer_plans_total{bundle="shop"}'
            until(lambda: (process.metric(metric) or 0) >= 2, 120, "two ticks")
        before, began = vitals(process.pid), time.monotonic()
        time.sleep(SECONDS)
        after = vitals(process.pid)
        share = (after.cpu_seconds - before.cpu_seconds) / (time.monotonic() - began)
    return 100 * share, after.memory_bytes / 1e6, after.threads
