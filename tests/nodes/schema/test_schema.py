"""Our schema on a node: installed once, never on another node's database, readable by applications."""

from datetime import UTC, datetime

import psycopg
import pytest

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.schema.install import (
    STEPS,
    NodeIdentity,
    OwnedTablet,
    OwnState,
    forget_tablets,
    install_schema,
    read_identity,
    read_tablets,
    write_tablets,
)
from balancer.nodes.session.connection import Connection


def test_installing_twice_changes_nothing(connection: Connection) -> None:
    with connection.cursor() as cursor:
        assert read_identity(cursor) is None
        assert install_schema(connection, "shop", "a") == len(STEPS)
        install_schema(connection, "shop", "a")
        assert read_identity(cursor) == NodeIdentity("shop", "a", 0, len(STEPS))


def test_a_database_of_another_node_is_refused(connection: Connection) -> None:
    install_schema(connection, "shop", "a")
    with pytest.raises(Refused, match="this database is node a of cluster shop"):
        install_schema(connection, "shop", "b")


def test_a_newer_schema_is_refused(connection: Connection) -> None:
    install_schema(connection, "shop", "a")
    connection.execute("UPDATE balancer.node SET schema_version = 99")
    with pytest.raises(Refused, match="has version 99"):
        install_schema(connection, "shop", "a")


def test_tablets_are_read_back_as_written(connection: Connection) -> None:
    install_schema(connection, "shop", "a")
    owned = OwnedTablet(1, 3, OwnState.OWNED, (Name("public", "orders_t1"), Name("Odd", "it's")))
    moved = OwnedTablet(2, 4, OwnState.MOVED, (Name("public", "x"),), "m1", datetime(2030, 1, 1, tzinfo=UTC), "b")
    with connection.cursor() as cursor:
        write_tablets(cursor, [owned, moved])
        assert read_tablets(cursor) == [owned, moved]
        write_tablets(cursor, [OwnedTablet(2, 5, OwnState.OWNED, ())])
        forget_tablets(cursor, [1])
        assert read_tablets(cursor) == [OwnedTablet(2, 5, OwnState.OWNED, ())]


def test_a_proof_that_comes_after_the_reading_is_taken_away_from_older_nodes(connection: Connection) -> None:
    install_schema(connection, "shop", "a")
    connection.execute("CREATE FUNCTION balancer.prove(bigint, bigint) RETURNS void LANGUAGE sql AS ''")
    connection.execute("ALTER TABLE balancer.tablet DROP COLUMN until")
    connection.execute("DROP INDEX balancer.tablet_partitions_idx")
    connection.execute("DROP PROCEDURE balancer.hold")
    for function in ("hold_slowly", "fenced_now", "tablets_of"):
        connection.execute(f"DROP FUNCTION balancer.{function}".encode())
    connection.execute("UPDATE balancer.node SET schema_version = 3")
    assert install_schema(connection, "shop", "a") == len(STEPS)
    found = connection.execute("SELECT to_regprocedure('balancer.prove(bigint, bigint)')").fetchone()
    assert found == (None,)


def test_an_application_may_ask_but_not_write(connection: Connection) -> None:
    install_schema(connection, "shop", "a")
    connection.execute("DROP ROLE IF EXISTS plain_application")
    connection.execute("CREATE ROLE plain_application")
    try:
        connection.execute("SET ROLE plain_application")
        with pytest.raises(psycopg.Error, match="is not here"):
            connection.execute("CALL balancer.hold(1, 3, true)")
        for statement in ("DELETE FROM balancer.tablet", "SELECT balancer.enter(9, '')"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
    finally:
        connection.execute("RESET ROLE")
        connection.execute("DROP ROLE plain_application")
