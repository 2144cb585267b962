"""Nodes are kept ready for messages: what files declare, nodes that join, and nothing where all is right."""

import json
from collections.abc import Iterator

import pytest

from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.features.messages.service import MessageKeeper
from balancer.naming import Name
from balancer.nodes.catalog.roots import facts_on
from balancer.nodes.session.connection import Address, Connection
from tests.support.commands import balancer_here
from tests.support.fleet import Fleet
from tests.support.opening import connect

CREDIT = "UPDATE orders SET n = n + (%(amount)s)::bigint WHERE id = %(id)s"


@pytest.fixture
def nodes(fleet: Fleet) -> Iterator[dict[str, Connection]]:
    opened = {name: connect(Address(name, dsn)) for name, dsn in fleet.dsns.items()}
    yield opened
    for connection in opened.values():
        connection.close()


@pytest.fixture
def ready(fleet: Fleet) -> Iterator[Directory]:
    fleet.write("observe", **{"tables.orders.messages.credit": f'apply = "{CREDIT}"'})
    done = balancer_here("messages", "enable", "shop", "orders", "--config", fleet.config)
    assert done.code == 0, done.err
    with fleet.directory() as directory:
        yield directory


def marks(connection: Connection) -> list[tuple[object, ...]]:
    """What changes with every write to the catalog's rows of the two roots, and to ours."""
    rows = "SELECT oid::regclass::text, xmin::text FROM pg_class WHERE relname ~ '^balancer_(in|out)box' ORDER BY 1"
    tables = ("balancer.message_table", "balancer.message_handler")
    ours = [f"SELECT name, xmin::text FROM {table}" for table in tables]
    return [row for statement in (rows, *ours) for row in connection.execute(statement).fetchall()]


def test_where_all_is_right_nothing_is_written(fleet: Fleet, ready: Directory, nodes: dict[str, Connection]) -> None:
    """A migration that runs takes every write to a root's definition for a change of it, and begins again."""
    node = nodes["a"]
    node.execute("DROP ROLE IF EXISTS keeper_clerk; CREATE ROLE keeper_clerk; GRANT INSERT ON orders TO keeper_clerk")
    try:
        MessageKeeper(ready.snapshot().epoch, SystemClock()).keep(ready.snapshot(), fleet.settings())
        before = {name: marks(connection) for name, connection in nodes.items()}
        MessageKeeper(ready.snapshot().epoch, SystemClock()).keep(ready.snapshot(), fleet.settings())
        assert {name: marks(connection) for name, connection in nodes.items()} == before
        may = "SELECT has_column_privilege('keeper_clerk', 'balancer_outbox_1', 'message_body', 'INSERT')"
        assert node.execute(may).fetchone() == (True,)
        may = may.replace("message_body", "message_role")
        assert node.execute(may).fetchone() == (False,)
    finally:
        node.execute("DROP OWNED BY keeper_clerk; DROP ROLE keeper_clerk")


def test_a_node_that_joins_and_a_file_that_changes(
    fleet: Fleet, ready: Directory, nodes: dict[str, Connection]
) -> None:
    nodes["b"].execute("DROP TABLE balancer_outbox_1, balancer_inbox_1; DELETE FROM balancer.message_table")
    again = CREDIT.replace("+", "-")
    fleet.write("observe", **{"tables.orders.messages.credit": f'apply = "{again}"\nreverse = "{CREDIT}"'})
    MessageKeeper(ready.snapshot().epoch, SystemClock()).keep(ready.snapshot(), fleet.settings())
    statement = "SELECT apply, reverse, needs FROM balancer.message_handler"
    told = [connection.execute(statement).fetchall() for connection in nodes.values()]
    apply = "UPDATE orders SET n = n - (($1 ->> 'amount'))::bigint WHERE id = (($2)[1]::bigint)"
    assert told == [[(apply, apply.replace(" - ", " + "), ["amount"])]] * 2
    roots = [Name("public", f"balancer_{word}_1") for word in ("outbox", "inbox")]
    first, second = (facts_on(connection, roots) for connection in nodes.values())
    assert first == second


def test_what_is_not_ready_is_said(fleet: Fleet) -> None:
    shown = balancer_here("messages", "enable", "shop", "orders", "--config", fleet.config, "--dry-run", "-o", "json")
    assert json.loads(shown.out)["ready"] is False
    wrong = balancer_here("messages", "enable", "shop", "nothing", "--config", fleet.config)
    assert wrong.code == 2
