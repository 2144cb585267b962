"""A reference table under 200 writes a second while a node is added, killed and taken back in time, and so is its home.

What was written before an accepted loss may be gone with it, on the node that lost it; foreign keys hold everywhere all
the same, and every copy has what the home has.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg
import pytest

from balancer.client import PoolSettings, Router
from balancer.directory.model import Tablet
from balancer.embedded.postgres import PostgresServer
from balancer.errors import BalancerError
from tests.daemon.test_daemon import Instance
from tests.features.reference.test_references import (
    CONTENT,
    COUNTRIES,
    ORPHANS,
    country,
    has_copies,
    order,
    passfile,
    query,
)
from tests.support.commands import Result
from tests.support.commands import balancer_here as balancer
from tests.support.fleet import Fleet, until
from tests.support.servers import postgres
from tests.support.standby import copy_folder, restore_folder

PER_SECOND = 200


class Writers:
    """Two threads: countries at a given pace, and orders that refer to the newest that their node has."""

    def __init__(self, url: str, passes: Path) -> None:
        self.countries: list[tuple[float, int]] = []
        self.orders: list[int] = []
        self.errors: list[str] = []
        self._over = threading.Event()
        self._router = Router.connect(url, PoolSettings(connection={"passfile": str(passes)}), samples=False)
        self._threads = [threading.Thread(target=work) for work in (self._write_countries, self._write_orders)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._router.close()

    def _write_countries(self) -> None:
        number, due = 100, time.monotonic()
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due = max(due + 1 / PER_SECOND, time.monotonic() - 1)
            number += 1
            if self._try(partial(self._router.run, "countries", (), country(number))):
                self.countries.append((time.monotonic(), number))

    def _write_orders(self) -> None:
        number = 100
        while not self._over.wait(0.005):
            number += 1
            if self._try(partial(self._router.run, "orders", number, order(number))):
                self.orders.append(number)

    def _try(self, act: Callable[[], object]) -> bool:
        try:
            act()
        except (BalancerError, psycopg.OperationalError):
            return False  # of a node that is down or not trusted: nothing was acknowledged
        except psycopg.Error as error:
            if error.sqlstate != "TB004":
                self.errors.append(f"{type(error).__name__}: {error}")
            return False
        return True

    def pace(self) -> float:
        """Countries a second, of the last hundred."""
        last = self.countries[-100:]
        return 0.0 if len(last) < 100 else 99 / (last[-1][0] - last[0][0])

    def go_on(self, more: int = 100) -> None:
        reached = len(self.countries), len(self.orders)
        until(lambda: len(self.countries) > reached[0] + more, 60, "more countries")
        until(lambda: len(self.orders) > reached[1] + more // 4, 60, "more orders")


@pytest.fixture
def servers(server_folder: Path, tmp_path: Path) -> Iterator[dict[str, PostgresServer]]:
    folder = server_folder / f"references-{tmp_path.name}"
    folder.mkdir()
    folder.chmod(0o755)
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(postgres(folder / name, version))
            for name, version in {"a": 15, "b": 18, "c": 18}.items()
        }


@pytest.fixture
def fleet(tmp_path: Path, servers: dict[str, PostgresServer]) -> Fleet:
    dsns = {name: server.dsn() for name, server in servers.items()}
    made = Fleet(tmp_path, f"sqlite://{tmp_path}/shop.db", {"a": dsns["a"], "b": dsns["b"]})
    made.bundle |= {
        "tablet_balancer_config": "enable_cell_balancer = true",
        "placement": "dimensions = { tablets = 1.0 }",
        "migration": 'retire_grace = "0s"\nmoves_per_node = 4\ncool_down = "0s"\nwrite_pause_budget = "5s"\n'
        'fence_deadline = "10s"\nlock_timeout = "1s"',
        "tables.countries": 'roots = ["public.countries"]\nlayout = "everywhere"',
    }
    made.write_daemon(tick="300ms")
    made.write("observe")
    made.create(["a"])
    query(dsns["a"], COUNTRIES)
    made.dsns["c"] = dsns["c"]
    return made


@dataclass
class Story:
    """The instance, the writers, and what an operator says."""

    fleet: Fleet
    servers: dict[str, PostgresServer]
    instance: Instance
    writers: Writers
    folder: Path
    nodes: str = "ab"

    def balancer(self, *words: str) -> Result:
        return balancer(*words, "--config", self.fleet.config)

    def query(self, node: str, statement: str) -> list[tuple[object, ...]]:
        return query(self.fleet.dsns[node], statement)

    def add_c(self) -> None:
        self.fleet.write("observe", nodes=["a", "b", "c"])
        self.instance.daemon.reload()
        until(lambda: self.query("c", "SELECT to_regclass('public.countries')") != [(None,)], 60, "tables on c")
        assert self.balancer("table", "adopt", "shop", "orders").code == 0
        self.fleet.write("autonomous", nodes=["a", "b", "c"])
        self.instance.daemon.reload()
        self.nodes = "abc"
        until(lambda: self.instance.owners().get("c", 0) >= 2, 90, "tablets on c")

    def take_back(self, node: str) -> None:
        """To where it was before more was written, in every table that has rows there."""
        server, backup = self.servers[node], self.folder / f"backup-{node}"
        server.stop()
        copy_folder(server, backup)
        server.start()
        self.until_followed()
        self.writers.go_on(200)
        server.stop()
        restore_folder(server, backup)
        server.start()
        until(lambda: self.rewound() == {node}, 60, f"the discovery that {node} went back")

    def rejoin(self, node: str) -> None:
        accepted = self.balancer("node", "rejoin", node, "--accept-loss")
        assert accepted.code == 0, accepted.err
        until(lambda: not self.rewound(), 60, f"trust in {node}")

    def rewound(self) -> set[str]:
        return {node.id for node in self.instance.daemon.directory().snapshot().nodes.values() if node.rewound}

    def home(self) -> Tablet:
        snapshot = self.instance.daemon.directory().snapshot()
        return snapshot.tablets(snapshot.table("countries").id)[0]

    def until_followed(self) -> None:
        others = {*self.nodes} - {self.home().node}
        until(lambda: all(has_copies(self.instance, node) for node in others), 60, "copies that follow")

    def orphans(self) -> dict[str, list[tuple[object, ...]]]:
        return {node: found for node in self.nodes if (found := self.query(node, ORPHANS)) != [(0,)]}

    def put_back(self) -> None:
        """As a copy that cannot be filled asks for: what it has and its home has forgotten."""
        home = self.home().node
        known = {*self.query(home, "SELECT code, name FROM countries")}
        for node in {*self.nodes} - {home}:
            for code, name in {*self.query(node, "SELECT code, name FROM countries")} - known:
                self.query(home, f"INSERT INTO countries VALUES ({code}, '{name}') ON CONFLICT DO NOTHING")

    def check_end(self) -> None:
        """Nobody writes any more: every copy is like the home, and foreign keys hold."""
        assert self.orphans() == {}
        self.put_back()
        self.until_followed()
        self.writers.stop()
        home = self.query(self.home().node, CONTENT)
        for node in self.nodes:
            until(lambda node=node: self.query(node, CONTENT) == home, 60, f"a copy like its home on {node}")  # type: ignore[misc]
        assert self.orphans() == {}
        until(lambda: self.balancer("doctor").code == 0, 60, "nothing for the doctor")


@pytest.fixture
def story(fleet: Fleet, servers: dict[str, PostgresServer], tmp_path: Path) -> Iterator[Story]:
    assert balancer("table", "adopt", "shop", "countries", "--config", fleet.config).code == 0
    with ExitStack() as stack:
        instance = Instance(fleet.config)
        instance.start()
        stack.callback(instance.stop)
        until(lambda: has_copies(instance, "b"), 60, "the copy on b")
        for node in "ab":
            query(fleet.dsns[node], "ALTER TABLE orders ADD COLUMN country int REFERENCES countries")
        writers = Writers(fleet.url, passfile(tmp_path, fleet.dsns.values()))
        stack.callback(writers.stop)
        writers.start()
        yield Story(fleet, servers, instance, writers, tmp_path)
        print(f"{writers.pace():.0f} countries a second at the end, {len(writers.countries)} in all")


def test_foreign_keys_hold_while_nodes_are_added_killed_and_taken_back(story: Story) -> None:
    story.writers.go_on()
    story.add_c()
    story.servers["c"].kill()
    story.servers["c"].start()
    story.writers.go_on()
    story.take_back("c")
    story.rejoin("c")
    story.writers.go_on()
    assert story.writers.errors == []
    story.take_back("a")
    shown = story.balancer("node", "rejoin", "a", "--dry-run").out
    tablet = story.home()
    advised = re.search(rf"`balancer (tablet lost {tablet.id} --take-from ([bc]) --accept-loss)` first", shown)
    assert advised is not None, shown
    taken = story.balancer(*advised.group(1).split())
    assert taken.code == 0, taken.err
    before = {int(str(code)) for (code,) in story.query(advised.group(2), "SELECT code FROM countries")}
    story.rejoin("a")
    story.writers.go_on()
    assert story.home().node == advised.group(2)
    story.check_end()
    after = {int(str(code)) for (code,) in story.query("a", "SELECT code FROM countries")}
    assert after >= before, "what the copy knew is kept"


def test_a_home_that_forgot_rows_does_not_take_them_from_those_who_refer_to_them(story: Story) -> None:
    for tablet in "1234":
        assert story.balancer("move", tablet, "b", "--mode", "read-only", "--wait").code == 0
    story.writers.go_on()
    story.take_back("a")
    story.rejoin("a")
    until(lambda: "refer to" in story.balancer("status").out, 60, "the reason")
    assert story.orphans() == {}
    assert "`balancer status` says why not" in story.balancer("doctor").out
    story.writers.go_on(20)
    assert story.orphans() == {}
    story.check_end()
