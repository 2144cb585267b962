"""The stream of a move, as the application's sessions notice it."""

from collections.abc import Callable

import psycopg
import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.naming import Name
from balancer.nodes.schema.install import install_schema
from balancer.nodes.session.connection import Address
from balancer.nodes.tablets.replication import create_publication, drop_publication, publication_exists
from tests.support.opening import connect
from tests.support.servers import Database


def test_a_publication_is_dropped_while_nobody_writes_to_its_tables(
    any_postgres: PostgresServer, database: Callable[[PostgresServer], Database]
) -> None:
    place = database(any_postgres)
    with connect(Address("a", place.dsn)) as ours, ours.cursor() as cursor, place.connect(autocommit=False) as writer:
        install_schema(ours, "test", "a")
        cursor.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
        create_publication(cursor, "m1", [Name("public", "orders")])
        writer.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(psycopg.errors.LockNotAvailable), ours.transaction():
            drop_publication(cursor, "m1")
        assert publication_exists(cursor, "m1")
        writer.commit()
        for _ in range(2):
            with ours.transaction():
                drop_publication(cursor, "m1")
        assert not publication_exists(cursor, "m1")
