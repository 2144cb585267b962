"""The preflight names what is missing and what mends it; a role made by the script passes it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from balancer.embedded.postgres import PostgresServer, system_binaries
from balancer.features.forwarding.statements import check_login
from balancer.naming import Name, parse_name
from balancer.nodes.catalog import preflight as preflight_module
from balancer.nodes.catalog.preflight import Needs, Severity, Shortfall, TableNeeds, grant_script, preflight
from balancer.nodes.schema.blockers import Blocker, terminate
from balancer.nodes.schema.install import install_schema
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.connection import Address, Connection, keep_out_of_logs
from balancer.polling.node_poll import poll_node
from tests.support.opening import connect
from tests.support.servers import Database

ROOTS = (Name("public", "orders"), Name("shop", "Items"))
NEEDS = Needs((TableNeeds(ROOTS, ("id",)),))


@pytest.fixture
def tables(connection: Connection) -> Connection:
    connection.execute(
        """
        CREATE TABLE orders (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE orders_p PARTITION OF orders FOR VALUES FROM (MINVALUE) TO (MAXVALUE);
        CREATE SCHEMA shop;
        CREATE TABLE shop."Items" (id int) PARTITION BY RANGE (id);
        """
    )
    return connection


@contextmanager
def role(connection: Connection, attributes: str = "LOGIN") -> Iterator[str]:
    """A role of its own, gone afterwards with everything that it owns here."""
    name = f"balancer_{uuid4().hex[:8]}"
    connection.execute(f"CREATE ROLE {name} {attributes} PASSWORD 'secret'")
    try:
        yield name
    finally:
        connection.execute(f"REASSIGN OWNED BY {name} TO postgres")
        connection.execute(f"DROP OWNED BY {name}")
        connection.execute(f"DROP ROLE {name}")


def as_role(address: Address, name: str) -> Connection:
    hosts = address.dsn.split("@", 1)[1]
    return connect(Address("a", f"postgresql://{name}@{hosts}", "secret"))


def levels(findings: list[Shortfall]) -> dict[str, Severity]:
    return {finding.subject: finding.level for finding in findings}


def test_a_superuser_on_our_test_server_lacks_only_a_key(tables: Connection) -> None:
    assert levels(preflight(tables, NEEDS)) == {'shop."Items"': Severity.LIMIT}


def test_a_bare_role_is_told_each_missing_privilege_and_the_statement(tables: Connection, address: Address) -> None:
    with role(tables) as name, as_role(address, name) as mine:
        found = preflight(mine, NEEDS)
        known = tables.info.server_version >= 160000
        assert levels(found)["CREATE"] is Severity.ERROR
        assert levels(found)["pg_monitor"] is Severity.ERROR
        assert levels(found)["REPLICATION"] is Severity.LIMIT
        assert levels(found)["pg_create_subscription" if known else "subscriptions"] is Severity.LIMIT
        assert levels(found)["public.orders"] is Severity.ERROR
        assert [f.level for f in found] == sorted((f.level for f in found), key=list(Severity).index)
        # Each statement is one that PostgreSQL takes, and together they mend everything but the key.
        for finding in found:
            if "PRIMARY KEY" not in finding.remedy:
                tables.execute(sql.SQL(finding.remedy))
        tables.execute(f"ALTER ROLE {name} NOSUPERUSER")
        assert set(levels(preflight(mine, NEEDS))) <= {'shop."Items"', "subscriptions"}


@pytest.mark.parametrize("told", ["by the file", "by the node"])
def test_messages_need_the_roles_that_send(tables: Connection, address: Address, told: str) -> None:
    """Also one that has its rights as a member of another; not one that may only read, nor one that cannot log in."""
    needs = replace(NEEDS, tables=(TableNeeds(ROOTS, ("id",), "orders", told == "by the file"),))
    with role(tables) as name, role(tables, "NOLOGIN") as writers, role(tables) as reader, role(tables) as plain:
        odd = f'"{plain} ""odd"'
        tables.execute(f"CREATE ROLE {odd} LOGIN IN ROLE {writers}")
        try:
            tables.execute(f"GRANT INSERT ON orders TO {writers}")
            tables.execute(f"GRANT SELECT ON orders TO {reader}")
            install_schema(tables, "shop", "a")
            with as_role(address, name) as mine:
                if told == "by the node":
                    assert "messages" not in levels(preflight(mine, needs))
                    row = "('orders', '', '', 'public', '', '', '')"
                    tables.execute(f"INSERT INTO balancer.message_table VALUES {row}".encode())
                (found,) = [one for one in preflight(mine, needs) if one.subject == "messages"]
                assert (found.level, found.remedy) == (Severity.WARNING, f'GRANT {odd} TO "{name}"')
                assert "table orders" in found.text
                tables.execute(sql.SQL(found.remedy))
                assert "messages" not in levels(preflight(mine, needs))
                if tables.info.server_version >= 160000:
                    tables.execute(f"GRANT {odd} TO {name} WITH SET FALSE".encode())
                    assert "messages" in levels(preflight(mine, needs)), "a member that may not act as it"
        finally:
            tables.execute(f"DROP ROLE {odd}".encode())


@pytest.mark.parametrize("owner", ["postgres", "application"])
def test_a_role_made_by_the_script_passes(tables: Connection, address: Address, owner: str) -> None:
    with role(tables) as name, role(tables, "NOLOGIN") as application:
        tables.execute('ALTER TABLE shop."Items" ADD PRIMARY KEY (id)')
        if owner == "application":
            tables.execute(f"GRANT CREATE ON SCHEMA public, shop TO {application}")
            for table in ("orders", "orders_p", 'shop."Items"'):
                tables.execute(f"ALTER TABLE {table} OWNER TO {application}")
        for _ in range(2):
            tables.execute(grant_script(name, ROOTS).encode())
        with as_role(address, name) as mine:
            found = preflight(mine, NEEDS)
            assert set(levels(found)) == (set() if tables.info.server_version >= 160000 else {"subscriptions"})
            install_schema(mine, "shop", "a")
            with node_transaction(mine, 1, "a") as cursor:
                cursor.execute("ALTER TABLE orders DETACH PARTITION orders_p")
            assert poll_node(mine, ROOTS).identity is not None
            if owner == "application":
                assert tables.execute(
                    "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE relname = 'orders'"
                ).fetchone() == (application,)


def test_tables_that_are_not_here_yet_may_be_made_after_the_script(tables: Connection, address: Address) -> None:
    needs = Needs((TableNeeds((parse_name("shop.missing"),), ("id",), "missing"),))
    with role(tables) as name, role(tables, "NOLOGIN") as application:
        make = f"CREATE TABLE shop.missing (id int); ALTER TABLE shop.missing OWNER TO {application}"
        tables.execute(f"GRANT CREATE ON SCHEMA shop TO {application}")
        with as_role(address, name) as mine:
            (found,) = [one for one in preflight(mine, needs) if one.subject == "shop.missing"]
            assert (found.level, found.remedy) == (
                Severity.WARNING,
                f'GRANT USAGE, CREATE ON SCHEMA "shop" TO "{name}"',
            )
        tables.execute(grant_script(name, needs.roots, owners=[application]).encode())
        with as_role(address, name) as mine:
            assert [one for one in preflight(mine, needs) if one.subject == "shop.missing"] == []
            mine.execute(make.encode())
            mine.execute("DROP TABLE shop.missing")
        with pytest.raises(psycopg.errors.RaiseException, match="is a superuser"):
            tables.execute(grant_script(name, needs.roots, owners=["postgres"]).encode())


@pytest.mark.quick
def test_the_script_quotes_what_it_is_given() -> None:
    script = grant_script("it's", [parse_name('"a\'b"."c"')], owners=["o'h"])
    assert "'it''s'" in script
    assert "a''b" in script
    assert "o''h" in script


def test_too_few_slots_senders_and_workers_are_named(
    postgres15: PostgresServer, database: Callable[[PostgresServer], Database]
) -> None:
    with connect(Address("a", database(postgres15).dsn)) as connection:
        found = preflight(connection, Needs(moves=1000))
    by_subject = {finding.subject: finding for finding in found}
    assert set(by_subject) == {
        "max_replication_slots",
        "max_wal_senders",
        "max_logical_replication_workers",
        "max_worker_processes",
    }
    assert by_subject["max_wal_senders"].remedy == "ALTER SYSTEM SET max_wal_senders = 1000"
    assert by_subject["max_worker_processes"].remedy == "ALTER SYSTEM SET max_worker_processes = 1001"


def test_a_server_as_it_comes_is_told_to_stream_and_to_limit_its_slots(server_folder: Path) -> None:
    settings = {"wal_level": "replica", "max_slot_wal_keep_size": -1}
    with (
        PostgresServer(server_folder / "plain", system_binaries(15), settings) as server,
        connect(Address("a", server.dsn())) as connection,
    ):
        found = preflight(connection, Needs())
    assert [(finding.level, finding.remedy) for finding in found] == [
        (Severity.LIMIT, "ALTER SYSTEM SET wal_level = 'logical'"),
        (Severity.WARNING, "ALTER SYSTEM SET wal_retrieve_retry_interval = '200ms'"),
        (Severity.WARNING, "ALTER SYSTEM SET max_slot_wal_keep_size = '16GB'"),
    ]


def test_a_database_in_another_encoding_is_refused(postgres18: PostgresServer) -> None:
    with connect(Address("a", postgres18.dsn())) as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        try:
            with connect(Address("a", postgres18.dsn("latin"))) as other:
                found = preflight(other, Needs())
        finally:
            connection.execute("DROP DATABASE latin")
    assert [(finding.subject, finding.level) for finding in found] == [("encoding", Severity.ERROR)]


def test_code_of_a_tables_owner_is_named_unless_owners_are_trusted(tables: Connection) -> None:
    with role(tables) as name:
        tables.execute("CREATE FUNCTION public.mine(int) RETURNS bool LANGUAGE sql IMMUTABLE RETURN $1 > 0")
        tables.execute(f"ALTER FUNCTION public.mine(int) OWNER TO {name}")
        tables.execute("ALTER TABLE orders ADD CHECK (public.mine(id))")
        (found,) = (one for one in preflight(tables, NEEDS) if one.level is Severity.ERROR)
        assert "public.orders uses function mine(integer), which would run with the balancer's rights" in found.text
        trusting = Needs(NEEDS.tables, trusts_owners=True)
        assert all(one.level is not Severity.ERROR for one in preflight(tables, trusting))


def test_the_script_makes_a_login_for_other_nodes_that_may_do_nothing(tables: Connection, address: Address) -> None:
    with role(tables) as name, role(tables, "NOLOGIN") as unused:
        tables.execute(f"DROP ROLE {unused}")
        tables.execute(grant_script(name, ROOTS, unused).encode())
        found = tables.execute(
            "SELECT rolcanlogin, rolsuper, rolreplication, rolcreaterole FROM pg_roles WHERE rolname = %s",
            (unused,),
        ).fetchall()
        assert found == [(True, False, False, False)]
        with tables.transaction(), tables.cursor() as cursor:
            check_login(cursor, Address("a", address.dsn, forward_user=unused))


def test_a_role_made_by_the_script_may_keep_passwords_out_of_the_log(tables: Connection, address: Address) -> None:
    with role(tables) as name:
        tables.execute(grant_script(name, ROOTS).encode())
        with as_role(address, name) as mine, mine.transaction(), mine.cursor() as cursor:
            keep_out_of_logs(cursor)
            for setting, value in (("log_statement", "none"), ("track_activities", "off")):
                assert cursor.execute("SELECT current_setting(%s)", (setting,)).fetchone() == (value,)


def test_a_role_made_by_the_script_may_end_the_sessions_that_starve_it(tables: Connection, address: Address) -> None:
    with role(tables) as name, role(tables) as starving:
        with as_role(address, name) as mine, as_role(address, starving) as holder:
            blocker = Blocker(holder.info.backend_pid, 9.0, "starving")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                terminate(mine, blocker)
        tables.execute(grant_script(name, ROOTS).encode())
        with as_role(address, name) as mine, as_role(address, starving) as holder:
            terminate(mine, Blocker(holder.info.backend_pid, 9.0, "starving"))
            with pytest.raises(psycopg.OperationalError):
                holder.execute("SELECT pg_sleep(10)")


def test_a_server_without_prepared_transactions_is_named(postgres18: PostgresServer) -> None:
    """As a server with PostgreSQL's own default would say it; ours are started with some."""
    with connect(Address("n", postgres18.dsn())) as connection, connection.cursor() as cursor:
        facts = preflight_module._read_facts(cursor)
    subjects = [found.subject for found in preflight_module._settings(facts, Needs())]
    assert "max_prepared_transactions" not in subjects
    found = next(iter(preflight_module._settings(replace(facts, prepared=0), Needs())))
    assert found.subject == "max_prepared_transactions"
    assert "router.atomic" in found.text
    assert found.remedy == "ALTER SYSTEM SET max_prepared_transactions = 100"
