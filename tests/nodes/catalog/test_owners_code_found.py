"""Each way by which a table of built-in types leads to its owner's code is followed: none makes it a plain one."""

from collections.abc import Callable
from uuid import uuid4

import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.naming import Name
from balancer.nodes.catalog.owners_code import owners_code
from balancer.nodes.session.connection import Address, connect
from tests.support.servers import Database

ORDER = "CREATE OPERATOR CLASS odd_order FOR TYPE int USING btree AS OPERATOR 1 <, FUNCTION 1 compare(int, int)"
HASH = "CREATE OPERATOR CLASS odd_hash FOR TYPE int USING hash AS OPERATOR 1 =, FUNCTION 2 hash(int, bigint)"
WAYS = {
    "check": "CREATE TABLE t (id int CHECK (spy(id) = 1))",
    "generated": "CREATE TABLE t (id int, n int GENERATED ALWAYS AS (spy(id)) STORED)",
    "index": "CREATE TABLE t (id int); CREATE INDEX ON t (spy(id))",
    "predicate": "CREATE TABLE t (id int); CREATE INDEX ON t (id) WHERE spy(id) = 1",
    "statistics": "CREATE TABLE t (id int); CREATE STATISTICS s ON (spy(id)) FROM t",
    "operator class": f"{ORDER}; CREATE TABLE t (id int); CREATE INDEX ON t (id odd_order)",
    "partition key's class": f"{HASH}; CREATE TABLE t (id int) PARTITION BY HASH (id odd_hash)",
    "partition key": "CREATE TABLE t (id int) PARTITION BY RANGE (spy(id))",
    "domain": "CREATE DOMAIN d AS int; ALTER DOMAIN d OWNER TO {owner}; CREATE TABLE t (id d)",
}
FUNCTIONS = """
    CREATE FUNCTION spy(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN 1; END';
    CREATE FUNCTION compare(int, int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT btint4cmp($1, $2)';
    CREATE FUNCTION hash(int, bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS 'SELECT 1::bigint';
    ALTER FUNCTION spy OWNER TO {owner};
    ALTER FUNCTION compare OWNER TO {owner};
    ALTER FUNCTION hash OWNER TO {owner};
"""


@pytest.mark.parametrize("way", WAYS)
def test_it_is_found(way: str, any_postgres: PostgresServer, database: Callable[[PostgresServer], Database]) -> None:
    made, owner = database(any_postgres), f"owner_{uuid4().hex[:8]}"
    with made.connect() as connection:
        connection.execute(f"CREATE ROLE {owner}".encode())
        try:
            connection.execute((FUNCTIONS + WAYS[way]).format(owner=owner).encode())
            with connect(Address("a", made.dsn), purpose="test") as asked, asked.cursor() as cursor:
                assert owners_code(cursor, [Name("public", "t")]) != []
        finally:
            connection.execute(f"DROP OWNED BY {owner} CASCADE; DROP ROLE {owner}".encode())


def test_a_plain_table_has_none(any_postgres: PostgresServer, database: Callable[[PostgresServer], Database]) -> None:
    made = database(any_postgres)
    with made.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, note text[], at timestamptz DEFAULT now())")
    with connect(Address("a", made.dsn), purpose="test") as asked, asked.cursor() as cursor:
        assert owners_code(cursor, [Name("public", "t"), Name("public", "absent")]) == []
