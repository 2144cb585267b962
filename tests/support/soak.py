"""`make soak`: an instance under load and steady work, watched all the time. `python -m tests.support.soak SECONDS`.

Three nodes, ZooKeeper, an application that writes and reads, and a node that is drained and filled again endlessly, so
that migrations, plans and commands come and go as they would over months. Every running move has threads, connections
and files of its own, so the instance is also measured twice with none under way: after a quarter of the time, and at
the end. Meanwhile `soak_nemeses` troubles its servers, and two crews of `workloads` keep track. Ends with 1 if anything
that must stay flat has grown in the second half or from rest to rest, if a write was lost, or if the doctor finds
something. `SOAK_SEED` repeats a run.
"""

import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

import psycopg

from balancer.directory.contract import Directory
from balancer.directory.model import NodeState
from balancer.embedded.postgres import PostgresServer
from balancer.embedded.reaper import Keeper
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.features.repair.doctor import examine
from tests.support.cluster import Cluster
from tests.support.commands import balancer
from tests.support.fleet import Fleet, Process, owners, running, until
from tests.support.nemeses import small_disk
from tests.support.servers import new_database, postgres
from tests.support.soak_nemeses import Trouble
from tests.support.tables import show_table
from tests.support.vitals import Vitals, vitals
from tests.support.workloads.approach import HELD, PLAIN
from tests.support.workloads.crew import Crew, at_work
from tests.support.workloads.list_append import ListAppend
from tests.support.workloads.set_of_ids import SetOfIds

LOOKS = 24
DRAINED = "c"
REST_SECONDS = 6.0
DISK_MEGABYTES = 3000  # a file system of its own, which one of the troubles fills
LISTS = 400  # rows that are appended to
SLACK = 2  # more threads, connections and files at rest than before: a tick or a request may be under way


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
    trouble: Trouble | None = None

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
                with suppress(psycopg.OperationalError):  # the server is being killed: the next look comes soon
                    self.looks.append(self.look())
            time.sleep(0.2)

    def rest(self) -> None:
        """Nothing new starts, and what is running ends: a former owner shows its rows until they are retired."""
        if self.trouble is not None:
            self.trouble.rest()
        self.fleet.write("observe")
        time.sleep(REST_SECONDS)
        until(self.idle, 120, "the end of all moves")
        time.sleep(REST_SECONDS)
        self.rests.append(self.look())
        if self.trouble is not None:
            self.trouble.go_on()

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
    """Until it succeeds: the directory may be away for a moment."""
    deadline = time.monotonic() + 60
    while (done := balancer(verb, DRAINED, "--config", fleet.config)).code != 0:
        assert time.monotonic() < deadline, done.err
        time.sleep(0.5)
    return True


def grown(looks: list[Look]) -> list[str]:
    """What is clearly higher at the end than before the middle; medians, because every running move has connections."""
    middle, end = looks[len(looks) // 4 : len(looks) // 2], looks[-len(looks) // 4 :]
    found = []
    for name in end[0].flat():
        before, after = (median(one.flat()[name] for one in part) for part in (middle, end))
        if after > before * 1.1 + 5:
            found.append(f"{name} grew from {before:.0f} to {after:.0f}")
    return found


def left_over(before: Look, after: Look) -> list[str]:
    """What there is more of at rest than at the previous rest: with nothing under way, nothing may be kept."""
    found = []
    for name, then in before.flat().items():
        now, allowed = after.flat()[name], 0.1 * then + 5 if name == "memory" else SLACK
        if now > then + allowed:
            found.append(f"at rest {name} grew from {then:.0f} to {now:.0f}")
    return found


def soak(folder: Path, seconds: float, seed: int) -> list[str]:
    """Runs it; returns what is wrong."""
    with ExitStack() as stack:
        stack.enter_context(Keeper(folder))
        disk = stack.enter_context(small_disk(folder / "disk", DISK_MEGABYTES))
        server = stack.enter_context(postgres(disk / "postgres", 18, {"max_wal_size": "256MB"}))
        zookeeper = stack.enter_context(ZooKeeperServer(folder / "zookeeper"))
        dsns = {name: stack.enter_context(new_database(server)).dsn for name in "abc"}
        fleet = Fleet(folder, f"zk://{zookeeper.address}/soak", dsns, tablets=16)
        fleet.bundle = {
            "tablet_balancer_config": "enable_cell_balancer = true",
            "placement": "dimensions = { tablets = 1.0 }",
            "migration": 'retire_grace = "100ms"\nmoves_per_node = 2\nmoves_total = 4\ncool_down = "0s"\n'
            'back_off = "1s"',
        }
        fleet.write_daemon()
        fleet.write("autonomous")
        fleet.create(["a"], rows=5000)
        directory = stack.enter_context(fleet.directory())
        cluster = replace(fleet.cluster(directory.snapshot()), url=fleet.url)
        stack.callback(cluster.close)
        trouble = Trouble(server, zookeeper, dsns, seed)
        with running(fleet.config) as process, crews(cluster, fleet.present, seed) as working:
            until(process.leads, 60, "an election")
            trouble.instance = process.pid
            trouble.start()
            run = Soak(fleet, process, server, directory, seconds, trouble=trouble)
            try:
                run.run()
            finally:
                trouble.stop()
            found = [fault for crew in working for fault in crew.faults()]
        run.show(sum(crew.operations for crew in working))
        print(*(crew.summary() for crew in working), sep="\n")
        print("troubles: " + ", ".join(f"{name} {count}" for name, count in sorted(trouble.made.items())))
        found += inspected(directory, cluster)
        return [*grown(run.looks), *left_over(*run.rests), *found, *trouble.faults]


def inspected(directory: Directory, cluster: Cluster) -> list[str]:
    """What the doctor finds. Rows that were set aside, because a trouble has switched triggers of a former owner off
    and on, are handled as a person would: nothing was written to them, so they are dropped."""
    for one in examine(directory, cluster.address):
        kept = re.match(r"schema (balancer_kept_\w+): .* and 0 rows were written here since", one.text)
        if kept and one.node:
            print(f"set aside on node {one.node}, and dropped by hand: {kept[1]}")
            with cluster.connect(one.node) as connection:
                connection.execute(f"DROP SCHEMA {kept[1]} CASCADE".encode())
    return [f"doctor, node {one.node}: {one.text}" for one in examine(directory, cluster.address)]


@contextmanager
def crews(cluster: Cluster, present: range, seed: int) -> Iterator[tuple[Crew, ...]]:
    """A set through the root with proof, and lists in plain SQL, over all tablets."""
    keys = [*present]
    every = [tablet.id for tablet in cluster.directory().snapshot().tablets(cluster.table.id)]
    cluster.query("a", f"UPDATE orders SET note = '' WHERE id <= {LISTS} RETURNING 1")
    crew = partial(at_work, cluster, tablets=every, processes=1, writers=3, readers=1, pace=0.005)
    with (
        crew(SetOfIds(keys[LISTS:], others=keys), HELD, seed=seed) as first,
        crew(ListAppend(keys[:LISTS]), PLAIN, seed=seed) as second,
    ):
        yield first, second


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    seed = int(os.environ.get("SOAK_SEED", random.SystemRandom().randrange(1_000_000)))
    folder = Path(tempfile.mkdtemp(prefix="balancer-soak-"))
    folder.chmod(0o755)
    try:
        print(f"SOAK_SEED={seed}", flush=True)
        wrong = soak(folder, seconds, seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(wrong) or "everything that must stay flat did, no write was lost, and the doctor is content")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
