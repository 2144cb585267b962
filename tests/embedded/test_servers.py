"""The embedded servers: real, unprivileged, stopped for sure."""

import os
import signal
import subprocess
import textwrap
from pathlib import Path

import psycopg
import pytest

from balancer.embedded import process
from balancer.embedded.postgres import PostgresServer, embedded_binaries, system_binaries
from balancer.embedded.reaper import Keeper
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.errors import UserError
from tests.support.commands import started
from tests.support.servers import postgres
from tests.support.zookeeper_ensemble import ZooKeeperEnsemble


def test_a_node_is_ready_for_logical_replication(any_postgres: PostgresServer) -> None:
    with psycopg.connect(any_postgres.dsn()) as connection:
        row = connection.execute("SELECT current_setting('wal_level'), current_setting('max_replication_slots')")
        assert row.fetchone() == ("logical", "64")


def test_a_server_without_a_password_is_refused(postgres18: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgresql://postgres@127.0.0.1:{postgres18.port}/postgres", passfile="/dev/null")


def test_the_servers_do_not_run_as_root(postgres18: PostgresServer) -> None:
    pid = postgres18.pid()
    assert pid is not None
    assert Path(f"/proc/{pid}").stat().st_uid != 0 or os.geteuid() == 0
    if os.geteuid() == 0:
        assert Path(f"/proc/{pid}").stat().st_uid != 0


def test_a_server_whose_number_nobody_has_written_down_ends_with_its_keeper(server_folder: Path) -> None:
    """Its starter was killed right after it had started it."""
    folder = server_folder / "unwritten"
    with Keeper(folder):
        server = ZooKeeperServer(folder / "zookeeper")
        server.start()
        pid = server.pid()
        assert pid is not None
        (folder / "zookeeper" / "server.pid").unlink()
        assert process.servers_below(folder) == [pid]
        server.start()  # it is not known any more: another one takes its place
        assert process.command_line(pid) == ""
        pid = server.pid()
        assert pid is not None
        (folder / "zookeeper" / "server.pid").unlink()
    assert process.servers_below(folder) == []
    assert process.command_line(pid) == ""


def test_data_and_port_outlive_a_kill(server_folder: Path) -> None:
    server = postgres(server_folder / "outlives", 18)
    server.start()
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        port = server.port
        server.kill()
        assert not server.running()
        assert server.pid() is None
        server.start()
        assert server.port == port
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
    finally:
        server.stop()


def test_a_taken_port_is_not_fought_over(server_folder: Path, postgres18: PostgresServer) -> None:
    server = postgres(server_folder / "second", 18)
    server.folder.mkdir(parents=True, exist_ok=True)
    (server.folder / "port").write_text(str(postgres18.port))
    with server:
        assert server.port != postgres18.port


def taken_at_first(monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    """As if another process had taken the chosen port just before the server could."""
    choices = iter([taken])
    real = process.free_port
    monkeypatch.setattr(process, "free_port", lambda preferred=None: next(choices, None) or real(preferred))


def test_a_port_that_is_taken_after_it_was_chosen_is_given_up_by_postgresql(
    server_folder: Path, postgres18: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_at_first(monkeypatch, postgres18.port or 0)
    with postgres(server_folder / "late", 18) as server, psycopg.connect(server.dsn()) as connection:
        assert server.port != postgres18.port
        assert connection.execute("SHOW data_directory").fetchone() == (str(server.data),)


def test_a_port_that_is_taken_after_it_was_chosen_is_given_up_by_zookeeper(
    server_folder: Path, zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_at_first(monkeypatch, zookeeper.port or 0)
    with ZooKeeperServer(server_folder / "late-zookeeper") as server:
        assert server.port != zookeeper.port
        assert server.mode() == "standalone"


def test_a_pid_file_of_somebody_else_is_not_believed(tmp_path: Path) -> None:
    pid_file = tmp_path / "server.pid"
    pid_file.write_text(str(os.getpid()))
    assert process.read_pid(pid_file, tmp_path / "elsewhere") is None


def test_servers_end_when_their_starter_is_killed(server_folder: Path) -> None:
    folder = server_folder / "orphans"
    program = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from balancer.embedded.reaper import Keeper
        from balancer.embedded.postgres import PostgresServer, embedded_binaries
        folder = Path(sys.argv[1])
        folder.mkdir(parents=True, exist_ok=True)
        keeper = Keeper(folder)
        server = PostgresServer(folder / "pg", embedded_binaries())
        server.start()
        print(server.pid(), flush=True)
        time.sleep(600)
    """)
    with started("-c", program, folder, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        starter.send_signal(signal.SIGKILL)
    assert process.until(lambda: not process.command_line(pid), 30.0)


def test_a_version_that_is_not_there_is_said() -> None:
    with pytest.raises(UserError, match="no embedded PostgreSQL 17; there are 16, 18"):
        embedded_binaries(17)
    with pytest.raises(UserError, match="no PostgreSQL 99 on this machine"):
        system_binaries(99)


def test_a_standalone_zookeeper_serves(zookeeper: ZooKeeperServer) -> None:
    assert zookeeper.mode() == "standalone"


def test_an_ensemble_survives_its_leader(zookeeper_ensemble: ZooKeeperEnsemble) -> None:
    first = zookeeper_ensemble.leader()
    first.kill()
    try:
        others = [server for server in zookeeper_ensemble.servers if server is not first]
        assert process.until(lambda: any(server.mode() == "leader" for server in others), 30.0)
    finally:
        zookeeper_ensemble.start()
    assert zookeeper_ensemble.leader() is not first


def test_a_password_costs_a_connection_one_round_of_hashing(any_postgres: PostgresServer) -> None:
    with psycopg.connect(any_postgres.dsn()) as connection:
        row = connection.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'postgres'").fetchone()
    assert row is not None
    assert row[0].startswith("SCRAM-SHA-256$1:")
    wrong = any_postgres.dsn().replace(any_postgres.password(), f"{any_postgres.password()}x")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)
