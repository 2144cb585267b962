"""A reference table on a running instance: written to while a node is added, killed and restarted, and its home moved.

Foreign keys from tablets hold on every node at the end, and every copy has what the home has.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from balancer.client import PoolSettings, Router
from balancer.embedded.postgres import PostgresServer
from balancer.errors import BalancerError
from tests.daemon.test_daemon import Instance
from tests.support.commands import balancer_here as balancer
from tests.support.fleet import Fleet, until
from tests.support.servers import Database, postgres

COUNTRIES = """
CREATE TABLE public.countries (code int PRIMARY KEY, name text);
INSERT INTO public.countries SELECT n, 'c' || n FROM generate_series(1, 50) AS n;
"""
ORPHANS = """
SELECT count(*) FROM orders o LEFT JOIN countries c ON c.code = o.country WHERE o.country IS NOT NULL AND c.code IS NULL
"""
SILENT = "SELECT count(*) > 0 FROM pg_replication_slots WHERE NOT active AND database = current_database()"
CONTENT = "SELECT count(*), coalesce(sum(code), 0), max(name) FROM countries"


class Writer(threading.Thread):
    """Adds countries, and orders that refer to those that their node has; keeps account of both."""

    def __init__(self, url: str, passfile: Path) -> None:
        super().__init__()
        self._url = url
        self._pools = PoolSettings(connection={"passfile": str(passfile)})
        self.over = threading.Event()
        self.countries: list[int] = []
        self.orders: list[int] = []
        self.errors: list[str] = []

    def run(self) -> None:
        with Router.connect(self._url, self._pools, samples=False) as router:
            number = 100
            while not self.over.is_set():
                number += 1
                self._try(self.countries, number, partial(router.run, "countries", (), country(number)))
                self._try(self.orders, number, partial(router.run, "orders", number, order(number)))

    def _try(self, done: list[int], number: int, act: Callable[[], object]) -> None:
        try:
            act()
            done.append(number)
        except (BalancerError, psycopg.OperationalError):
            return  # of a node that is down: nothing was acknowledged
        except psycopg.Error as error:
            self.errors.append(f"{type(error).__name__}: {error}")


def country(number: int) -> Callable[[psycopg.Connection[object]], object]:
    return lambda connection: connection.execute("INSERT INTO countries VALUES (%s, 'new')", (number,))


def order(number: int) -> Callable[[psycopg.Connection[object]], object]:
    statement = "INSERT INTO orders (id, country) SELECT %s, max(code) FROM countries"
    return lambda connection: connection.execute(statement, (number,))


def passfile(folder: Path, dsns: Iterable[str]) -> Path:
    """The directory has no passwords."""
    file = folder / "passfile"
    facts = [conninfo_to_dict(dsn) for dsn in dsns]
    file.write_text("".join(f"{one['host']}:{one['port']}:*:{one['user']}:{one['password']}\n" for one in facts))
    file.chmod(0o600)
    return file


def query(dsn: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(statement.encode())
        return found.fetchall() if found.description else []


@pytest.fixture
def third(server_folder: Path) -> Iterator[PostgresServer]:
    """A server of its own, to be killed."""
    with postgres(server_folder / f"third-{uuid4().hex[:6]}", 18) as server:
        yield server


@pytest.fixture
def fleet(
    tmp_path: Path,
    postgres15: PostgresServer,
    postgres18: PostgresServer,
    third: PostgresServer,
    database: Callable[[PostgresServer], Database],
) -> Fleet:
    dsns = {"a": database(postgres15).dsn, "b": database(postgres18).dsn, "c": third.dsn()}
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


def has_copies(instance: Instance, node: str) -> bool:
    return instance.metric("balancer_reference_copies_missing", bundle="shop", node=node) == 0.0


def test_a_reference_table_is_followed_through_a_new_node_a_crash_and_a_new_home(
    fleet: Fleet, third: PostgresServer
) -> None:
    adopted = balancer("table", "adopt", "shop", "countries", "--config", fleet.config)
    assert (adopted.code, adopted.err) == (0, "")
    instance, writer = Instance(fleet.config), Writer(fleet.url, passfile(fleet.folder, fleet.dsns.values()))
    instance.start()
    try:
        until(
            lambda: instance.metric("balancer_reference_copies_missing", bundle="shop", node="b") == 0.0,
            60,
            "the copy on b",
        )
        for node in "ab":
            query(fleet.dsns[node], "ALTER TABLE orders ADD COLUMN country int REFERENCES countries")
        writer.start()
        until(lambda: len(writer.orders) > 20, 60, "orders")
        fleet.write("observe", nodes=["a", "b", "c"])
        instance.daemon.reload()
        until(lambda: query(fleet.dsns["c"], "SELECT to_regclass('public.countries')") != [(None,)], 60, "tables on c")
        assert balancer("table", "adopt", "shop", "orders", "--config", fleet.config).code == 0
        fleet.write("autonomous", nodes=["a", "b", "c"])
        instance.daemon.reload()
        until(lambda: instance.owners().get("c", 0) >= 2, 90, "tablets on c")
        third.kill()
        until(
            lambda: query(fleet.dsns["a"], "SELECT count(*) FROM pg_replication_slots WHERE NOT active") != [(0,)], 60
        )
        third.start()
        reached = len(writer.countries)
        until(lambda: len(writer.countries) > reached + 5, 60, "countries after the crash")
        snapshot = instance.daemon.directory().snapshot()
        tablet = snapshot.tablets(snapshot.table("countries").id)[0]
        until(
            lambda: instance.metric("balancer_reference_copies_missing", bundle="shop", node="c") == 0.0,
            60,
            "the copy on c",
        )
        moved = balancer("move", str(tablet.id), "c", "--mode", "read-only", "--wait", "--config", fleet.config)
        assert moved.code == 0, moved.err
        reached = len(writer.countries)
        until(lambda: len(writer.countries) > reached + 5, 60, "countries on their new home")
        writer.over.set()
        writer.join()
        assert writer.errors == []
        home = query(fleet.dsns["c"], CONTENT)
        for node, dsn in fleet.dsns.items():
            until(lambda dsn=dsn: query(dsn, CONTENT) == home, 60, f"a copy like its home on {node}")  # type: ignore[misc]
            assert query(dsn, ORPHANS) == [(0,)]
        there = {int(str(code)) for (code,) in query(fleet.dsns["c"], "SELECT code FROM countries WHERE code > 100")}
        assert there >= set(writer.countries)
        orders = {int(str(i)) for dsn in fleet.dsns.values() for (i,) in query(dsn, "SELECT id FROM orders")}
        assert orders >= set(writer.orders)
        until(lambda: balancer("doctor", "--config", fleet.config).code == 0, 60, "nothing for the doctor")
        for command in ("verify countries", "tablets --table countries", "route countries", "status", "node check"):
            shown = balancer(*command.split(), "--config", fleet.config)
            assert shown.code == 0, (command, shown.out, shown.err)
    finally:
        writer.over.set()
        if writer.ident is not None:
            writer.join()
        instance.stop()
