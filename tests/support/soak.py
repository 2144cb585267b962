"""`make soak`: an instance under load and steady work, looked at all the time. `python -m tests.support.soak SECONDS`.

Three nodes, ZooKeeper, an application that writes and reads, and a node that is drained and filled again without end,
so that migrations, plans and commands come and go as they would in months. Every running move has threads, connections
and files of its own, so the instance is also looked at twice with none under way: after a quarter of the time, and at
the end. Ends with 1 if anything that must stay flat has grown in the second half or from rest to rest, or if a write
was lost.
"""

import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psycopg

from balancer.directory.contract import Directory
from balancer.directory.model import NodeState
from balancer.embedded.postgres import PostgresServer
from balancer.embedded.reaper import Keeper
from balancer.embedded.zookeeper_server import ZooKeeperServer
from tests.support.commands import balancer
from tests.support.fleet import Fleet, Process, application, owners, running, until
from tests.support.servers import new_database, postgres
from tests.support.tables import show_table
from tests.support.vitals import Vitals, vitals

LOOKS = 24
DRAINED = "c"
REST_SECONDS = 6.0
SLACK = 2  # threads, connections and files more at rest than before: a tick or a question may be under way


@dataclass(frozen=True, slots=True)
class Look:
    """The instance at one moment."""

    at: float
    process: Vitals
    connections: int
    running: int
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
    open_ones = sum(not migration.finished for migration in snapshot.migrations.values())
    migrations = len(snapshot.migrations)
    return Look(time.monotonic() - began, vitals(process.pid), count, open_ones, migrations, snapshot.version)


@dataclass
class Soak:
    """One run: the instance, what it works on, and what was seen of it."""

    fleet: Fleet
    process: Process
    server: PostgresServer
    directory: Directory
    seconds: float
    began: float = field(default_factory=time.monotonic)
    looks: list[Look] = field(default_factory=list)
    rests: list[Look] = field(default_factory=list)

    def run(self) -> None:
        self.work(self.seconds / 4)
        self.rest()
        self.work(self.seconds)
        self.rest()

    def work(self, until_second: float) -> None:
        """Drains and fills a node until that second."""
        self.fleet.write("autonomous")
        draining = self.directory.snapshot().nodes[DRAINED].state is NodeState.DRAINING
        while (now := time.monotonic() - self.began) < until_second:
            count = owners(self.directory.snapshot())[DRAINED]
            if draining and not count:
                draining = not act("undrain", self.fleet)
            elif not draining and count:
                draining = act("drain", self.fleet)
            if now >= len(self.looks) * self.seconds / LOOKS:
                self.looks.append(self.look())
            time.sleep(0.2)

    def rest(self) -> None:
        """Nothing new starts, and what runs comes to its end: a former owner shows its rows until they are retired."""
        self.fleet.write("observe")
        time.sleep(REST_SECONDS)
        until(self.idle, 120, "the end of all moves")
        time.sleep(REST_SECONDS)
        self.rests.append(self.look())

    def idle(self) -> bool:
        return all(one.finished for one in self.directory.snapshot().migrations.values())

    def look(self) -> Look:
        return look(self.began, self.process, self.server, self.directory)

    def show(self, operations: int) -> None:
        columns = ("seconds", "CPU s", *self.looks[0].flat(), "running", "migrations", "version")
        rows = [figures(f"{one.at:.0f}", one) for one in self.looks]
        rows += [figures(f"{one.at:.0f} at rest", one) for one in self.rests]
        show_table(f"{operations} operations in {self.seconds:.0f} s", columns, rows)


def figures(name: str, one: Look) -> tuple[object, ...]:
    flat = (round(value) for value in one.flat().values())
    return (name, one.process.cpu_seconds, *flat, one.running, one.migrations, one.version)


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


def left_over(before: Look, after: Look) -> list[str]:
    """What there is more of at rest than at the rest before: with nothing under way, nothing may be kept."""
    found = []
    for name, then in before.flat().items():
        now, allowed = after.flat()[name], 0.1 * then + 5 if name == "memory" else SLACK
        if now > then + allowed:
            found.append(f"at rest {name} grew from {then:.0f} to {now:.0f}")
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
        directory = stack.enter_context(fleet.directory())
        with running(fleet.config) as process, application(fleet, seed=1) as ledger:
            until(process.leads, 60, "an election")
            run = Soak(fleet, process, server, directory, seconds)
            run.run()
        run.show(ledger.operations)
        lost = ledger.faults(fleet.cluster(directory.snapshot()).rows())
        return [*grown(run.looks), *left_over(*run.rests), *lost]


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
