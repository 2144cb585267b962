"""Clients that die in the middle of a transaction over several nodes: the leader ends it, all or nothing."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import psycopg
import pytest

from balancer.client import PoolSettings, Router
from balancer.daemon import atomic_recovery
from balancer.daemon.daemon import HOUSEKEEPING
from balancer.embedded.postgres import PostgresServer
from balancer.naming import PreparedId, transaction_id
from balancer.nodes.schema.decisions import prepared_parts
from balancer.nodes.session.connection import Address, Connection
from tests.daemon.test_daemon import Instance, instance
from tests.support.atomic_victim import Standing
from tests.support.commands import balancer_here
from tests.support.fleet import Fleet, until
from tests.support.forked import forked_beside
from tests.support.opening import connect

DIED = {
    "nothing": False,
    "PREPARE TRANSACTION": False,
    "balancer.decide(": True,
    "COMMIT PREPARED": True,
}
"""After what it has sent the client dies → whether the transaction is committed."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_recovery, "AGE", 0.2)


@pytest.fixture
def nodes(fleet: Fleet) -> Iterator[dict[str, Connection]]:
    opened = {name: connect(Address(name, dsn)) for name, dsn in fleet.dsns.items()}
    yield opened
    for connection in opened.values():
        connection.close()


@contextmanager
def spread(fleet: Fleet) -> Iterator[Instance]:
    """An instance, once each node has four of the eight tablets; then it only looks."""
    with instance(fleet) as running:
        until(lambda: running.owners() == {"a": 4, "b": 4}, 60, "the balance")
        fleet.write("observe")
        until(lambda: not running.daemon.directory().snapshot().busy, 60, "the end of moves")
        yield running


def prepared(nodes: dict[str, Connection]) -> list[str]:
    return [part.gid for connection in nodes.values() for part in prepared_parts(connection)]


def ids_of(router: Router, count: int) -> list[tuple[int, int]]:
    """Pairs of new rows, one on each node."""
    by_node: dict[str, list[int]] = {"a": [], "b": []}
    for number in range(100_000, 101_000):
        by_node[router.locate("orders", number).node].append(number)
    return list(zip(*by_node.values(), strict=False))[:count]


def test_what_a_killed_client_left_is_ended_all_or_nothing(
    fleet: Fleet, nodes: dict[str, Connection], postgres18: PostgresServer
) -> None:
    password = postgres18.password()
    with spread(fleet) as running:
        with Router.connect(fleet.url, samples=False) as router:
            pairs = dict(zip(DIED, ids_of(router, len(DIED)), strict=True))
        with ExitStack() as stack:
            for word, pair in pairs.items():
                arguments = ("tests.support.atomic_victim", fleet.url, password, word, *map(str, pair))
                victim, printed = stack.enter_context(forked_beside(*arguments))
                assert printed.readline() == "standing\n"
                victim.kill()
        until(lambda: not prepared(nodes), 60, "the end of every part")
        found = {
            word: [count(nodes[name], number) for name, number in zip("ab", pair, strict=True)]
            for word, pair in pairs.items()
        }
        assert found == {word: [int(commits)] * 2 for word, commits in DIED.items()}
        until(lambda: running.metric("balancer_node_prepared_seconds", bundle="shop", node="b") == 0, 30, "the metric")


def count(connection: Connection, number: int) -> int:
    row = connection.execute("SELECT count(*) FROM orders WHERE id = %s", (number,)).fetchone()
    assert row is not None
    return int(row[0])


def decisions(connection: Connection) -> set[str]:
    return {str(row[0]) for row in connection.execute("SELECT id FROM balancer.decision").fetchall()}


def left_by(connection: Connection, gid: str, number: int) -> None:
    connection.execute("BEGIN")
    connection.execute("INSERT INTO orders (id, note) VALUES (%s, 'left')", (number,))
    connection.execute(f"PREPARE TRANSACTION '{gid}'".encode())


def test_one_whose_home_is_gone_is_in_doubt_until_an_operator_decides(
    fleet: Fleet, nodes: dict[str, Connection]
) -> None:
    with spread(fleet) as running:
        with Router.connect(fleet.url, samples=False) as router:
            ((_, number), (_, other)) = ids_of(router, 2)
        lost = PreparedId("shop", "gone", "b", transaction_id("s1"))
        strange = PreparedId("elsewhere", "a", "b", transaction_id("s2"))
        left_by(nodes["b"], str(lost), number)
        left_by(nodes["b"], str(strange), other)
        until(lambda: "in doubt" in _in_the_way(running), 30, "a doubt")
        assert "node gone, is not in the cluster any more" in _in_the_way(running)
        shown = balancer_here("transactions", "list", "-o", "json", "--config", fleet.config)
        (row,) = json.loads(shown.out)
        assert (row["transaction"], row["home"], row["node"]) == (lost.transaction, "gone", "b")
        assert row["decision"] == "in doubt"
        assert "orders" in row["locks"]
        answer = running.give(
            "decide", transaction=lost.transaction, home="gone", commit=True, reason="its books say so"
        )
        assert "1 parts of transaction" in answer
        assert prepared(nodes) == [str(strange)], "another cluster's is left alone"
        row_there = nodes["b"].execute("SELECT note FROM orders WHERE id = %s", (number,)).fetchone()
        assert row_there == ("left",)
        reasons = [entry.reason for entry in running.daemon.directory().history(limit=50)]
        assert any("because its books say so" in reason for reason in reasons)
        nodes["b"].execute(f"ROLLBACK PREPARED '{strange}'".encode())


def _in_the_way(running: Instance) -> str:
    state = running.state()
    return next(node.in_the_way for node in state.nodes if node.id == "b") if state else ""


def test_an_operator_cannot_decide_against_the_home(fleet: Fleet, nodes: dict[str, Connection]) -> None:
    with instance(fleet) as running:
        until(running.leads, 30, "an election")
        named = PreparedId("shop", "a", "b", transaction_id("s1"))
        nodes["a"].execute("CALL balancer.decide('s1')")
        answer = running.give("decide", transaction=named.transaction, home="a", commit=False, reason="a mistake")
        assert f"node a says that transaction {named.transaction} was committed" in answer


def test_nobody_decides_for_another_whose_id_he_sees(fleet: Fleet, nodes: dict[str, Connection]) -> None:
    """Ids of prepared transactions are public: a role that knows one must not be able to make it commit."""
    seen = transaction_id("a secret")
    nodes["a"].execute("DROP ROLE IF EXISTS stranger")
    nodes["a"].execute("CREATE ROLE stranger")
    try:
        with closing(psycopg.connect(fleet.dsns["a"], autocommit=True)) as connection:
            connection.execute("SET ROLE stranger")
            connection.execute("CALL balancer.decide(%s)", (seen,))
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("INSERT INTO balancer.decision (id, commits) VALUES (%s, true)", (seen,))
            with pytest.raises(psycopg.errors.SerializationFailure):
                connection.execute("CALL balancer.committed('a secret')")
    finally:
        nodes["a"].execute("DROP ROLE stranger")


def test_a_client_that_wakes_up_late_cannot_commit_its_half(
    fleet: Fleet, nodes: dict[str, Connection], postgres18: PostgresServer
) -> None:
    login = PoolSettings(connection={"password": postgres18.password()})
    with spread(fleet), Router.connect(fleet.url, login, samples=False) as router:
        (pair,) = ids_of(router, 1)
        insert = "INSERT INTO orders (id, note) VALUES (%s, 'late')"
        standing = Standing(router, "PREPARE TRANSACTION", pair, insert)
        until(lambda: not prepared(nodes), 30, "the leader to give it up")
        with pytest.raises(psycopg.errors.SerializationFailure, match="given it up"):
            standing.go_on()
        assert [count(nodes["a"], pair[0]), count(nodes["b"], pair[1])] == [0, 0]


def test_decisions_are_forgotten_when_they_are_old_and_no_part_is_left(
    fleet: Fleet, nodes: dict[str, Connection]
) -> None:
    with instance(fleet) as running:
        until(running.leads, 30, "an election")
        kept = PreparedId("shop", "gone", "b", transaction_id("kept"))
        nodes["b"].execute(f"BEGIN; CREATE TABLE left_over (); PREPARE TRANSACTION '{kept}'".encode())
        for secret in ("old", "kept", "young"):
            nodes["a"].execute("CALL balancer.decide(%s)", (secret,))
        nodes["a"].execute(
            "UPDATE balancer.decision SET at = at - interval '25 hours' WHERE id <> %s", (transaction_id("young"),)
        )
        housekeeping = running.daemon._housekeeping
        assert housekeeping is not None
        housekeeping._decisions_due = 0.0  # the hour is over
        running.daemon.run_soon(HOUSEKEEPING)
        wanted = {transaction_id("kept"), transaction_id("young")}
        until(lambda: decisions(nodes["a"]) == wanted, 30, "the old one to be forgotten")
        with suppress(psycopg.errors.UndefinedObject):
            nodes["b"].execute(f"ROLLBACK PREPARED '{kept}'".encode())
