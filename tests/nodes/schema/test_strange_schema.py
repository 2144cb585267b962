"""A schema `balancer` that somebody else made is refused in one sentence, and nothing in it runs with our rights."""

from collections.abc import Iterator
from urllib.parse import quote

import psycopg
import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.errors import Refused
from balancer.nodes.schema.install import install_schema, read_identity
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session import own_schema
from balancer.nodes.session.connection import Address, connect
from balancer.polling.node_poll import poll_node
from tests.support.servers import Database, new_database

REFUSAL = (
    r"^node a refuses: schema balancer belongs to mallory, not to tablet-balancer's role \w+: drop it or rename it$"
)


@pytest.fixture
def database(any_postgres: PostgresServer) -> Iterator[Database]:
    """With a role that may make schemas in it and nothing else."""
    with new_database(any_postgres) as made, made.connect() as superuser:
        superuser.execute("CREATE ROLE mallory")
        superuser.execute(f'GRANT CREATE ON DATABASE "{made.name}" TO mallory')
        superuser.execute("CREATE TABLE public.seen (who name)")
        superuser.execute("GRANT INSERT ON public.seen TO PUBLIC")
        yield made
        superuser.execute("DROP OWNED BY mallory CASCADE")
        superuser.execute("DROP ROLE mallory")


def attack(database: Database, grant: str = "GRANT USAGE ON SCHEMA balancer TO PUBLIC;") -> None:
    """What a role with CREATE on the database can do before we come."""
    with database.connect() as connection:
        connection.execute("SET ROLE mallory")
        connection.execute(f"CREATE SCHEMA balancer; {grant}".encode())
        connection.execute(
            """
            CREATE FUNCTION balancer.spy() RETURNS bigint LANGUAGE plpgsql AS
                $$BEGIN INSERT INTO public.seen VALUES (current_user); RETURN 1; END$$;
            CREATE FUNCTION balancer.enter(bigint, text) RETURNS bigint LANGUAGE plpgsql AS
                $$BEGIN INSERT INTO public.seen VALUES (current_user); RETURN $1; END$$;
            CREATE VIEW balancer.node WITH (security_invoker = true) AS SELECT 'c'::text AS cluster, 'a'::text AS node,
                balancer.spy() AS leader_epoch, 1 AS schema_version;
            CREATE VIEW balancer.marker AS SELECT 'the mark'::text AS migration, 1::bigint AS number;
            CREATE VIEW balancer.tablet AS SELECT 1::bigint AS id, 1::bigint AS epoch, 'owned'::text AS state,
                NULL::text AS moved_to, NULL::text AS migration;
            """
        )


def seen(database: Database) -> list[tuple[object, ...]]:
    with database.connect() as connection:
        return connection.execute("SELECT who FROM public.seen").fetchall()


def test_no_connection_is_opened_to_a_node_with_it(database: Database) -> None:
    attack(database)
    with pytest.raises(Refused, match=REFUSAL):
        connect(Address("a", database.dsn))
    assert seen(database) == []


@pytest.mark.parametrize("grant", ["GRANT USAGE ON SCHEMA balancer TO PUBLIC;", ""], ids=["granted", "bare"])
def test_a_connection_that_was_open_before_refuses_too(database: Database, grant: str) -> None:
    with connect(Address("a", database.dsn)) as connection:
        attack(database, grant)
        with pytest.raises(psycopg.Error, match="schema balancer belongs to mallory"):
            poll_node(connection, [])
        with pytest.raises(Refused, match="schema balancer belongs to mallory"), node_transaction(connection, 1, "a"):
            pass
        with pytest.raises(psycopg.Error, match="schema balancer belongs to mallory"):
            install_schema(connection, "c", "a")
        with connection.cursor() as cursor, pytest.raises(psycopg.Error, match="schema balancer belongs to mallory"):
            read_identity(cursor)
    assert seen(database) == []


def test_what_was_prepared_may_be_forgotten(database: Database) -> None:
    """psycopg has a server forget all prepared statements after a rollback, if it has prepared some itself."""
    with connect(Address("a", database.dsn)) as connection:
        install_schema(connection, "c", "a")
        connection.execute("DEALLOCATE ALL")
        with node_transaction(connection, 1, "a") as cursor:
            assert cursor.execute("SELECT 7").fetchone() == (7,)
        connection.execute("DEALLOCATE ALL")
        connection.execute("GRANT CREATE ON SCHEMA balancer TO PUBLIC")
        with pytest.raises(Refused, match="lets PUBLIC make things in it"), node_transaction(connection, 1, "a"):
            pass


def test_an_empty_schema_of_somebody_else_is_not_moved_into(database: Database) -> None:
    with connect(Address("a", database.dsn)) as connection:
        with database.connect() as other:
            other.execute("SET ROLE mallory")
            other.execute("CREATE SCHEMA balancer")
        with pytest.raises(psycopg.Error, match="schema balancer belongs to mallory"):
            install_schema(connection, "c", "a")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("ALTER TABLE balancer.tablet OWNER TO mallory", "balancer.tablet belongs to mallory"),
        ("ALTER FUNCTION balancer.enter(bigint, text) OWNER TO mallory", "balancer.enter belongs to mallory"),
        (
            "ALTER TABLE balancer.node RENAME TO gone; CREATE VIEW balancer.node AS SELECT * FROM balancer.gone",
            "balancer.node is not the ordinary table that tablet-balancer made",
        ),
        (
            "CREATE RULE other AS ON INSERT TO balancer.marker DO ALSO SELECT 1",
            "balancer.marker is not the ordinary table that tablet-balancer made",
        ),
        (
            "ALTER TABLE balancer.tablet ENABLE ROW LEVEL SECURITY",
            "balancer.tablet is not the ordinary table that tablet-balancer made",
        ),
        (
            "CREATE TABLE public.child () INHERITS (balancer.tablet)",
            "balancer.tablet is not the ordinary table that tablet-balancer made",
        ),
        (
            "CREATE TABLE public.parent (LIKE balancer.marker); ALTER TABLE balancer.marker INHERIT public.parent",
            "balancer.marker is not the ordinary table that tablet-balancer made",
        ),
        ("GRANT CREATE ON SCHEMA balancer TO mallory", "schema balancer lets mallory make things in it"),
    ],
    ids=["table's owner", "function's owner", "view", "rule", "row security", "parent", "child", "create"],
)
def test_parts_that_are_not_as_we_made_them_are_refused(database: Database, change: str, words: str) -> None:
    with connect(Address("a", database.dsn)) as connection:
        install_schema(connection, "c", "a")
        poll_node(connection, [])
    with database.connect() as superuser:
        superuser.execute(change.encode())
    with pytest.raises(Refused, match=words):
        connect(Address("a", database.dsn))


def test_a_schema_that_a_superuser_made_serves_the_role_that_came_later(database: Database) -> None:
    with connect(Address("a", database.dsn)) as connection:
        install_schema(connection, "c", "a")
    with database.connect() as superuser:
        superuser.execute("ALTER ROLE mallory LOGIN PASSWORD 'later'")
    with connect(Address("a", database.server.dsn(database.name, user="mallory"), "later")) as connection:
        assert connection.execute("SELECT node FROM balancer.node").fetchone() == ("a",)


def test_a_role_with_an_odd_name_is_known_as_the_owner(database: Database) -> None:
    """What is asked first is enough for it, on every connection."""
    role = '"Odd ""Role"'
    with database.connect() as superuser:
        superuser.execute(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD 'odd'".encode())
    try:
        with connect(Address("a", database.server.dsn(database.name, user=quote('Odd "Role')), "odd")) as connection:
            install_schema(connection, "c", "a")
            assert connection.execute(own_schema.SURELY).fetchone() == (True, True)
    finally:
        with database.connect() as superuser:
            superuser.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())
