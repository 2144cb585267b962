"""Standbys that lag are named; those that have replayed, logical receivers and WAL archivers are not."""

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.nodes.session.connection import Address, Connection
from balancer.nodes.tablets.leftovers import not_replayed, position
from tests.support.opening import connect
from tests.support.servers import postgres
from tests.support.standby import standby, wait_until


@pytest.fixture(scope="module", params=[15, 18], ids=["postgres15", "postgres18"])
def streaming(
    request: pytest.FixtureRequest, server_folder: Path
) -> Iterator[tuple[PostgresServer, PostgresServer, Path]]:
    """A primary, its standby and a folder of their own: nobody else's standbys are to be seen here."""
    folder = server_folder / f"standbys{request.param}"
    folder.mkdir()
    folder.chmod(0o755)
    with (
        postgres(folder / "primary", request.param) as primary,
        standby(primary, folder / "standby", request.param, "east's second") as second,
    ):
        yield primary, second, folder


@pytest.fixture
def primary(streaming: tuple[PostgresServer, PostgresServer, Path]) -> Iterator[Connection]:
    with connect(Address("a", streaming[0].dsn()), purpose="test") as link:
        link.execute("CREATE TABLE IF NOT EXISTS filled (n int)")
        yield link


@pytest.fixture
def second(streaming: tuple[PostgresServer, PostgresServer, Path]) -> Iterator[Connection]:
    with psycopg.connect(streaming[1].dsn(), autocommit=True) as link:
        yield link
        link.execute("SELECT pg_wal_replay_resume()")


def _now(link: Connection) -> str:
    with link.cursor() as cursor:
        return position(cursor)


def _pause(second: Connection) -> None:
    second.execute("SELECT pg_wal_replay_pause()")
    wait_until(lambda: second.execute("SELECT pg_get_wal_replay_pause_state()").fetchone() == ("paused",))


def test_a_standby_that_replays_is_soon_content(primary: Connection, second: Connection) -> None:
    primary.execute("INSERT INTO filled SELECT generate_series(1, 1000)")
    at = _now(primary)
    wait_until(lambda: not not_replayed(primary, at))


def test_a_paused_standby_is_named_with_its_lag(primary: Connection, second: Connection) -> None:
    wait_until(lambda: not not_replayed(primary, _now(primary)))
    _pause(second)
    before = _now(primary)
    primary.execute("INSERT INTO filled SELECT generate_series(1, 1000)")
    at = _now(primary)
    (found,) = not_replayed(primary, at)
    assert (found.name, found.address) == ("east's second", "127.0.0.1")
    assert (found.lag_bytes or 0) > 50_000
    assert str(found) == f'standby "east\'s second" at 127.0.0.1 is behind by {found.lag_bytes} bytes of WAL'
    assert not not_replayed(primary, before)
    second.execute("SELECT pg_wal_replay_resume()")
    wait_until(lambda: not not_replayed(primary, at))


def test_a_segment_that_has_only_begun_is_not_waited_for(primary: Connection, second: Connection) -> None:
    """After a switch of segments the insert position is past a bare header that nobody can replay."""
    primary.execute("INSERT INTO filled VALUES (1)")
    primary.execute("CHECKPOINT")  # an idle server writes nothing more by itself for a while
    primary.execute("SELECT pg_switch_wal()")
    at = _now(primary)
    assert at.endswith("000000"), "the position is the start of a segment"
    wait_until(lambda: not not_replayed(primary, at))


def test_logical_receivers_are_not_standbys(primary: Connection, streaming: tuple[PostgresServer, ...]) -> None:
    primary.execute("SELECT pg_create_logical_replication_slot('stream', 'pgoutput')")
    primary.execute("CREATE PUBLICATION everything FOR TABLE filled")
    with closing(connect(Address("a", streaming[0].dsn()), purpose="test", replication=True)) as receiver:
        start = "START_REPLICATION SLOT stream LOGICAL 0/0 (proto_version '1', publication_names 'everything')"
        receiver.pgconn.send_query(start.encode())
        primary.execute("INSERT INTO filled VALUES (1)")
        at = _now(primary)
        wait_until(lambda: primary.execute("SELECT count(*) FROM pg_stat_replication").fetchone() == (2,))
        wait_until(lambda: not not_replayed(primary, at))
    wait_until(lambda: primary.execute("SELECT count(*) FROM pg_stat_replication").fetchone() == (1,))
    primary.execute("DROP PUBLICATION everything")
    primary.execute("SELECT pg_drop_replication_slot('stream')")


def test_an_archive_of_wal_is_not_a_standby(primary: Connection, streaming: tuple[PostgresServer, ...]) -> None:
    server = streaming[0]
    folder = server.folder / "archive"
    folder.mkdir()
    argv = [str(server.program("pg_receivewal")), "-D", str(folder), "--status-interval=1", "-d", server.dsn()]
    receiver = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        answered = "SELECT count(*) FROM pg_stat_replication WHERE application_name = 'pg_receivewal'"
        wait_until(lambda: primary.execute(f"{answered} AND reply_time IS NOT NULL").fetchone() == (1,))
        primary.execute("INSERT INTO filled VALUES (1)")
        at = _now(primary)
        wait_until(lambda: not not_replayed(primary, at))
    finally:
        receiver.kill()
        receiver.wait()


def test_what_a_role_may_not_see_counts_as_behind(
    primary: Connection, streaming: tuple[PostgresServer, ...], second: Connection
) -> None:
    primary.execute("CREATE ROLE blind LOGIN PASSWORD 'blind'")
    dsn = psycopg.conninfo.make_conninfo(streaming[0].dsn(), user="blind", password="blind")
    with connect(Address("a", dsn), purpose="test") as link:
        (found,) = not_replayed(link, _now(link))
        assert found.lag_bytes is None
    primary.execute("DROP ROLE blind")
