"""What 2,000 idle, 2,000 slow and 2,000 waiting connections cost an instance that leads and works.

The instance is `balancer run` on ZooKeeper with three nodes and moves tablets all the time; a well-behaved client asks
for the status ten times a second. Without the crowd, then with it, in the same run. A tick is late where the bundle's
last one ended longer ago than two ticks.
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from uuid import uuid4

import httpx
import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.embedded.zookeeper import ZooKeeperServer
from tests.support.commands import balancer
from tests.support.crowd import crowds
from tests.support.fleet import Fleet, Process, running, until
from tests.support.servers import new_database
from tests.support.tables import show_table
from tests.support.vitals import vitals

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

EACH = int(os.environ.get("BENCH_CONNECTIONS", "2000"))
SECONDS = float(os.environ.get("BENCH_SECONDS", "45"))
TICK = 2.0


@dataclass
class Watched:
    """One stretch of time."""

    answers: list[float] = field(default_factory=list)
    failed: int = 0
    late: int = 0
    looks: int = 0
    leads: bool = True
    moves: int = 0
    descriptors: int = 0
    cpu: float = 0.0


def watch(process: Process, fleet: Fleet) -> Watched:
    found = Watched()
    before, began = vitals(process.pid).cpu_seconds, time.monotonic()
    with fleet.directory() as directory, httpx.Client(base_url=process.url, timeout=20) as client:
        done = {name for name, one in directory.snapshot().migrations.items() if one.finished}
        while time.monotonic() - began < SECONDS:
            asked = time.monotonic()
            try:
                metrics = client.get("/metrics").text if found.looks % 10 == 0 else ""
                began_status = time.monotonic()
                assert client.get("/v1/status").status_code == 200
                found.answers.append(time.monotonic() - began_status)
            except (httpx.TransportError, AssertionError):
                found.failed += 1
                metrics = ""
            for line in metrics.splitlines():
                if line.startswith("balancer_tick_timestamp_seconds{"):
                    found.late += time.time() - float(line.rpartition(" ")[2]) > 2 * TICK
                if line.startswith("balancer_leader "):
                    found.leads &= line.endswith(" 1.0")
            if found.looks % 50 == 0:  # a look at six thousand takes its time
                found.descriptors = max(found.descriptors, vitals(process.pid).descriptors)
            found.looks += 1
            time.sleep(max(0.0, 0.1 - (time.monotonic() - asked)))
        after = directory.snapshot().migrations
        found.moves = sum(1 for name, one in after.items() if one.finished and name not in done)
    found.cpu = (vitals(process.pid).cpu_seconds - before) / (time.monotonic() - began)
    return found


def keep_working(fleet: Fleet, verb: str) -> None:
    done = balancer(verb, "b", "--config", fleet.config)
    assert done.code == 0, done.err


def test_crowd(tmp_path: Path, postgres18: PostgresServer, zookeeper: ZooKeeperServer) -> None:
    """A well-behaved client, ticks, leadership and descriptors, without and with the crowd."""
    with new_database(postgres18) as a, new_database(postgres18) as b, new_database(postgres18) as c:
        fleet = Fleet(
            tmp_path, f"zk://{zookeeper.address}/crowd{uuid4().hex[:8]}", {"a": a.dsn, "b": b.dsn, "c": c.dsn}, 32
        )
        fleet.bundle = {
            "tablet_balancer_config": "enable_cell_balancer = true",
            "placement": "dimensions = { tablets = 1.0 }",
            "migration": 'retire_grace = "100ms"\nmoves_per_node = 2\nmoves_total = 2\ncool_down = "0s"',
        }
        fleet.write_daemon(tick=f"{TICK:.0f}s", session_timeout="10s")
        fleet.write("autonomous")
        fleet.create(["a"], rows=5000)
        with running(fleet.config, fresh=True) as process, fleet.directory() as directory:
            until(process.leads, 60, "an election")
            epoch = directory.snapshot().epoch
            alone = watch(process, fleet)
            keep_working(fleet, "drain")
            with crowds(process.url, EACH):
                crowded = watch(process, fleet)
            kept = directory.snapshot().epoch == epoch
        show_table(
            f"{EACH} idle, {EACH} slow and {EACH} waiting connections, {SECONDS:.0f} s each",
            ("", "alone", "crowded", "ratio"),
            [
                row("answer, median ms", 1000 * median(alone.answers), 1000 * median(crowded.answers)),
                row("answer, 99 % ms", 1000 * last(alone.answers), 1000 * last(crowded.answers)),
                row("answers", len(alone.answers), len(crowded.answers)),
                row("requests that failed", alone.failed, crowded.failed),
                row("late ticks seen", alone.late, crowded.late),
                row("migrations done", alone.moves, crowded.moves),
                row("descriptors, most", alone.descriptors, crowded.descriptors),
                row("cores used", alone.cpu, crowded.cpu),
            ],
        )
        print(f"led all the time: {alone.leads and crowded.leads}, by one epoch: {kept}")
        assert kept


def last(times: list[float]) -> float:
    return quantiles(times, n=100)[-1]


def row(name: str, alone: float, crowded: float) -> tuple[str, str, str, str]:
    return name, f"{alone:.1f}", f"{crowded:.1f}", f"{crowded / alone:.1f}" if alone else "-"
