"""A rule by key on real nodes: the tablet is cut at the rule's bounds, and only the rows that it names move."""

from collections.abc import Iterator

import psycopg
import pytest

from balancer.clock import SystemClock
from balancer.daemon.daemon import Daemon
from balancer.directory.model import Node
from balancer.features.tables.adopt import TableRequest
from balancer.features.tables.create import create
from balancer.naming import cluster_name, parse_name
from balancer.nodes.session.connection import Address
from balancer.settings import load_settings
from tests.support.fleet import Fleet, until
from tests.support.opening import connect

TABLE = """
roots = ["public.people"]
layout = "range"
key = ["region", "id"]

[[rules]]
name = "eu"
tables = ["people"]
key = ["EU"]
nodes = ["b"]
"""
DEFINITION = """
CREATE TABLE public.people (region text COLLATE "C", id bigint, PRIMARY KEY (region, id))
PARTITION BY RANGE (region, id)
"""
ROWS = [(region, number) for region in ("APAC", "EU", "EU'; --", "US") for number in (-5, 7, 2**40)]


@pytest.fixture
def people(fleet: Fleet) -> Fleet:
    """One tablet of all regions on node a."""
    connections = {name: connect(Address(name, dsn)) for name, dsn in fleet.dsns.items()}
    request = TableRequest("shop", "people", (parse_name("public.people"),), "range", ("region", "id"), "test")
    nodes = [Node("a", "shop", "postgresql:///shop")]
    with fleet.directory() as directory:
        create(request, directory, connections, nodes, cluster_name(fleet.url), tablets=1, definition=DEFINITION)
    with connections["a"].cursor() as cursor:
        cursor.executemany("INSERT INTO people VALUES (%s, %s)", ROWS)
    for connection in connections.values():
        connection.close()
    fleet.write("autonomous", **{"tables.people": TABLE, "tablet_balancer_config": "enable_cell_balancer = false"})
    return fleet


@pytest.fixture
def daemon(people: Fleet) -> Iterator[Daemon]:
    made = Daemon(load_settings(people.config), SystemClock())
    made.start()
    yield made
    made.stop()


def rows_on(fleet: Fleet, node: str) -> list[tuple[str, int]]:
    with psycopg.connect(fleet.dsns[node]) as connection:
        return connection.execute("SELECT region, id FROM people ORDER BY region, id").fetchall()


def test_a_region_moves_to_its_node_and_nothing_else_does(people: Fleet, daemon: Daemon) -> None:
    mine = [row for row in ROWS if row[0] == "EU"]

    def settled() -> bool:
        snapshot = daemon.directory().snapshot()
        done = all(record.finished for record in snapshot.migrations.values())
        return done and rows_on(people, "b") == mine and len(rows_on(people, "a")) == len(ROWS) - len(mine)

    until(settled, 60, "the move of the region")
    snapshot = daemon.directory().snapshot()
    tablets = snapshot.tablets(snapshot.table("people").id)
    assert [tablet.node for tablet in tablets] == ["a", "b", "a"]
    assert rows_on(people, "a") == [row for row in ROWS if row[0] != "EU"]
