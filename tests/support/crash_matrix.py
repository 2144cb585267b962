"""One cell of the crash matrix: a migration under load, somebody killed at a named point, a successor, the account.

Used by the test, which runs a sample, and by `python -m tests.support.crash_matrix`, which runs all and prints a table.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import uuid4

from balancer.directory.model import MigrationKind, MigrationMode
from balancer.embedded.postgres import PostgresServer
from balancer.embedded.process import free_port
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.migration.doctor import examine
from balancer.migration.machine import State, Track, path, track_of
from tests.support.cluster import QUICK, Cluster, build, hash_table, hash_tablets, insert_rows
from tests.support.crash_daemon import Plan
from tests.support.servers import new_database, postgres
from tests.support.workload import Ledger, owner, running

VICTIMS = ("daemon", "paused daemon", "source", "target", "directory")
PATIENCE = 60.0
FENCED = 3  # how a daemon ends that does not lead any more


@dataclass(frozen=True)
class Cell:
    """Who is killed, and when."""

    operation: MigrationKind
    mode: MigrationMode
    point: str
    victim: str

    def __str__(self) -> str:
        return f"{self.operation}, {self.mode}: {self.victim} at {self.point}"

    @property
    def track(self) -> Track:
        return track_of(self.operation, self.mode)


def cells() -> Iterator[Cell]:
    """The whole matrix: the beginning of every state, and its end where that differs from the next one's beginning."""
    for operation in MigrationKind:
        for mode in MigrationMode:
            for state in path(track_of(operation, mode)):
                if state in (State.PLANNED, State.DONE):
                    continue
                for when in ("entered", "left"):
                    for victim in VICTIMS:
                        if victim == "target" and operation is not MigrationKind.MOVE:
                            continue  # a split has one node
                        yield Cell(operation, mode, f"{when}:{state}", victim)


@dataclass(frozen=True)
class Outcome:
    """What is wrong afterwards, and what was measured."""

    faults: tuple[str, ...]
    operations: int
    longest_wait: float
    state: str


@dataclass(frozen=True)
class Victims:
    """Servers that a cell may kill: nobody else uses them."""

    nodes: Mapping[str, PostgresServer]
    keeper: ZooKeeperServer


@contextmanager
def victims(folder: Path) -> Iterator[Victims]:
    """Two nodes of different versions and a ZooKeeper."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    with (
        postgres(folder / "a", 15) as a,
        postgres(folder / "b", 18) as b,
        ZooKeeperServer(folder / "keeper") as keeper,
    ):
        yield Victims({"a": a, "b": b}, keeper)


def run_cell(cell: Cell, folder: Path, servers: Victims, seed: int) -> Outcome:
    """Runs one cell on databases of its own. The directory is a file, unless it is to be killed."""
    with ExitStack() as stack:
        dsns = {node: stack.enter_context(new_database(server)).dsn for node, server in servers.nodes.items()}
        url = f"zk://{servers.keeper.address}/{uuid4().hex}" if cell.victim == "directory" else ""
        cluster = make_cluster(folder, dsns, url)
        stack.callback(cluster.close)
        ledger, finish = stack.enter_context(running(cluster, 3, seed))
        time.sleep(0.15)
        _crash(cell, cluster, servers, stack)
        finish()
        return _account(cluster, ledger)


def make_cluster(folder: Path, dsns: dict[str, str], url: str = "") -> Cluster:
    """Four tablets on node a, with some rows."""
    tablets = hash_tablets(4, ["a"])
    cluster = build(folder, dsns, hash_table(), tablets, url=url)
    insert_rows(cluster, tablets, range(400))
    return cluster


def _crash(cell: Cell, cluster: Cluster, servers: Victims, stack: ExitStack) -> None:
    action = {"daemon": "kill", "paused daemon": "stop"}.get(cell.victim, "hold")
    plan = Plan(
        folder=str(cluster.folder),
        directory=cluster.url,
        dsns=cluster.dsns,
        settings={name: value for name, value in asdict(QUICK).items() if isinstance(value, int | float)},
        operation=str(cell.operation),
        mode=str(cell.mode),
        tablets=(2,) if cell.operation is not MigrationKind.MERGE else (2, 4),
        target="b" if cell.operation is MigrationKind.MOVE else "a",
        point=cell.point,
        action=action,
    )
    first = stack.enter_context(_daemon(plan, cluster.folder / "first.json"))
    _until(lambda: (cluster.folder / "reached").exists() or first.poll() is not None)
    if action == "hold":
        _strike(cell.victim, cluster, servers)
        (cluster.folder / "go").touch()
    successor = replace(plan, operation="", point="", action="")
    if action != "hold":
        _run_successor(successor, cluster, stack)
        if action == "stop":  # it wakes up late, and must do no harm
            os.kill(first.pid, signal.SIGCONT)
            first.wait(PATIENCE)
    else:
        first.wait(PATIENCE)
        _run_successor(successor, cluster, stack)


def _strike(victim: str, cluster: Cluster, servers: Victims) -> None:
    if victim == "directory":
        servers.keeper.kill()
        (cluster.folder / "go").touch()  # the migration meets a directory that does not answer
        time.sleep(1.0)
        servers.keeper.start()
        return
    server = servers.nodes["a" if victim == "source" else "b"]
    port = server.port
    server.kill()
    # Whoever tries to connect meanwhile may be given this very port to connect from: everybody knows the old address.
    _until(lambda: free_port(port) == port)
    server.start()
    assert server.port == port


def _run_successor(plan: Plan, cluster: Cluster, stack: ExitStack) -> None:
    """Until one has finished: on a busy machine a leader may lose its lease, and the next goes on."""
    code = FENCED
    for _ in range(5):
        if code == FENCED:
            code = stack.enter_context(_daemon(plan, cluster.folder / "successor.json")).wait(PATIENCE)
    assert code == 0, f"the successor ended with {code}"


@contextmanager
def _daemon(plan: Plan, file: Path) -> "Iterator[subprocess.Popen[bytes]]":
    plan.write(file)
    process = subprocess.Popen([sys.executable, "-m", "tests.support.crash_daemon", str(file)], cwd=Path.cwd())
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _account(cluster: Cluster, ledger: Ledger) -> Outcome:
    directory = cluster.directory()
    faults = ledger.faults(cluster.rows())
    faults += [f"{finding.node}: {finding.text}" for finding in examine(directory, cluster.address)]
    unfinished = [record.id for record in directory.snapshot().migrations.values() if not record.finished]
    faults += [f"migration {record} is unfinished" for record in unfinished]
    faults += list(_owner_faults(cluster))
    state = ", ".join(record.state for record in directory.snapshot().migrations.values())
    return Outcome(tuple(faults), ledger.operations, ledger.longest_wait, state)


def _owner_faults(cluster: Cluster) -> Iterator[str]:
    """For some keys of each tablet: the owner takes a write, nobody else does."""
    directory = cluster.directory()
    follower = directory.follow()
    root = cluster.table.roots[0]
    try:
        for number in range(5_000_000, 5_000_040):
            right = owner(cluster, follower, number).node
            for node in cluster.dsns:
                with cluster.connect(node) as connection:
                    try:
                        connection.execute(f"INSERT INTO {root} (id) VALUES ({number})")
                        took = True
                    except Exception as error:
                        took = False
                        reason = str(error).splitlines()[0]
                if took != (node == right):
                    word = "took" if took else f"refused ({reason})"
                    yield f"node {node} {word} a write of {number}, which node {right} owns"
    finally:
        follower.close()


def _until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, "the point was not reached in time"
        time.sleep(0.01)
