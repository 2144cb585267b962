"""One cell of the crash matrix: a migration under load, somebody killed at a named point, a successor, the account.

Used by the test, which runs a sample, and by `crash_matrix_main`, which runs all and prints a table. A cell fails
unless the point was reached, the victim really died there, and writes and reads succeeded before and afterwards.
"""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from uuid import uuid4

from balancer.directory.model import MigrationKind
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.embedded.process import free_port
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.migration.machine import State, is_final, row_of
from tests.support.cluster import QUICK, Cluster, build, describe, hash_table, hash_tablets, insert_rows
from tests.support.crash_account import Traffic, account, owners_now, traffic
from tests.support.crash_cells import Cell
from tests.support.crash_daemon import Plan
from tests.support.crash_nursery import Daemon, Nursery
from tests.support.servers import new_database, postgres
from tests.support.workloads.approach import HELD_LEAF, HELD_SNAPSHOT_LEAF, PLAIN_LEAF

PATIENCE = 90.0
DOWN = 0.3  # seconds for which a killed server stays away, while the daemon continues
LEASE = 30.0  # a busy machine must not take it from a leader that nobody intends to pause
SHORT_LEASE = 2.0
SESSION = 6.0  # just longer than ZooKeeper takes to come back: a successor may have to wait for its end
ATTEMPTS = 3
FENCED = 3  # how a daemon that no longer leads ends
LOST_DIRECTORY = 5
QUICK_JAVA = ("-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no")
PRESENT = range(400)
TABLETS = hash_tablets(4, ["a"])
OPERATIONS = 2000  # of the application on the tablets that are migrated, in each cell
APPROACHES = (PLAIN_LEAF, HELD_LEAF, HELD_SNAPSHOT_LEAF)  # how partitions are written to by their own names

# The budget is not a protection here: fence, seal and epoch alone must refuse a daemon that wakes up late. Changed keys
# are counted as often as they changed, and few rows are changed all the time.
SETTINGS = replace(
    QUICK, write_pause_budget=5.0, fence_deadline=10.0, retry_back_off=0.02, verify_keys_in_fence=100_000
)
# The fence of a paused daemon ends by itself while it sleeps, and writers continue at the source.
PAUSED = replace(SETTINGS, fence_deadline=1.5, read_only_fence_deadline=1.5)


# From the seal to the opening of the new owner perhaps nobody answers: the old one can no longer know.
SEALED = {State.SEALING, State.COMMITTING, State.OPENING}


class NotReached(Exception):
    """The daemon ended, or hung, before the point: nothing was killed, so the cell says nothing."""


@dataclass(frozen=True)
class Outcome:
    """What is wrong afterwards, and what was measured."""

    faults: tuple[str, ...]
    operations: int
    state: str


@dataclass(frozen=True)
class Victims:
    """Servers that a cell may kill, because nobody else uses them; and where its daemons come from."""

    nodes: Mapping[str, PostgresServer]
    keeper: ZooKeeperServer
    nursery: Nursery
    models: Mapping[str, str]
    """On each node the name of a database as every cell finds it."""


@contextmanager
def victims(folder: Path) -> Iterator[Victims]:
    """Two nodes of different versions, a ZooKeeper, a nursery."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    short_lived = {"autovacuum": "off"}  # databases that live for seconds need none
    with (
        Nursery() as nursery,
        postgres(folder / "a", 15, short_lived) as a,
        postgres(folder / "b", 18, short_lived) as b,
        ZooKeeperServer(folder / "keeper", java_options=QUICK_JAVA) as keeper,
    ):
        nodes = {"a": a, "b": b}
        with ExitStack() as stack:
            models = {node: stack.enter_context(new_database(server)) for node, server in nodes.items()}
            _fill(folder, {node: model.dsn for node, model in models.items()})
            yield Victims(nodes, keeper, nursery, {node: model.name for node, model in models.items()})


def _fill(folder: Path, dsns: dict[str, str]) -> None:
    """Four tablets on node a, with some rows."""
    cluster = build(folder, dsns, hash_table(), TABLETS)
    insert_rows(cluster, TABLETS, PRESENT)
    cluster.query("a", "UPDATE orders SET note = '' RETURNING 1")
    cluster.close()


def run_cell(cell: Cell, folder: Path, servers: Victims, seed: int) -> Outcome:
    """Runs a cell until its point was reached, at most this many times."""
    words = []
    for attempt in range(ATTEMPTS):
        place = folder / f"attempt-{attempt}"
        place.mkdir()
        try:
            return _Run(cell, place, servers, seed).run()
        except NotReached as error:
            words.append(str(error))
    return Outcome((f"in {ATTEMPTS} attempts the point was not reached: {'; '.join(words)}",), 0, "broken")


class _Run:
    """One attempt, on databases of its own."""

    def __init__(self, cell: Cell, folder: Path, servers: Victims, seed: int) -> None:
        self._cell = cell
        self._folder = folder
        self._servers = servers
        self._random = Random(f"{seed} {cell}")
        self._faults: list[str] = []
        self._tablets = (2,) if cell.operation is not MigrationKind.MERGE else (2, 4)

    def run(self) -> Outcome:
        cell = self._cell
        with ExitStack() as stack:
            cluster = self._cluster(stack)
            running = stack.enter_context(traffic(cluster, self._tablets, PRESENT, self._random, APPROACHES))
            self._check(running.await_writes(3, PATIENCE), "writers did not get going")
            with ExitStack() as daemons:
                self._crash(cluster, running, daemons)
            self._check(running.await_writes(3, PATIENCE), "writers did not go on afterwards")
            self._check(running.await_reads(1, PATIENCE), "readers did not go on afterwards")
            self._check(running.await_operations(OPERATIONS, PATIENCE), "the application did too little")
            self._faults += account(cluster, running, _known_in(cell))
            state = ", ".join(record.state for record in cluster.directory().snapshot().migrations.values())
            return Outcome(tuple(self._faults), running.operations, state)

    def _cluster(self, stack: ExitStack) -> Cluster:
        servers = self._servers
        dsns = {
            node: stack.enter_context(new_database(server, servers.models[node])).dsn
            for node, server in servers.nodes.items()
        }
        cluster = Cluster(self._folder, dsns, hash_table(), url=self._url())
        stack.callback(cluster.close)
        describe(cluster, TABLETS)
        return cluster

    def _url(self) -> str:
        """A file, unless the directory should be killed, or a session should expire."""
        keeper = self._cell.victim in ("directory", "paused daemon")
        return f"zk://{self._servers.keeper.address}/{uuid4().hex}" if keeper else ""

    def _plan(self, cluster: Cluster) -> Plan:
        cell = self._cell
        settings = PAUSED if cell.victim == "paused daemon" else SETTINGS
        return Plan(
            folder=str(self._folder),
            directory=cluster.url,
            dsns=cluster.dsns,
            settings={name: value for name, value in asdict(settings).items() if isinstance(value, int | float)},
            operation=str(cell.operation),
            mode=str(cell.mode),
            tablets=self._tablets,
            target="b" if cell.operation is MigrationKind.MOVE else "a",
            point=cell.point,
            step=self._random.choice((1, 1, 2, 3, 4)),
            # A daemon may be killed in the middle of a statement; servers are killed while it is stopped.
            delay=self._random.choice((0.0, self._random.uniform(0.001, 0.02))) if cell.victim == "daemon" else 0.0,
            action={"daemon": "kill", "paused daemon": "stop"}.get(cell.victim, "hold"),
            cancel=State.VERIFYING if cell.state in (State.CANCELLING, State.CANCELLED) else "",
            spoil=State.COPYING if cell.state is State.FAILED else "",
            lease=self._lease(),
            # Either it sleeps until everything is over, or it wakes up alongside its successor and trusts itself.
            blind=cell.victim == "paused daemon" and not cell.point.startswith("entered"),
        )

    def _lease(self) -> float:
        if self._cell.victim == "directory":
            return SHORT_LEASE if self._directory_is_lost() else SESSION
        return SHORT_LEASE if self._cell.victim == "paused daemon" else LEASE

    def _directory_is_lost(self) -> bool:
        """At its end a state loses the directory for longer than the lease; otherwise the same leader continues."""
        return self._cell.victim == "directory" and self._cell.point.startswith("left")

    def _crash(self, cluster: Cluster, running: Traffic, stack: ExitStack) -> None:
        plan = self._plan(cluster)
        first = stack.enter_context(self._servers.nursery.daemon(plan, self._folder / "first.json"))
        self._await_point(plan, first, cluster)
        self._faults += owners_now(cluster)
        self._look_at_traffic(running)
        match plan.action:
            case "kill":
                code = first.wait(PATIENCE)
                self._check(code == -signal.SIGKILL, f"the daemon was to be killed, and ended with {code}")
                self._succeed(plan, stack)
            case "stop" if plan.blind:
                self._succeed(plan, stack, lambda: self._wake(first))
                self._await_late_riser(first)
            case "stop":
                self._succeed(plan, stack)
                self._wake(first)
                self._await_late_riser(first)
            case _:
                self._strike()
                self._await_survivor(first)
                self._succeed(plan, stack)

    def _look_at_traffic(self, running: Traffic) -> None:
        """While the daemon is dead or stopped: readers continue unless the new owner may be open, and writers wherever
        there is no fence."""
        cell = self._cell
        open_to_writers = not row_of(cell.track, cell.state).writers_held and cell.state is not State.CANCELLING
        sealed = cell.operation is MigrationKind.MOVE and cell.state in SEALED
        if not sealed and (open_to_writers or not running.readers_are_held):
            self._check(running.await_reads(1, PATIENCE), f"readers were held back in {cell.state}")
        if open_to_writers:
            self._check(running.await_writes(1, PATIENCE), f"writers were held back in {cell.state}")

    def _await_point(self, plan: Plan, first: Daemon, cluster: Cluster) -> None:
        reached = self._folder / "reached"
        _until(lambda: reached.exists() or first.poll() is not None, f"neither {plan.point} nor the daemon's end came")
        if not reached.exists():
            records = cluster.directory().snapshot().migrations.values()
            became = "; ".join(f"{record.state} {record.error}" for record in records) or "nothing was journaled"
            words = f"the daemon ended with {first.poll()} before {plan.point}: {first.words()}; {became}"
            raise NotReached(words)
        if plan.action == "stop":
            _until(first.stopped, "the daemon did not stop")

    def _wake(self, first: Daemon) -> None:
        self._check(first.stopped(), "the daemon was to sleep, and does not")
        first.send(signal.SIGCONT)

    def _await_late_riser(self, first: Daemon) -> None:
        """It has woken up alongside its successor, or after it, and must do no harm."""
        code = first.wait(PATIENCE)
        right = (0, FENCED) if is_final(self._cell.state) else (FENCED,)
        self._check(code in right, f"the daemon that woke up late ended with {code}: {first.words()}")

    def _await_survivor(self, first: Daemon) -> None:
        """A leader that lost a server continues alone; one that lost the directory may have to leave it to others."""
        code = first.wait(PATIENCE)
        right = (0, FENCED, LOST_DIRECTORY) if self._cell.victim == "directory" else (0,)
        self._check(code in right, f"the daemon that lost the {self._cell.victim} ended with {code}: {first.words()}")

    def _strike(self) -> None:
        """Kills the victim, lets the daemon continue without it, brings the victim back."""
        if self._cell.victim == "directory":
            keeper = self._servers.keeper
            keeper.kill()
            self._check(keeper.pid() is None, "ZooKeeper did not die")
            (self._folder / "go").touch()
            time.sleep(SHORT_LEASE if self._directory_is_lost() else DOWN)
            keeper.start()
            return
        server = self._servers.nodes["a" if self._cell.victim == "source" else "b"]
        port = server.port
        server.kill()
        self._check(server.pid() is None, "PostgreSQL did not die")
        (self._folder / "go").touch()
        time.sleep(DOWN)
        # A client that tries to connect meanwhile may be given this very port to connect from: everybody knows the old
        # one.
        _until(lambda: free_port(port) == port, f"port {port} is taken")
        server.start()
        assert server.port == port

    def _succeed(self, plan: Plan, stack: ExitStack, when_leading: Callable[[], None] | None = None) -> None:
        """Until one has finished: on a busy machine a leader may lose its lease, and the next one continues."""
        successor = replace(plan, operation="", point="", action="", cancel="", spoil="", lease=LEASE, blind=False)
        for _ in range(ATTEMPTS):
            following = stack.enter_context(
                self._servers.nursery.daemon(successor, self._folder / "successor.json"),
            )
            if when_leading is not None:
                self._await_leader(following, successor.directory)
                when_leading()
                when_leading = None
            code = following.wait(PATIENCE)
            if code != FENCED:
                break
        self._check(code == 0, f"the successor ended with {code}: {following.words()}")

    def _await_leader(self, daemon: Daemon, url: str) -> None:
        with open_directory(url) as directory:
            name = f"daemon {daemon.pid}"
            _until(lambda: directory.leader() == name or daemon.poll() is not None, "the successor did not lead")

    def _check(self, right: bool, words: str) -> None:
        if not right:
            self._faults.append(words)


def _known_in(cell: Cell) -> State:
    """The state that the migration was in durably: the end of the commit is the beginning of what follows."""
    return State.OPENING if cell.point == f"left:{State.COMMITTING}" else cell.state


def _until(happened: Callable[[], bool], words: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > deadline:
            raise NotReached(words)
        time.sleep(0.01)
