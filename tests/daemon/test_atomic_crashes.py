"""A transaction over three nodes while a server is killed at each of its steps: all or nothing, nothing left prepared.

The suite runs another sample of the cells each time; `SAMPLE_SEED=all` runs all of them.
"""

from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import psycopg
import pytest

from balancer.client import Isolation, PoolSettings, Router
from balancer.client.atomic import AtomicSteps
from balancer.client.transaction.steps import ExecuteEach, Request
from balancer.embedded.postgres import PostgresServer
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.errors import BalancerError, OutcomeUnknown
from balancer.nodes.schema.decisions import prepared_parts
from balancer.nodes.session.connection import Address
from tests.support.fleet import Fleet, Process, until
from tests.support.opening import connect
from tests.support.sampling import sampled
from tests.support.servers import fast_place, kept, new_database, new_folder, postgres

pytestmark = pytest.mark.always

VICTIMS = ("home", "participant", "directory", "daemon")
POINTS = ("before prepare", "between prepares", "after prepare", "after decision", "between commits")
DECIDED = ("after decision", "between commits")
INSERT = "INSERT INTO orders (id, note) VALUES (%s, 'atomic')"


class Stopped:
    """A client that stands still at a point of its commit."""

    def __init__(self, router: Router, point: str, ids: tuple[int, ...]) -> None:
        self._router = router
        steps = AtomicSteps(router._routes, router._ended, isolation=Isolation.READ_COMMITTED, patience=10, lock=2.0)
        for number in ids:
            router._drive(steps.join("orders", number)).connection.execute(INSERT, (number,))
        self._work = steps.commit()
        self._request: Request | None = next(self._work)
        self._left: tuple[Any, ...] = ()
        self._answer: Any = None
        word = {"before prepare": "", "after decision": "balancer.decide(", "between commits": "COMMIT PREPARED"}
        self._stop(point, word.get(point, "PREPARE TRANSACTION"))

    def _stop(self, point: str, word: str) -> None:
        while word not in repr(self._request):
            self._request = self._work.send(self._router._perform(self._request))  # type: ignore[arg-type]
        if not word:
            return
        request, self._request = self._request, None
        if point.startswith("between"):
            assert isinstance(request, ExecuteEach)
            assert len(request.orders) == 2, "two participants beside the home"
            request, self._left = ExecuteEach(request.orders[:1]), request.orders[1:]
        self._answer = self._router._perform(request)  # type: ignore[arg-type]

    def go_on(self) -> str:
        """What the client is told in the end."""
        try:
            self._router._drive(self._rest())
        except OutcomeUnknown:
            return "unknown"
        except (BalancerError, psycopg.Error) as error:
            print(f"the client is told: {error}")
            return "refused"
        return "done"

    def _rest(self) -> Generator[Request, Any, None]:
        if self._left:
            self._answer = [*self._answer, *(yield ExecuteEach(self._left))]
        with suppress(StopIteration):
            request = self._request if self._request is not None else self._work.send(self._answer)
            while True:
                try:
                    answer = yield request
                except psycopg.Error as error:
                    request = self._work.throw(error)
                else:
                    request = self._work.send(answer)


@dataclass
class World:
    """Three servers, a ZooKeeper and a daemon, each of which may be killed and comes back."""

    fleet: Fleet
    servers: dict[str, PostgresServer]
    keeper: ZooKeeperServer
    daemon: Process
    router: Router
    used: int = 0

    def ids(self) -> tuple[int, ...]:
        """New rows, one on each node, that of `a` first: it is the home."""
        found: dict[str, int] = {}
        while len(found) < 3:
            self.used += 1
            found.setdefault(self.router.locate("orders", self.used).node, self.used)
        return tuple(found[name] for name in sorted(found))

    def kill(self, victim: str) -> None:
        if victim == "daemon":
            self.daemon.kill()
            self.daemon = Process(self.fleet.config, program="tests.support.impatient_daemon")
            return
        server = {"home": self.servers["a"], "participant": self.servers["b"]}.get(victim, self.keeper)
        server.kill()
        server.start()

    def prepared(self) -> list[str]:
        found: list[str] = []
        for name, dsn in self.fleet.dsns.items():
            with connect(Address(name, dsn)) as connection:
                found += [part.gid for part in prepared_parts(connection)]
        return found

    def count(self, node: str, number: int) -> int:
        with connect(Address(node, self.fleet.dsns[node])) as connection:
            row = connection.execute("SELECT count(*) FROM orders WHERE id = %s", (number,)).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    folder = new_folder(fast_place())
    with ExitStack() as stack:
        stack.enter_context(kept(folder))
        servers = {name: stack.enter_context(postgres(folder / name, 18)) for name in "abc"}
        passfile = folder / "pgpass"
        passfile.write_text("".join(f"127.0.0.1:{one.port}:*:postgres:{one.password()}\n" for one in servers.values()))
        passfile.chmod(0o600)
        keeper = stack.enter_context(ZooKeeperServer(folder / "zookeeper"))
        dsns = {name: stack.enter_context(new_database(server)).dsn for name, server in servers.items()}
        fleet = Fleet(folder, f"zk://{keeper.address}/crashes", dsns, tablets=4)
        fleet.write_daemon()
        fleet.write("observe")
        fleet.create(sorted(servers))
        daemon = Process(fleet.config, program="tests.support.impatient_daemon")
        until(daemon.leads, 120, "an election")
        login = PoolSettings(size=2, connection={"passfile": str(passfile)})
        router = stack.enter_context(Router.connect(fleet.url, login, samples=False))
        made = World(fleet, servers, keeper, daemon, router)
        try:
            yield made
        finally:
            made.daemon.kill()


CELLS = [" ".join((victim, point)) for victim, point in product(VICTIMS, POINTS)]


@pytest.mark.parametrize("cell", sampled(CELLS, 3, "atomic crashes"))
def test_all_or_nothing_whichever_server_dies_when(world: World, cell: str) -> None:
    victim, _, point = cell.partition(" ")
    ids = world.ids()
    client = Stopped(world.router, point, ids)
    world.kill(victim)
    told = client.go_on()
    until(lambda: not world.prepared(), 120, "the end of every part")
    found = [world.count(node, number) for node, number in zip("abc", ids, strict=True)]
    assert found in ([0, 0, 0], [1, 1, 1]), "half a transaction"
    if point in DECIDED:
        assert found == [1, 1, 1], "what was decided is done"
    assert {"done": 1, "refused": 0}.get(told, found[0]) == found[0], f"the client was told {told}"
