"""The embedded cluster: comes back after anything, is fresh on request, belongs to one process."""

import signal
import subprocess
import textwrap
from pathlib import Path

import psycopg
import pytest

from balancer.embedded import process
from balancer.embedded.cluster import EmbeddedCluster
from balancer.errors import Refused, UserError
from tests.support.commands import started


def test_three_nodes_start_side_by_side_and_keep_their_data(server_folder: Path) -> None:
    folder = server_folder / "cluster"
    seen: list[str] = []
    with EmbeddedCluster(folder, settings={"fsync": "off"}, progress=seen.append) as cluster:
        assert sorted(seen) == ["pg-a", "pg-b", "pg-c"]
        with psycopg.connect(cluster.nodes["pg-b"].dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE kept (x int)")
    again = EmbeddedCluster(folder, settings={"fsync": "off"})
    with again:
        with psycopg.connect(again.nodes["pg-b"].dsn()) as connection:
            assert connection.execute("SELECT to_regclass('kept') IS NOT NULL").fetchone() == (True,)
        again.stop()
        again.start(fresh=True)
        with psycopg.connect(again.nodes["pg-b"].dsn()) as connection:
            assert connection.execute("SELECT to_regclass('kept') IS NULL").fetchone() == (True,)


def test_a_folder_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/cluster")):
        with pytest.raises(UserError, match=f"the folder {folder} cannot be used: "):
            EmbeddedCluster(folder).start()


def test_a_killed_owner_leaves_no_orphans_and_the_next_one_comes_up(server_folder: Path) -> None:
    folder = server_folder / "killed"
    program = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from balancer.embedded.cluster import EmbeddedCluster
        cluster = EmbeddedCluster(Path(sys.argv[1]), 2, settings={"fsync": "off"})
        cluster.start()
        print(*(server.pid() for server in cluster.nodes.values()), flush=True)
        time.sleep(600)
    """)
    with started("-c", program, folder, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        with pytest.raises(Refused, match=f"process {owner.pid} uses the cluster"):
            EmbeddedCluster(folder, 2).start()
        owner.send_signal(signal.SIGKILL)
    # At once, while the keeper may still be stopping the old servers.
    with EmbeddedCluster(folder, 2, settings={"fsync": "off"}) as cluster:
        assert all(server.running() for server in cluster.nodes.values())
        assert process.until(lambda: not any(process.command_line(pid) for pid in pids), 30.0)
