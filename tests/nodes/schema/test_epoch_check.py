"""A node refuses a leader older than one it has seen, in transactions and in commands outside of them."""

import re
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from balancer.errors import Fenced, OutcomeUnknown, Refused, Unavailable
from balancer.nodes.schema.install import install_schema, read_identity
from balancer.nodes.schema.leader_transaction import node_command, node_transaction
from balancer.nodes.schema.texts import LEADER_LOCK
from balancer.nodes.session.connection import Address, Connection, Timeouts, last_rows
from tests.support.opening import connect


@pytest.fixture
def node(connection: Connection) -> Connection:
    install_schema(connection, "shop", "a")
    return connection


@pytest.fixture
def other(address: Address) -> Iterator[Connection]:
    with connect(address, timeouts=Timeouts(lock=0.2)) as opened:
        yield opened


def seen(connection: Connection) -> int:
    with connection.cursor() as cursor:
        identity = read_identity(cursor)
    assert identity is not None
    return identity.leader_epoch


def test_a_newer_leader_raises_the_epoch_and_the_older_one_is_fenced(node: Connection) -> None:
    with node_transaction(node, 5):
        pass
    assert seen(node) == 5
    with pytest.raises(Fenced, match="epoch 5; this one has 4"), node_transaction(node, 4):
        pytest.fail("an old leader must not get here")
    with pytest.raises(Fenced), node_command(node, 4):
        pytest.fail("an old leader must not get here")


def test_a_failed_transaction_leaves_nothing_not_even_the_epoch(node: Connection) -> None:
    with pytest.raises(Refused, match="division by zero"), node_transaction(node, 5) as cursor:
        cursor.execute("CREATE TABLE left_over (); SELECT 1 / 0")
    assert seen(node) == 0
    assert node.execute("SELECT to_regclass('left_over')").fetchone() == (None,)


def test_two_transactions_of_one_leader_do_not_wait_for_each_other(node: Connection, other: Connection) -> None:
    with node_transaction(node, 5):
        pass
    with node_transaction(node, 5), node_transaction(other, 5) as second:
        assert second.execute("SELECT leader_epoch FROM balancer.node").fetchone() == (5,)


def test_a_new_leader_waits_for_the_old_ones_transaction(node: Connection, other: Connection) -> None:
    with node_transaction(node, 5):
        pass
    with node_transaction(node, 5), pytest.raises(Unavailable), node_transaction(other, 6):
        pytest.fail("the old leader's transaction is still open")
    with node_transaction(other, 6):
        pass
    with pytest.raises(Fenced), node_transaction(node, 5):
        pytest.fail("an old leader must not get here")


def test_a_new_leader_waits_for_the_old_ones_command(node: Connection, other: Connection) -> None:
    with node_command(node, 5) as outside:
        outside.execute("VACUUM balancer.tablet")
        with node_command(other, 5):
            pass
        with pytest.raises(Unavailable), node_transaction(other, 6):
            pytest.fail("the old leader's command is still running")
    with node_transaction(other, 6):
        pass


def test_a_command_that_fails_releases_its_lock(node: Connection, other: Connection) -> None:
    with pytest.raises(Refused), node_command(node, 5) as outside:
        outside.execute("SELECT nonsense")
    with node_transaction(other, 6):
        pass


def test_what_travels_with_the_check_is_rolled_back_if_it_fails(node: Connection) -> None:
    make = sql.SQL("CREATE TABLE made AS SELECT 7 AS n")
    with node_transaction(node, 5):
        pass
    with pytest.raises(Fenced), node_transaction(node, 4, together=[make]):
        pytest.fail("a former leader must not get here")
    assert node.execute("SELECT to_regclass('made')").fetchone() == (None,)
    with node_transaction(node, 5, durable=True, together=[make, sql.SQL("SELECT n FROM made")]) as cursor:
        assert last_rows(cursor) == [(7,)]
    assert node.execute("SELECT n FROM made").fetchone() == (7,)


def test_a_wrong_database_is_refused(node: Connection) -> None:
    with pytest.raises(Refused, match="this database is node a, not node b"), node_transaction(node, 5, "b"):
        pytest.fail("another node must not be touched")


def test_a_connection_lost_during_commit_is_an_unknown_outcome(node: Connection, other: Connection) -> None:
    node.execute("CREATE TABLE once (n int)")
    node.execute(
        """
        CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER hang AFTER INSERT ON once DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION hang();
        """
    )
    with pytest.raises(OutcomeUnknown), node_transaction(node, 5) as cursor:
        cursor.execute("INSERT INTO once VALUES (1)")
    assert other.execute("SELECT count(*) FROM once").fetchone() == (0,)


def test_a_connection_lost_earlier_is_only_unavailable(node: Connection) -> None:
    with pytest.raises(Unavailable), node_transaction(node, 5) as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@pytest.mark.parametrize("way", ["a transaction", "a command"])
def test_who_holds_the_leaders_lock_is_named(node: Connection, other: Connection, address: Address, way: str) -> None:
    """A role that can connect may hold it: its number is public."""
    with psycopg.connect(address.dsn, autocommit=True, application_name="sitting \x1b[31m there") as holder:
        holder.execute("SELECT pg_advisory_lock(%s, 0)", (LEADER_LOCK,))
        entering = node_transaction(other, 9) if way == "a transaction" else node_command(other, 9)
        with pytest.raises(Unavailable) as refused, entering:
            pytest.fail("the lock is held")
        named = rf"session {holder.info.backend_pid} \(sitting .*there of role \w+ from (127\.0\.0\.1|this server)"
        assert re.search(named, str(refused.value)), refused.value
        assert "\x1b" not in str(refused.value)
    with node_transaction(other, 9):
        pass


def test_a_lock_of_another_kind_names_nobody(node: Connection, other: Connection) -> None:
    node.execute("CREATE TABLE busy ()")
    with node.transaction():
        node.execute("LOCK TABLE busy")
        node.execute("SELECT pg_advisory_xact_lock(1, 0), pg_advisory_xact_lock(%s, 1)", (LEADER_LOCK,))
        with pytest.raises(Unavailable) as refused, node_transaction(other, 9) as cursor:
            cursor.execute("LOCK TABLE busy")
    assert "session" not in str(refused.value)
