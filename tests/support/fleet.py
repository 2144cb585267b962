"""A cluster with configuration files, as an operator has it: databases as nodes, a directory, one hash table.

`Fleet` writes the files and makes the table; `Process` is `balancer run` as a real process; `Application` writes and
reads all the time and keeps track of what it was promised.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from balancer.directory.contract import Directory
from balancer.directory.model import Node
from balancer.directory.open import open_directory
from balancer.directory.snapshot import Snapshot
from balancer.embedded.process import free_port
from balancer.features.tables.adopt import TableRequest
from balancer.features.tables.create import create
from balancer.naming import cluster_name, parse_name
from balancer.nodes.session.connection import Address
from balancer.settings import Settings, load_settings
from tests.support.cluster import COLUMNS, Cluster
from tests.support.commands import environment as clean_environment
from tests.support.forked import Forked
from tests.support.opening import connect
from tests.support.waiting import surely
from tests.support.workload import Ledger, Worker

TOKEN = "correct-horse-battery"
# One for all requests: each `httpx.get` reads all the system's certificates, which takes 30 ms of a core. No connection
# is kept, so that a restarted instance is never asked on one of its predecessor's.
CLIENT = httpx.Client(timeout=20, verify=False, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))


@dataclass
class Fleet:
    """The files of a cluster and its nodes."""

    folder: Path
    url: str
    dsns: dict[str, str]
    tablets: int = 8
    bundle: dict[str, str] = field(default_factory=lambda: {"heat": "enable = false"})
    """Sections of the bundle's file other than nodes and tables, as TOML; the key '' holds what is above all sections.

    Hot tablets are not split unless a test asks for it: a writer on a slow machine makes some, and tests count tablets.
    """
    present: range = range(0)
    """Ids of the rows that the table was made with."""
    login: str = ""
    """What else each node's section has: the login of other nodes, for forwarding."""

    @property
    def config(self) -> Path:
        return self.folder / "balancer.toml"

    def write(self, mode: str = "autonomous", nodes: Sequence[str] | None = None, **sections: str) -> None:
        """The bundle's file; sections by name as TOML, kept for later calls."""
        self.bundle |= sections
        named = [f'[nodes.{node}]\ndsn = "{self.dsns[node]}"\n{self.login}' for node in (nodes or self.dsns)]
        above = self.bundle.get("", "")
        others = [f"[{name}]\n{text}\n" for name, text in self.bundle.items() if name]
        table = f'[tables.orders]\nroots = ["public.orders"]\nlayout = "hash"\nkey = ["id"]\ntablets = {self.tablets}\n'
        (self.folder / "bundles").mkdir(exist_ok=True)
        text = "\n".join([f'mode = "{mode}"', above, *others, *named, table])
        fresh = self.folder / "bundles" / "shop.toml.new"
        fresh.write_text(text)
        fresh.rename(self.folder / "bundles" / "shop.toml")

    def write_daemon(self, name: str = "balancer", **settings: object) -> Path:
        """An instance's file: each has its own name and port, all share the bundles."""
        known = {"directory": self.url, "instance": name, "tick": "500ms", "session_timeout": "2s", **settings}
        lines = [f'{key} = "{value}"' for key, value in known.items()]
        port = free_port()
        file = self.folder / f"{name}.toml"
        file.write_text("\n".join([*lines, "[http]", f'listen = "127.0.0.1:{port}"', f'token = "{TOKEN}"', ""]))
        return file

    def settings(self) -> Settings:
        return load_settings(self.config)

    def create(self, owners: Sequence[str], rows: int = 0) -> None:
        """The table, all of it on these nodes; the roots are on every node."""
        connections = {name: connect(Address(name, dsn)) for name, dsn in self.dsns.items()}
        definition = f"CREATE TABLE public.orders {COLUMNS} PARTITION BY HASH (id)"
        try:
            request = TableRequest("shop", "orders", (parse_name("public.orders"),), "hash", ("id",), "test")
            records = [Node(name, "shop", "postgresql:///shop") for name in owners]
            with self.directory() as directory:
                create(
                    request,
                    directory,
                    connections,
                    records,
                    cluster_name(self.url),
                    tablets=self.tablets,
                    definition=definition,
                )
            if rows:
                fill = f"INSERT INTO orders (id, note) SELECT n, repeat('x', 200) FROM generate_series(1, {rows}) n"
                connections[owners[0]].execute(fill.encode())
                self.present = range(1, rows + 1)
        finally:
            for connection in connections.values():
                connection.close()

    def directory(self) -> Directory:
        return open_directory(self.url, lease=2.0)

    def cluster(self, snapshot: Snapshot) -> Cluster:
        """As the workload knows clusters."""
        return Cluster(self.folder, self.dsns, snapshot.table("orders"))


def owners(snapshot: Snapshot) -> dict[str, int]:
    """How many tablets each node has."""
    counts = {node.id: 0 for node in snapshot.nodes.values() if node.bundle == "shop"}
    for tablet in snapshot.tablets(snapshot.table("orders").id):
        counts[tablet.node] = counts.get(tablet.node, 0) + 1
    return counts


def until(condition: Callable[[], object], seconds: float = 60.0, what: str = "it") -> float:
    """Waits for something to become true; returns how long that took."""
    began = time.monotonic()
    assert surely(condition, seconds), f"{what} did not happen within {time.monotonic() - began:.0f} s"
    return time.monotonic() - began


class Process:
    """`balancer run` as a process of its own; `fresh`: a fresh Python, where it is measured or seen from outside."""

    def __init__(
        self,
        config: Path,
        environment: Mapping[str, str] | None = None,
        program: str = "balancer",
        *,
        fresh: bool = False,
    ) -> None:
        self.log = config.with_suffix(".log")
        self.url = f"http://{load_settings(config).daemon.http.listen}"
        with self.log.open("a") as log:
            words = ["run", "--config", str(config)]
            self._process: Forked | subprocess.Popen[bytes] = (
                subprocess.Popen(
                    [sys.executable, "-m", program, *words],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    env=clean_environment(environment),
                )
                if fresh
                else Forked(program, words, stdout=log, stderr=log, env=environment)
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def get(self, path: str) -> httpx.Response:
        return CLIENT.get(self.url + path)

    def metric(self, line: str) -> float | None:
        """The value of a series, as `/metrics` shows it."""
        for found in self.get("/metrics").text.splitlines():
            if found.rpartition(" ")[0] == line:
                return float(found.rpartition(" ")[2])
        return None

    def up(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        try:
            return self.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def leads(self) -> bool:
        return self.up() and self.metric("balancer_leader") == 1.0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(20)

    def wait(self) -> int:
        """The exit code, once it has ended."""
        return int(self._process.wait(30))

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        return int(self._process.wait(20))


@contextmanager
def running(config: Path, *, wait: bool = True, fresh: bool = False) -> Iterator[Process]:
    """An instance for the length of a block; `fresh` as in `Process`."""
    process = Process(config, fresh=fresh)
    try:
        if wait:
            until(process.up, 180, "the start of an instance")
        yield process
    except BaseException:
        print(f"what {config.stem} said last:\n{process.log.read_text()[-6000:]}")  # shown with the failure
        raise
    finally:
        process.stop()


@contextmanager
def application(fleet: Fleet, seed: int, workers: int = 3) -> Iterator[Ledger]:
    """Writes and reads for the length of a block; the caller checks what was promised with `Ledger.faults`.

    A few hundred operations a second: at full speed the instances, which share the machine, would only take longer.
    """
    ledger = Ledger(fleet.present)
    with fleet.directory() as directory:
        follower = directory.follow()
        cluster = fleet.cluster(follower.snapshot)
        threads = [Worker(cluster, follower, ledger, number, seed, pace=0.01) for number in range(workers)]
        for thread in threads:
            thread.start()
        try:
            yield ledger
        finally:
            for thread in threads:
                thread.stop.set()
            for thread in threads:
                thread.join(60)
            follower.close()
        assert [thread.error for thread in threads if thread.error] == []
