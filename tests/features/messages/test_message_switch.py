"""Tables are made ready for messages whatever they are, on servers of two versions, and messages go between tables."""

from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from balancer.client import PoolSettings, Router
from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.locate import locate_key
from balancer.directory.model import Node, Put, Transaction
from balancer.errors import Refused, Unavailable
from balancer.features.convert.run import plan_unconversion
from balancer.features.messages import enable
from balancer.features.messages.enable import Switched, alone, switch_off, switch_on
from balancer.features.tables.adopt import TableRequest
from balancer.features.tables.create import create
from balancer.migration.begin import begin_expiry
from balancer.naming import parse_name
from balancer.nodes.session.connection import Address, Connection
from balancer.settings.messages import MessageSettings
from tests.support.directories import migration
from tests.support.opening import connect
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


def switched_off(directory: Directory, nodes: Nodes, table: str = "orders") -> bool:
    return switch_off(table, directory, nodes, {}, {"events": {"count": COUNT}}, author="test")


ROOTS = "SELECT count(*) FROM pg_class WHERE relname LIKE 'balancer_%box_2%'"


@pytest.mark.usefixtures("tables")
def test_a_table_leaves_messages_when_nothing_is_left_of_them(
    nodes: Nodes, directory: Directory, tmp_path: Path
) -> None:
    for table in ("events", "orders"):
        switch(table, directory, nodes)
    at = datetime(2030, 1, 1, 12, tzinfo=UTC)
    with Router.connect(f"sqlite://{tmp_path}/directory.db", PoolSettings(size=2), samples=False) as router:
        with router.transaction("orders", 7) as connection:
            connection.execute("INSERT INTO orders VALUES (7)")
            connection.send("events", ("absent", at), "count", {"by": 2}, deliver=False)
        with pytest.raises(Refused, match=r"1 messages of table orders on node . wait"):
            switched_off(directory, nodes)
        with pytest.raises(Refused, match=r"1 messages of table orders on node . are for table events"):
            switched_off(directory, nodes, "events")
        assert directory.snapshot().table("orders").message_roots is not None
        with router.transaction("orders", 7) as connection:  # nothing was closed
            connection.send("events", ("absent", at), "count", {"by": 2}, deliver=False)
    for node in nodes.values():
        node.execute("DELETE FROM balancer_outbox_2")
    remembered = nodes["a"].execute("SELECT tableoid::regclass::text FROM orders LIMIT 1").fetchone()
    owner = "a" if remembered else "b"
    nodes[owner].execute(
        "INSERT INTO balancer_inbox_2 (id, message_id, message_outcome, message_name, message_sender,"
        " message_sender_key) VALUES (7, gen_random_uuid(), 'applied', 'm', 'orders', '{7}')"
    )
    with pytest.raises(Refused, match="remembers 1 messages"):
        switched_off(directory, nodes)
    nodes[owner].execute("DELETE FROM balancer_inbox_2")
    assert [switched_off(directory, nodes) for _ in range(2)] == [True, False]
    known = directory.snapshot().table("orders")
    assert (known.roots, known.message_roots) == (("public.orders",), None)
    for tablet in directory.snapshot().tablets(known.id):
        row = nodes[tablet.node].execute("SELECT partitions FROM balancer.tablet WHERE id = %s", (tablet.id,))
        assert row.fetchone() == ([f"orders_t{tablet.id}"],)
    assert [node.execute(ROOTS).fetchone() for node in nodes.values()] == [(0,)] * len(nodes)
    assert switch("orders", directory, nodes).tablets == 4, "and it may come back"


def sent_from(directory: Directory, node: str) -> bytes:
    """A message of a key that is there, past all functions."""
    key = next(key for key in range(1000) if locate_key(directory.snapshot(), "orders", key).node == node)
    columns = "id, message_number, message_target, message_key, message_name, message_body"
    return f"INSERT INTO balancer_outbox_2 ({columns}) VALUES ({key}, 1, 'orders', '{{7}}', 'm', '{{}}')".encode()


@pytest.mark.usefixtures("tables")
def test_what_is_in_a_root_is_never_dropped(
    nodes: Nodes, directory: Directory, databases: dict[str, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has opened it by hand."""
    switch("orders", directory, nodes)
    told = enable._leave

    def opened(*arguments: Any) -> None:
        told(*arguments)
        nodes["a"].execute("ALTER TABLE balancer_outbox_2 DROP CONSTRAINT balancer_closed")
        nodes["a"].execute(sent_from(directory, "a"))

    monkeypatch.setattr(enable, "_leave", opened)
    with pytest.raises(Refused, match="1 messages of table orders on node a wait"):
        switched_off(directory, nodes)
    assert nodes["a"].execute("SELECT count(*) FROM balancer_outbox_2").fetchone() == (1,)
    with ExitStack() as stack, alone(nodes, directory.snapshot().table("orders")):
        mine = {name: stack.enter_context(connect(Address(name, database.dsn))) for name, database in databases.items()}
        with pytest.raises(Refused, match="another process"):
            switched_off(directory, mine)


@pytest.mark.usefixtures("tables")
def test_a_message_that_comes_after_the_look_stops_it(
    nodes: Nodes, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch("orders", directory, nodes)
    last = max(nodes)
    looked = enable.check_unused

    def late(*arguments: Any) -> None:
        looked(*arguments)
        nodes[last].execute(sent_from(directory, last))

    monkeypatch.setattr(enable, "check_unused", late)
    with pytest.raises(Refused, match=f"has come to .* on node {last} meanwhile"):
        switched_off(directory, nodes)
    assert directory.snapshot().table("orders").message_roots is not None
    for node in nodes.values():
        assert node.execute("SELECT FROM pg_constraint WHERE conname = 'balancer_closed'").fetchone() is None


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("step", ["commit", "_drop"])
@pytest.mark.parametrize("then", ["off", "on"])
def test_an_interruption_is_mended_by_either_command(
    nodes: Nodes, directory: Directory, monkeypatch: pytest.MonkeyPatch, step: str, then: str
) -> None:
    """The process dies before the directory's commit, or before anything is dropped."""
    switch("orders", directory, nodes)

    class DiedHere(BaseException):
        pass

    def die(*_: Any) -> None:
        raise DiedHere

    with monkeypatch.context() as dying:
        where: object = directory if step == "commit" else enable
        dying.setattr(where, step, die)
        with pytest.raises(DiedHere):
            switched_off(directory, nodes)
    assert (directory.snapshot().table("orders").message_roots is None) == (step == "_drop")
    for name, node in nodes.items():
        with pytest.raises(psycopg.errors.CheckViolation):
            node.execute(sent_from(directory, name))
    if then == "off":
        switched_off(directory, nodes)
        assert [node.execute(ROOTS).fetchone() for node in nodes.values()] == [(0,)] * len(nodes)
    else:
        switch("orders", directory, nodes)
        assert directory.snapshot().table("orders").message_roots is not None
        for node in nodes.values():
            assert node.execute("SELECT FROM pg_constraint WHERE conname = 'balancer_closed'").fetchone() is None
