"""Tables are made ready for messages whatever they are, on servers of two versions, and messages go between tables."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from balancer.client import PoolSettings, Router
from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import Node, Put, Transaction
from balancer.errors import Refused, Unavailable
from balancer.migration.begin_expiry import begin_expiry
from balancer.nodes.connection import Connection
from balancer.nodes.names import parse_name
from balancer.settings.message_handlers import MessageSettings
from balancer.tables.adopt import TableRequest
from balancer.tables.create import create
from balancer.tables.message_switch import Switched, switch_on
from balancer.tables.unconvert import plan_unconversion
from tests.support.directories import migration
from tests.support.servers import Database

Nodes = dict[str, Connection]
EVENTS = """
CREATE TABLE events (tenant text COLLATE "C" NOT NULL, at timestamptz NOT NULL, n bigint NOT NULL DEFAULT 0,
                     PRIMARY KEY (tenant, at)) PARTITION BY RANGE (tenant, at)
"""
ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, n bigint NOT NULL DEFAULT 0) PARTITION BY HASH (id)"
COUNT = MessageSettings(
    "UPDATE events SET n = n + (%(by)s)::int WHERE tenant = %(tenant)s AND at = %(at)s",
    "UPDATE orders SET n = n - 1 WHERE id = %(id)s",
)


def switch(table: str, directory: Directory, nodes: Nodes, patience: float = 60) -> Switched:
    handlers, clock = {"events": {"count": COUNT}}, SystemClock()
    return switch_on(table, directory, nodes, handlers, cluster="shop", author="test", clock=clock, patience=patience)


@pytest.fixture
def tables(nodes: Nodes, directory: Directory, databases: dict[str, Database]) -> None:
    records = [Node(name, "shop", database.dsn) for name, database in databases.items()]
    events = TableRequest("shop", "events", (parse_name("events"),), "range", ("tenant", "at"), "test")
    create(events, directory, nodes, records, "shop", tablets=2, splits=["m"], definition=EVENTS)
    orders = TableRequest("shop", "orders", (parse_name("orders"),), "hash", ("id",), "test")
    create(orders, directory, nodes, records, "shop", tablets=4, definition=ORDERS)


@pytest.mark.usefixtures("tables")
def test_messages_go_from_one_table_to_another(nodes: Nodes, directory: Directory, tmp_path: Path) -> None:
    assert [switch(table, directory, nodes).tablets for table in ("events", "orders", "orders")] == [2, 4, 0]
    at = datetime(2030, 1, 1, 12, tzinfo=UTC)
    with Router.connect(f"sqlite://{tmp_path}/directory.db", PoolSettings(size=2), samples=False) as router:
        for tenant in ("it's", "zoë"):
            with router.transaction("events", (tenant, at)) as connection:
                connection.execute("INSERT INTO events VALUES (%s, %s)", (tenant, at))
            with router.transaction("orders", 7) as connection:
                connection.execute("INSERT INTO orders VALUES (7) ON CONFLICT DO NOTHING")
                connection.send("events", (tenant, at), "count", {"by": 2})
            with router.transaction("events", (tenant, at), read_only=True) as connection:
                row = connection.execute("SELECT n FROM events WHERE tenant = %s", (tenant,)).fetchone()
                assert row == (2,)
        with router.transaction("orders", 7, read_only=True) as connection:
            assert connection.execute("SELECT count(*) FROM balancer_outbox_2").fetchone() == (0,)


@pytest.mark.usefixtures("tables")
def test_a_migration_is_waited_for_and_what_was_made_in_vain_is_dropped(nodes: Nodes, directory: Directory) -> None:
    snapshot = directory.snapshot()
    first = next(iter(snapshot.tablets(snapshot.table("orders").id)))
    running = migration(first, "b" if first.node == "a" else "a")
    directory.commit(Transaction((Put(running),), snapshot.version, "test", "test"))
    with pytest.raises(Unavailable, match="say `balancer pause` first"):
        switch("orders", directory, nodes, patience=0)
    assert directory.snapshot().table("orders").message_roots is None
    nodes["a"].execute(
        "CREATE TABLE balancer_outbox_2_t99 PARTITION OF balancer_outbox_2 FOR VALUES WITH (MODULUS 4, REMAINDER 3)"
    )
    snapshot = directory.snapshot()

    ended = replace(running, finished=True, state="cancelled")
    directory.commit(Transaction((Put(ended),), snapshot.version, "test", "test"))
    assert switch("orders", directory, nodes).tablets == 4
    assert nodes["a"].execute("SELECT to_regclass('balancer_outbox_2_t99') IS NULL").fetchone() == (True,)
    told = "SELECT partitions FROM balancer.tablet WHERE id = %s"
    (names,) = nodes[first.node].execute(told, (first.id,)).fetchone() or ([],)
    assert list(names) == [f"{root}_t{first.id}" for root in ("orders", "balancer_outbox_2", "balancer_inbox_2")]


@pytest.mark.usefixtures("tables")
def test_what_would_lose_messages_is_refused(
    nodes: Nodes, directory: Directory, databases: dict[str, Database]
) -> None:
    """Tablets that expire, and a table that becomes a plain one again, would take outbox and inbox with them."""
    records = [Node(name, "shop", database.dsn) for name, database in databases.items()]
    single = TableRequest("shop", "single", (parse_name("single"),), "hash", ("id",), "test")
    create(single, directory, nodes, records, "shop", tablets=1, definition=ORDERS.replace("orders", "single"))
    for table in ("events", "single"):
        switch(table, directory, nodes)
    leadership = directory.campaign("test", 5.0)
    assert leadership is not None
    snapshot = directory.snapshot()
    lowest = next(iter(snapshot.tablets(snapshot.table("events").id)))
    with pytest.raises(Refused, match="takes part in messages"):
        begin_expiry(directory, leadership, [lowest.id], expire_after=60.0)
    with pytest.raises(Refused, match="takes part in messages"):
        plan_unconversion(single, directory, nodes)


@pytest.mark.usefixtures("tables")
def test_one_process_at_a_time(nodes: Nodes, directory: Directory, databases: dict[str, Database]) -> None:
    with databases["a"].connect() as other:
        other.execute("SELECT pg_advisory_lock(%s, 2)", (0x6D657374,))
        with pytest.raises(Refused, match="another process"):
            switch("orders", directory, nodes)
