"""Two real nodes for an application's tests, and a leader that does what it is told: move this tablet, now.

    def test_orders(balancer_cluster: PracticeCluster) -> None:
        balancer_cluster.create_table("orders", "CREATE TABLE orders (…) PARTITION BY HASH (user_id)", key=["user_id"])
        with balancer_cluster.router() as router:
            place_order(router, user_id=7)
            balancer_cluster.move("orders", 7)
            assert orders_of(router, user_id=7) == 1

Servers are started once (`PracticeServers`) and each test gets databases and a directory of its own. Migrations are
real: copied, streamed, fenced, compared and committed by the daemon's own code; nothing else ever moves anything.
"""

import json
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from balancer.client import AsyncRouter, PoolSettings, Router, locate_key
from balancer.directory.contract import Directory, Leadership
from balancer.directory.locate import NO_KEY, AnyKey
from balancer.directory.model import Bundle, Migration, Node, Put, Transaction
from balancer.directory.open import open_directory
from balancer.embedded.cluster import EmbeddedCluster
from balancer.errors import Refused, UserError
from balancer.features.tables.adopt import TableRequest
from balancer.features.tables.create import create
from balancer.migration.begin import begin_move
from balancer.migration.runner import Runner
from balancer.naming import cluster_name, parse_name
from balancer.nodes.session.connection import Address, Connection, connect
from balancer.settings import MigrationSettings

_BUNDLE = "practice"
# A block that the test itself keeps open is reported as being in the way after seconds, not minutes.
_SETTINGS = MigrationSettings(
    retire_grace=0.0,
    retry_back_off=0.05,
    retry_back_off_limit=0.2,
    fence_attempts=10,
    retry_patience=3.0,
    write_pause_budget=2.0,
    fence_deadline=5.0,
)
_ATTEMPTS = 3
# A test's rows need not outlive the machine; before PostgreSQL 16 one worker is started in such an interval.
_QUICK = {"fsync": "off", "wal_retrieve_retry_interval": "200ms"}


class PracticeServers:
    """The PostgreSQL servers of a test run; stopped, and their folder removed, when it ends, however it ends."""

    def __init__(self, nodes: int = 2) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="balancer-practice-"))
        self._folder.chmod(0o755)  # the servers' account must enter
        self._servers = EmbeddedCluster(self._folder / "servers", nodes, settings=dict(_QUICK))

    def start(self) -> None:
        self._servers.start()

    def close(self) -> None:
        """Idempotent."""
        self._servers.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextmanager
    def cluster(self) -> Iterator["PracticeCluster"]:
        """An empty cluster on these servers."""
        name = f"practice_{uuid4().hex[:12]}"
        for node, server in self._servers.nodes.items():
            self._say(node, server.dsn(), f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY file_copy")
        made = PracticeCluster(
            self._folder / f"{name}.db",
            {node: server.dsn(name) for node, server in self._servers.nodes.items()},
        )
        try:
            yield made
        finally:
            made.close()
            for node, server in self._servers.nodes.items():
                self._say(node, server.dsn(), f"DROP DATABASE {name} WITH (FORCE)")

    @staticmethod
    def _say(node: str, dsn: str, statement: str) -> None:
        with connect(Address(node, dsn), purpose="practice") as connection:
            connection.execute(statement.encode())


class PracticeCluster:
    """Nodes, a directory and a leader in this process. Driven by one thread."""

    def __init__(self, file: Path, dsns: dict[str, str]) -> None:
        self.url = f"sqlite://{file}"
        """For `Router.connect`."""
        self.dsns = dsns
        """By node, with the password in it."""
        self._directory: Directory = open_directory(self.url)
        self._addresses = {node: Address(node, dsn) for node, dsn in dsns.items()}
        self._links: dict[str, Connection] = {}
        self._records = [Node(node, _BUNDLE, dsn) for node, dsn in dsns.items()]
        changes = (Put(Bundle(_BUNDLE)), *map(Put, self._records))
        self._directory.commit(Transaction(changes, self._directory.snapshot().version, "practice", "testing"))
        self._leadership: Leadership | None = None
        self._moving = threading.Lock()

    def create_table(
        self,
        name: str,
        definition: str,
        *,
        key: Sequence[str] = (),
        roots: Sequence[str] = (),
        layout: str = "hash",
        tablets: int = 4,
        splits: Sequence[Any] = (),
    ) -> None:
        """Like `balancer table create`: the definition makes the roots (by default one, of the table's name)."""
        request = TableRequest(
            _BUNDLE, name, tuple(parse_name(root) for root in roots or [name]), layout, tuple(key), "testing"
        )
        create(
            request,
            self._directory,
            {node: self._link(node) for node in self.dsns},
            self._records,
            cluster_name(self.url),
            tablets=tablets,
            splits=splits,
            definition=definition,
        )

    def write_configuration(self, folder: Path) -> Path:
        """Files for the command line: `balancer ddl apply practice change.sql --config …/balancer.toml`."""
        (folder / "bundles").mkdir(parents=True, exist_ok=True)
        file = folder / "balancer.toml"
        file.write_text(f"directory = {json.dumps(self.url)}\n")
        lines = [f"[nodes.{node}]\ndsn = {json.dumps(dsn)}\n" for node, dsn in self.dsns.items()]
        for table in self._directory.snapshot().tables.values():
            words = {
                "roots": list(table.roots),
                "layout": str(table.layout),
                "key": [column.name for column in table.key_columns],
            }
            lines.append(f"[tables.{json.dumps(table.name)}]\n")
            lines += [f"{word} = {json.dumps(value)}\n" for word, value in words.items() if value]
        bundle = folder / "bundles" / f"{_BUNDLE}.toml"
        bundle.touch(mode=0o600)  # the passwords of the nodes are in it
        bundle.write_text("".join(lines))
        return file

    def router(self, pools: PoolSettings | None = None) -> Router:
        """The caller closes it."""
        return Router.connect(self.url, pools, samples=False)

    async def async_router(self, pools: PoolSettings | None = None) -> AsyncRouter:
        """Likewise."""
        return await AsyncRouter.connect(self.url, pools, samples=False)

    def owner(self, table: str, key: AnyKey = NO_KEY) -> str:
        """The node that has a key's rows now."""
        return locate_key(self._directory.snapshot(), table, key).node

    def execute(self, node: str, statement: str) -> list[tuple[Any, ...]]:
        """What a node itself says, without any routing."""
        with self._link(node).cursor() as cursor:
            cursor.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def move(self, table: str, key: AnyKey = NO_KEY, to: str | None = None) -> str:
        """Moves the key's tablet to a node, the next one by default, and returns that node when it is done.

        Not from inside an open block for the same tablet: a switch waits for the block. `Refused` says what was in the
        way; the tablet is then where it was.
        """
        location = locate_key(self._directory.snapshot(), table, key)
        nodes = list(self.dsns)
        target = to or nodes[(nodes.index(location.node) + 1) % len(nodes)]
        if target not in nodes:
            raise UserError(f"there is no node {target}; there are {', '.join(nodes)}")
        with self._moving:
            self._surely(location.tablet, target)
        return target

    @contextmanager
    def moving(self, table: str, key: AnyKey = NO_KEY, to: str | None = None) -> Iterator[None]:
        """Moves the tablet while the block runs; waits for the end of the move, and raises what it raised."""
        raised: list[BaseException] = []

        def work() -> None:
            try:
                self.move(table, key, to)
            except BaseException as error:  # noqa: BLE001 - raised where the block ends
                raised.append(error)

        mover = threading.Thread(target=work, name="practice move")
        mover.start()
        try:
            yield
        finally:
            mover.join()
        if raised:
            raise raised[0]

    def close(self) -> None:
        """Idempotent."""
        if self._leadership is not None:
            self._leadership.resign()
            self._leadership = None
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _surely(self, tablet: int, target: str) -> Migration:
        """Retries what was undone because of a busy machine, as the planner does."""
        leadership = self._led()
        runner = Runner(self._directory, leadership, self._addresses.__getitem__, _SETTINGS)
        error = ""
        for _ in range(_ATTEMPTS):
            done = runner.run(begin_move(self._directory, leadership, tablet, target, fallback=True).id)
            if done.state == "done":
                return done
            error = done.error
        raise Refused(f"tablet {tablet} was not moved to {target}: {error}")

    def _led(self) -> Leadership:
        if self._leadership is None or not self._leadership.held():
            self._leadership = self._directory.campaign("practice", 20.0)
        if self._leadership is None:
            raise Refused(f"somebody else leads the cluster at {self.url}")
        return self._leadership

    def _link(self, node: str) -> Connection:
        if node not in self.dsns:
            raise UserError(f"there is no node {node}; there are {', '.join(self.dsns)}")
        if node not in self._links:
            opened = connect(self._addresses[node], purpose="practice")
            opened.execute("SET search_path TO public")
            self._links[node] = opened
        return self._links[node]
