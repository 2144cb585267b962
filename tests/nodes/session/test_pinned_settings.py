"""What a database's owner sets for a database or a role does not change the meaning of our statements."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from balancer.embedded.postgres import PostgresServer
from balancer.naming import Name
from balancer.nodes.catalog.preflight import Needs, preflight
from balancer.nodes.session.connection import Address, connect
from balancer.polling.node_poll import poll_node
from tests.support.servers import Database, new_database

HOSTILE = {
    "search_path": "mallory, pg_catalog, public",
    "role": "mallory",
    "row_security": "on",
    "default_transaction_isolation": "serializable",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "gin_fuzzy_search_limit": "1",
    "client_encoding": "LATIN1",
    "standard_conforming_strings": "off",
    "xmloption": "document",
    "lc_monetary": "C.UTF-8",
    "default_tablespace": "elsewhere",
}
SAFE = {
    "search_path": "pg_catalog,pg_temp",
    "role": "none",
    "row_security": "off",
    "default_transaction_isolation": "read committed",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",
    "gin_fuzzy_search_limit": "0",
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "xmloption": "content",
    "lc_monetary": "C",
    "default_tablespace": "",
}


@pytest.fixture
def hostile(any_postgres: PostgresServer) -> Iterator[Database]:
    """A database whose owner has set what an owner can set, with functions named as PostgreSQL's own in front."""
    with new_database(any_postgres) as made, psycopg.connect(any_postgres.dsn(), autocommit=True) as superuser:
        superuser.execute("CREATE ROLE mallory")
        superuser.execute(sql.SQL("ALTER DATABASE {} OWNER TO mallory").format(sql.Identifier(made.name)))
        with made.connect() as owner:
            owner.execute("SET ROLE mallory")
            owner.execute("CREATE SCHEMA mallory")
            owner.execute("CREATE TABLE mallory.seen (who name)")
            owner.execute("GRANT INSERT ON mallory.seen TO PUBLIC")
            owner.execute(
                "CREATE FUNCTION mallory.current_setting(text) RETURNS text LANGUAGE sql AS"
                " $$INSERT INTO mallory.seen VALUES (current_user); SELECT pg_catalog.current_setting($1)$$"
            )
        for name, value in HOSTILE.items():
            superuser.execute(
                sql.SQL("ALTER DATABASE {} SET {} TO {}").format(
                    sql.Identifier(made.name),
                    sql.SQL(name),
                    sql.SQL(value) if name == "search_path" else sql.Literal(value),
                )
            )
        yield made
        superuser.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(sql.Identifier(made.name)))
        with made.connect() as owner:
            owner.execute("DROP OWNED BY mallory CASCADE")
        superuser.execute(sql.SQL("ALTER DATABASE {} OWNER TO CURRENT_USER").format(sql.Identifier(made.name)))
        superuser.execute("DROP ROLE mallory")


def test_what_a_database_sets_does_not_reach_our_connections(hostile: Database) -> None:
    with connect(Address("a", hostile.dsn)) as connection:
        found = {name: connection.execute("SELECT pg_catalog.current_setting(%s)", (name,)).fetchone() for name in SAFE}
    assert found == {name: (value,) for name, value in SAFE.items()}


def test_a_library_that_a_database_wants_loaded_is_not(hostile: Database) -> None:
    with hostile.connect() as connection:
        connection.execute(f'ALTER DATABASE "{hostile.name}" SET local_preload_libraries TO no_such_library'.encode())
    with pytest.raises(psycopg.OperationalError, match="no_such_library"):
        hostile.connect()
    connect(Address("a", hostile.dsn)).close()


def test_functions_in_front_of_the_catalogs_are_not_called(hostile: Database) -> None:
    with connect(Address("a", hostile.dsn)) as connection:
        preflight(connection, Needs())
        poll_node(connection, [Name("public", "orders")])
        assert connection.execute("SELECT who FROM mallory.seen").fetchall() == []
