"""An instance with ten, a hundred and a thousand nodes of a thousand tablets each, and what happens when it is killed.

The nodes are answers of a real PostgreSQL, recorded in the same run from a database with a thousand real partitions
under load, and replayed by one process with each node's own names and ids (`tests/support/replayed_nodes.py`). The
instances are `balancer run` as processes of their own. `quiet`: nothing changes on any node; `busy`: every poll of
every node brings other figures. CPU is what the kernel says of the process, per tick. The first act of a successor
is the answer to a command that was waiting when its predecessor was killed.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from balancer.directory.contract import Directory
from balancer.directory.invariants import TABLET_COUNTER
from balancer.directory.model import (
    Bundle,
    Command,
    CommandState,
    Counter,
    Node,
    Put,
    RangeBounds,
    Record,
    Tablet,
    Transaction,
)
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.features.tables.adopt import TableRequest
from balancer.features.tables.create import create
from balancer.naming import cluster_name, parse_name
from balancer.nodes.session.connection import Address
from balancer.policies.keyspace.keys import HIGHEST, LOWEST
from tests.support.directories import RANGED, key
from tests.support.fleet import Fleet, Process, running, until
from tests.support.opening import connect
from tests.support.replayed_nodes import RECORDED
from tests.support.servers import Database, new_database
from tests.support.tables import show_table
from tests.support.vitals import vitals

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

COUNTS = [int(word) for word in os.environ.get("BENCH_NODES", "10").split(",")]
TAPE = os.environ.get("BENCH_TAPE", "")
SPAN = int(os.environ.get("BENCH_TABLETS_PER_NODE", "1000"))
BUNDLES = int(os.environ.get("BENCH_BUNDLES", "20"))
TICKS = int(os.environ.get("BENCH_TICKS", "3"))
EVENTS = """roots = ["public.events"]
layout = "range"
key = ["at"]
min_tablet_size = "1KB"
desired_tablet_size = "10GB"
max_tablet_size = "20GB"
"""
BUNDLE = 'balancer_plans_total{bundle="shop"}'


@contextmanager
def helper(*arguments: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A recorder or a replayer for the length of a block, and its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.replayed_nodes", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline()), process
    finally:
        said, _ = process.communicate()
        print(said, end="")
        assert "never recorded" not in said


def write_files(fleet: Fleet, bundle: str, dsns: dict[str, str]) -> None:
    fleet.dsns |= dsns
    nodes = "".join(f'[nodes.{node}]\ndsn = "{dsn}"\n' for node, dsn in dsns.items())
    table = "events" if bundle == "shop" else f"events_{bundle}"
    (fleet.folder / "bundles").mkdir(exist_ok=True)
    schedule = f'[tablet_balancer_config]\ntablet_balancer_schedule = "minutes % 20 == {len(fleet.dsns) % 20}"\n'
    text = f'mode = "autonomous"\n{schedule}{nodes}[tables.{table}]\n{EVENTS}'
    (fleet.folder / "bundles" / f"{bundle}.toml").write_text(text)


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory, postgres18: PostgresServer, new: Callable[[], Database]) -> Path:
    """What a real node answers, under load, to an instance that leads."""
    folder = tmp_path_factory.mktemp("recorded")
    if TAPE:
        return Path(TAPE)
    file = folder / "tape"
    real = new()
    fleet = Fleet(folder, f"sqlite://{folder}/shop.db", {})
    with connect(Address(RECORDED, real.dsn)) as connection:
        request = TableRequest("shop", "events", (parse_name("public.events"),), "range", ("at",), "bench")
        definition = "CREATE TABLE public.events (at bigint PRIMARY KEY, note text) PARTITION BY RANGE (at)"
        records = [Node(RECORDED, "shop", real.dsn)]
        with fleet.directory() as directory:
            splits = [1000 * number for number in range(1, SPAN)]
            links = {RECORDED: connection}
            create(
                request,
                directory,
                links,
                records,
                cluster_name(fleet.url),
                tablets=0,
                splits=splits,
                definition=definition,
            )
        connection.execute(
            f"INSERT INTO public.events SELECT n * 100, 'x' FROM generate_series(1, {SPAN * 10}) n".encode()
        )
        with helper("record", f"127.0.0.1:{real.server.port}", str(file)) as (port, _):
            write_files(fleet, "shop", {RECORDED: real.dsn.replace(f":{real.server.port}/", f":{port}/")})
            with running(fleet.write_daemon("recorder", tick="1s", session_timeout="10s"), fresh=True) as process:
                for _ in range(8):
                    before = process.metric(BUNDLE) or 0
                    connection.execute(b"UPDATE public.events SET note = note || 'y'")
                    connection.execute(b"SELECT pg_stat_force_next_flush()")
                    until(lambda before=before: (process.metric(BUNDLE) or 0) >= before + 2, 60, "a tick")  # type: ignore[misc]
    return file


@pytest.fixture(scope="module")
def new(postgres18: PostgresServer) -> Iterator[Callable[[], Database]]:
    with new_database(postgres18) as database:
        yield lambda: database


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Where the directory is: SQLite, or ZooKeeper with BENCH_DIRECTORY=zookeeper."""
    if os.environ.get("BENCH_DIRECTORY") != "zookeeper":
        return f"sqlite://{tmp_path}/shop.db"
    server: ZooKeeperServer = request.getfixturevalue("zookeeper")
    return f"zk://{server.address}/shop-{uuid4().hex}"


def fill(url: str, bundles: Mapping[str, Sequence[str]]) -> None:
    """The directory of these bundles: each with a table of its own, each node with the next thousand tablets."""
    records: list[Record] = []
    tablets: list[Tablet] = []
    for number, (bundle, nodes) in enumerate(bundles.items()):
        count = len(nodes) * SPAN
        name = "events" if bundle == "shop" else f"events_{bundle}"
        table = replace(RANGED, id=number + 1, name=name, bundle=bundle)
        records += [Bundle(bundle), *(Node(node, bundle, "postgresql://n") for node in nodes), table]
        edges = [LOWEST, *(key(1000 * edge) for edge in range(1, count)), HIGHEST]
        first = len(tablets) + 1
        tablets += [
            Tablet(first + at, table.id, RangeBounds(edges[at], edges[at + 1]), nodes[at // SPAN])
            for at in range(count)
        ]
    counter = Counter(TABLET_COUNTER, len(tablets) + 1)
    with open_directory(url) as directory:
        leadership = directory.campaign("bench", timeout=10)
        assert leadership is not None
        everything = [*records, *tablets, counter]
        directory.restore(everything, reason="bench", author="bench", leader_epoch=leadership.epoch)
        leadership.resign()


TICK = 'balancer_tick_seconds_{}{{bundle="{}"}}'


def figures(process: Process) -> dict[str, float]:
    """All series; with a thousand nodes this is no small question, so it is asked rarely."""
    lines = process.get("/metrics").text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def spent(process: Process, bundle: str = "shop") -> tuple[float, float, float]:
    """Seconds of processor time for each tick, a tick's own seconds, and what one scrape of the metrics takes."""
    before = vitals(process.pid).cpu_seconds
    first = figures(process)
    cpu = vitals(process.pid).cpu_seconds
    time.sleep(TICKS * 10 + 5)
    used = vitals(process.pid).cpu_seconds - cpu
    last = figures(process)
    down = [name for name, value in last.items() if name.startswith("balancer_node_reachable") and value == 0]
    assert not down, f"{len(down)} nodes do not answer: they are not measured"
    ticks, seconds = (last[TICK.format(what, bundle)] - first[TICK.format(what, bundle)] for what in ("count", "sum"))
    assert ticks >= 1, "no tick ended meanwhile"
    return used / ticks, seconds / ticks, cpu - before


def said(process: Process, words: str) -> int:
    """How often it has said so in its log."""
    time.sleep(0.2)
    return process.log.read_text().count(words)


def ask(directory: Directory) -> str:
    """A command that waits for a leader."""
    command = Command(uuid4().hex, "pause", {"bundle": "shop"}, "bench", time.time())
    directory.commit(Transaction((Put(command),), directory.snapshot().version, "bench", "bench"))
    return command.id


def failover(fleet: Fleet, first: Process) -> float:
    """Seconds from the death of the leader to the first act of another instance."""
    with running(fleet.write_daemon("second", tick="10s", session_timeout="10s"), fresh=True) as second:
        until(lambda: time.sleep(2) or figures(second).get(TICK.format("count", "shop"), 0) >= 2, 600, "two ticks")  # type: ignore[func-returns-value]
        with open_directory(fleet.url) as directory:
            follower = directory.follow()
            began = time.monotonic()
            first.kill()
            name = ask(directory)
            until(lambda: name in follower.snapshot.commands, 60, "the command")
            until(lambda: follower.snapshot.commands[name].state is not CommandState.WAITING, 120, "the first act")
            acted = time.monotonic() - began
            done = follower.snapshot.commands[name]
            follower.close()
        assert done.state is CommandState.DONE, done.result
    return acted


LEADER = (
    *("nodes are", "nodes", "tablets", "CPU s a tick", "tick s", "scrape, CPU s", "memory MB", "threads", "sockets"),
    "first act after s",
)
MANY = (
    *("bundles", "nodes", "tablets", "start, CPU s", "all ticked after s", "CPU s for a round of ticks"),
    *("scrape, CPU s", "memory MB", "threads", "sockets", "reload of one file, s", "of that CPU s"),
)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", ["quiet", "busy"])
def test_so_many_nodes(kind: str, count: int, tape: Path, tmp_path: Path, place: str) -> None:
    nodes = [f"n{number}" for number in range(count)]
    fleet = Fleet(tmp_path, place, {})
    fill(fleet.url, {"shop": nodes})
    with helper("replay", str(tape), str(SPAN), str(int(kind == "busy"))) as (port, _):
        write_files(fleet, "shop", {node: f"postgresql://n@127.0.0.1:{port}/{node}" for node in nodes})
        with running(fleet.write_daemon("first", tick="10s", session_timeout="10s"), fresh=True) as first:
            until(lambda: time.sleep(2) or figures(first).get(BUNDLE, 0) >= 2, 600, "two ticks")  # type: ignore[func-returns-value]
            cpu, wall, scrape = spent(first)
            used = vitals(first.pid)
            acted = failover(fleet, first) if kind == "quiet" else float("nan")
    row = (kind, f"{count:,}", f"{count * SPAN:,}", cpu, wall, scrape, used.memory_bytes / 1e6, used.threads)
    show_table("One bundle, the leader", LEADER, [(*row, used.sockets, acted)])


def test_so_many_bundles(tape: Path, tmp_path: Path, place: str) -> None:
    """Bundles of five nodes, each with a file, a table and a schedule of its own."""
    bundles = {f"b{number}": [f"n{5 * number + place}" for place in range(5)] for number in range(BUNDLES)}
    fleet = Fleet(tmp_path, place, {})
    fill(fleet.url, bundles)
    with helper("replay", str(tape), str(SPAN), "0") as (port, _):
        for bundle, nodes in bundles.items():
            write_files(fleet, bundle, {node: f"postgresql://n@127.0.0.1:{port}/{node}" for node in nodes})
        config = fleet.write_daemon("first", tick="10s", session_timeout="10s")
        began = time.monotonic()
        with running(config, fresh=True) as first:
            # By the log: with so many nodes a scrape of the metrics would be a good part of what is measured.
            until(lambda: said(first, '"event": "state"') >= BUNDLES, 600, "the first tick of all")
            started, cpu = time.monotonic() - began, vitals(first.pid).cpu_seconds
            round_cpu, _, scrape = spent(first, "b0")
            used = vitals(first.pid)
            read = said(first, "configuration read")
            cpu_before, began = vitals(first.pid).cpu_seconds, time.monotonic()
            file = fleet.folder / "bundles" / "b7.toml"
            file.write_text(file.read_text().replace('mode = "autonomous"', 'mode = "observe"'))
            until(lambda: said(first, "configuration read") > read, 60, "the reload")
            reload_s, reload_cpu = time.monotonic() - began, vitals(first.pid).cpu_seconds - cpu_before
    count = BUNDLES * 5
    row = (BUNDLES, f"{count:,}", f"{count * SPAN:,}", cpu, started, round_cpu, scrape, used.memory_bytes / 1e6)
    show_table("Many bundles, one instance", MANY, [(*row, used.threads, used.sockets, reload_s, reload_cpu)])
