"""`make soak`: an instance under load and steady work, looked at all the time. `python -m tests.support.soak SECONDS`.

Three nodes, ZooKeeper, an application that writes and reads, and a node that is drained and filled again without end,
so that migrations, plans and commands come and go as they would in months. Ends with 1 if anything that must stay flat
has grown in the second half, or if a write was lost.
"""

import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psycopg

from balancer.directory.contract import Directory
from balancer.embedded.keeper import Keeper
from balancer.embedded.postgres import PostgresServer
from balancer.embedded.zookeeper import ZooKeeperServer
from tests.support.commands import balancer
from tests.support.fleet import Fleet, Process, application, owners, running, until
from tests.support.servers import new_database, postgres
from tests.support.tables import show_table
from tests.support.vitals import Vitals, vitals

LOOKS = 24
DRAINED = "c"


@dataclass(frozen=True, slots=True)
class Look:
    """The instance at one moment."""

    at: float
    process: Vitals
    connections: int
    migrations: int
    version: int

    def flat(self) -> dict[str, float]:
        """What must not grow."""
        return {
            "memory": self.process.memory_bytes / 1e6,
            "threads": self.process.threads,
            "descriptors": self.process.descriptors,
            "sockets": self.process.sockets,
            "connections": self.connections,
        }


def look(began: float, process: Process, server: PostgresServer, directory: Directory) -> Look:
    with psycopg.connect(server.dsn()) as connection:
        ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'tablet-balancer%%'"
        row = connection.execute(ours.encode()).fetchone()
    snapshot = directory.snapshot()
    count = int(str(row[0])) if row else 0
    return Look(time.monotonic() - began, vitals(process.pid), count, len(snapshot.migrations), snapshot.version)


def work(fleet: Fleet, process: Process, server: PostgresServer, seconds: float) -> list[Look]:
    """Drains and fills a node until the time is over."""
    looks: list[Look] = []
    began = time.monotonic()
    draining = False
    with fleet.directory() as directory:
        while (now := time.monotonic() - began) < seconds:
            count = owners(directory.snapshot())[DRAINED]
            if draining and not count:
                draining = not act("undrain", fleet)
            elif not draining and count:
                draining = act("drain", fleet)
            if now >= len(looks) * seconds / LOOKS:
                looks.append(look(began, process, server, directory))
            time.sleep(0.2)
        # A former owner shows its rows until they are retired: nothing new starts, and what runs comes to its end.
        fleet.write("observe")
        time.sleep(5.0)
        until(
            lambda: all(one.finished for one in directory.snapshot().migrations.values()), 120, "the end of all moves"
        )
    return looks


def act(verb: str, fleet: Fleet) -> bool:
    done = balancer(verb, DRAINED, "--config", fleet.config)
    assert done.code == 0, done.err
    return True


def grown(looks: list[Look]) -> list[str]:
    """What is clearly more at the end than before the middle; medians, because every running move has connections."""
    middle, end = looks[len(looks) // 4 : len(looks) // 2], looks[-len(looks) // 4 :]
    found = []
    for name in end[0].flat():
        before, after = (median(one.flat()[name] for one in part) for part in (middle, end))
        if after > before * 1.1 + 5:
            found.append(f"{name} grew from {before:.0f} to {after:.0f}")
    return found


def soak(folder: Path, seconds: float) -> list[str]:
    """Runs it; returns what is wrong."""
    with ExitStack() as stack:
        stack.enter_context(Keeper(folder))
        server = stack.enter_context(postgres(folder / "postgres", 18))
        zookeeper = stack.enter_context(ZooKeeperServer(folder / "zookeeper"))
        dsns = {name: stack.enter_context(new_database(server)).dsn for name in "abc"}
        fleet = Fleet(folder, f"zk://{zookeeper.address}/soak", dsns, tablets=16)
        fleet.bundle = {
            "tablet_balancer_config": "enable_cell_balancer = true",
            "placement": "dimensions = { tablets = 1.0 }",
            "migration": 'retire_grace = "100ms"\nmoves_per_node = 2\nmoves_total = 4\ncool_down = "0s"',
        }
        fleet.write_daemon()
        fleet.write("autonomous")
        fleet.create(["a"], rows=5000)
        with running(fleet.config) as process, application(fleet, seed=1) as ledger:
            until(process.leads, 60, "an election")
            looks = work(fleet, process, server, seconds)
        with fleet.directory() as directory:
            lost = ledger.faults(fleet.cluster(directory.snapshot()).rows())
        columns = ("seconds", "CPU s", *looks[0].flat(), "migrations", "version")
        rows = [
            (
                f"{one.at:.0f}",
                one.process.cpu_seconds,
                *(round(v) for v in one.flat().values()),
                one.migrations,
                one.version,
            )
            for one in looks
        ]
        show_table(f"{ledger.operations} operations in {seconds:.0f} s", columns, rows)
        return [*grown(looks), *lost]


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    folder = Path(tempfile.mkdtemp(prefix="balancer-soak-"))
    folder.chmod(0o755)
    try:
        wrong = soak(folder, seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(wrong) or "everything that must stay flat did, and no write was lost")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
