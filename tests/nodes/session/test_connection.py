"""Connections: named, bounded in time, with their password found where it was said to be, and never shown."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from balancer.embedded.postgres import PostgresServer
from balancer.errors import Refused, Unavailable, UserError
from balancer.nodes.session.connection import (
    Address,
    Connection,
    Target,
    Timeouts,
    connect,
    deadline,
    printed,
    run_single,
    translated,
)
from balancer.nodes.session.holder import ConnectionHolder
from tests.support.backends import lose_while_busy, wait_until_gone
from tests.support.servers import Database
from tests.support.tcp_proxy import StallingProxy


def without_password(dsn: str) -> str:
    return dsn.replace(f":{urlsplit(dsn).password}@", "@")


def test_every_connection_is_named_and_bounded(connection: Connection) -> None:
    row = connection.execute(
        """SELECT current_setting('application_name'), current_setting('statement_timeout'),
                  current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout'),
                  current_setting('TimeZone'), current_setting('DateStyle')"""
    ).fetchone()
    assert row == ("tablet-balancer test", "30s", "2s", "1min", "UTC", "ISO, MDY")


def test_the_password_is_given_or_found_in_a_passfile(postgres18: PostgresServer, tmp_path: Path) -> None:
    dsn = without_password(postgres18.dsn())
    connect(Address("a", dsn, postgres18.password())).close()
    passfile = tmp_path / "pgpass"
    passfile.write_text(f"*:*:*:*:{postgres18.password()}\n")
    passfile.chmod(0o600)
    connect(Address("a", f"{dsn}?passfile={passfile}")).close()
    with pytest.raises(Unavailable, match=r"^node a does not let us in: password authentication failed for user"):
        connect(Address("a", dsn, "wrong"))


@pytest.mark.quick
def test_no_password_in_what_people_see() -> None:
    address = Address("a", "postgresql://u:hidden@h1,h2/db?x=hidden")
    with pytest.raises(UserError) as failure:
        connect(address)
    good = Address("a", "postgresql://u:hidden@h1,h2/db", "hidden")
    assert good.hosts() == "h1,h2/db"
    assert good.has_several_hosts()
    assert "hidden" not in f"{failure.value} {address!r} {address} {good!r} {good.hosts()}"


def test_an_unknown_user_or_a_dead_server_is_unavailable(postgres18: PostgresServer) -> None:
    with pytest.raises(Unavailable, match="node a does not let us in"):
        connect(Address("a", postgres18.dsn(user="nobody")))
    with pytest.raises(Unavailable, match="node a cannot be reached"):
        connect(Address("a", "postgresql://u@127.0.0.1:1/x"))


def test_a_server_that_accepts_and_never_answers_is_unavailable_in_time(postgres18: PostgresServer) -> None:
    parts = urlsplit(postgres18.dsn())
    with StallingProxy("127.0.0.1", parts.port or 0) as proxy:
        proxy.stall()
        started = time.monotonic()
        with pytest.raises(Unavailable):
            connect(Address("a", proxy.dsn(postgres18.dsn())), timeouts=Timeouts(connect=2))
        assert time.monotonic() - started < 10


def test_a_deadline_breaks_a_connection_whose_server_hangs(postgres18: PostgresServer) -> None:
    parts = urlsplit(postgres18.dsn())
    with (
        StallingProxy("127.0.0.1", parts.port or 0) as proxy,
        connect(Address("a", proxy.dsn(postgres18.dsn()))) as connection,
    ):
        with deadline(connection, 30):
            connection.execute("SELECT 1")
        proxy.stall()
        with pytest.raises(Unavailable), translated("a"), deadline(connection, 0.2):
            connection.execute("SELECT 1")
        assert connection.broken
    assert not [t for t in threading.enumerate() if isinstance(t, threading.Timer)]


def test_a_statement_ends_when_its_sender_is_gone(address: Address, connection: Connection) -> None:
    """Else it would keep its locks against the next leader."""
    lost = connect(address, timeouts=Timeouts(statement=60.0))
    wait_until_gone(connection, lose_while_busy(lost))
    lost.close()


def test_waiting_for_a_lock_ends(address: Address, connection: Connection) -> None:
    connection.execute("CREATE TABLE t ()")
    with connect(address, timeouts=Timeouts(lock=0.1, statement=0.4)) as other, connection.transaction():
        connection.execute("LOCK TABLE t")
        with pytest.raises(Unavailable, match="lock timeout"), translated("a"):
            other.execute("SELECT FROM public.t")
        with pytest.raises(Unavailable, match="statement timeout"), translated("a"):
            other.execute("SELECT pg_sleep(5)")


def test_a_missing_privilege_and_wrong_sql_are_refused(connection: Connection) -> None:
    with pytest.raises(Refused, match='relation "nothing" does not exist'), translated("a"):
        connection.execute("SELECT FROM nothing")
    connection.execute("SET ROLE pg_monitor")
    with (
        pytest.raises(Refused, match=r"denies us a right \(permission denied for .*\): see"),
        translated("a"),
    ):
        connection.execute("CREATE SCHEMA s")


def test_the_holder_keeps_a_connection_and_replaces_a_dead_one(address: Address) -> None:
    holder = ConnectionHolder("holder")
    try:
        with holder.borrow(address) as first:
            pid = first.info.backend_pid
        with holder.borrow(address) as again, connect(address) as other:
            assert again.info.backend_pid == pid
            with holder.borrow(address) as second:
                assert second.info.backend_pid != pid
                kept = second.info.backend_pid
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (kept,))
        with holder.borrow(address) as fresh:
            assert fresh.info.backend_pid not in (pid, kept)
    finally:
        holder.close()


def test_the_holder_does_not_keep_what_failed(address: Address) -> None:
    holder = ConnectionHolder("holder")
    with pytest.raises(Refused), holder.borrow(address) as connection:
        connection.execute("SELECT nonsense")
    assert connection.closed
    with holder.borrow(address) as kept:
        pass
    holder.forget("a")
    assert kept.closed
    holder.close()
    with holder.borrow(address) as late:
        pass
    assert late.closed


def test_a_read_only_server_is_not_taken_where_a_primary_is_wanted(
    any_postgres: PostgresServer, database: Callable[[PostgresServer], Database]
) -> None:
    address = Address("a", database(any_postgres).dsn)
    with connect(address) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
    with pytest.raises(Unavailable, match="read-only"):
        connect(address)
    with (
        connect(address, target=Target.ANY) as connection,
        pytest.raises(Unavailable, match="is read-only now"),
        translated("a"),
    ):
        connection.execute("CREATE TABLE t ()")


def test_text_of_a_catalog_cannot_bring_a_second_statement(connection: Connection) -> None:
    with connection.cursor() as cursor:
        run_single(cursor, sql.SQL("CREATE TABLE one (note text DEFAULT {})").format(printed("'%s {} ;'::text")))
        with pytest.raises(psycopg.errors.SyntaxError, match="multiple commands"):
            run_single(cursor, sql.SQL("CREATE TABLE two (n int {})").format(printed("); CREATE TABLE three (n int")))
        row = cursor.execute("SELECT to_regclass('one'), to_regclass('two'), to_regclass('three')").fetchone()
        assert row == ("one", None, None)
