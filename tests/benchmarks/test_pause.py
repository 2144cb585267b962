"""Where the time of a switch goes, state by state, with its messages and commits; and that of a small tablet's move.

`BENCH_SWITCHES` (50) makes it smaller or larger.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from balancer.directory.model import Migration
from balancer.embedded.postgres import PostgresServer, embedded_binaries, system_binaries
from balancer.migration.begin import begin_move
from balancer.migration.journal import read_detail
from balancer.migration.machine import State
from balancer.migration.progress import Observer
from balancer.settings import MigrationSettings
from tests.benchmarks.test_migrations import COLUMNS, SETTINGS, quantiles
from tests.support.cluster import Cluster, build, hash_table, hash_tablets, insert_rows
from tests.support.servers import new_database
from tests.support.tables import show_table

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

SWITCHES = int(os.environ.get("BENCH_SWITCHES", "50"))
PAUSE = (State.FENCING, State.DRAINING, State.VERIFYING, State.SEALING, State.COMMITTING, State.OPENING)
PATH = (State.PLANNED, State.PREPARING, State.COPYING, State.CATCHING_UP, *PAUSE, State.RETIRING)


class Stopwatch(Observer):
    """Seconds of each state, with what was sent to nodes meanwhile."""

    def __init__(self) -> None:
        self.seconds: dict[State, list[float]] = defaultdict(list)
        self.messages: dict[State, int] = defaultdict(int)
        self.commits: dict[State, int] = defaultdict(int)
        self.state = State.PLANNED
        self._began = 0.0

    def entered(self, migration: Migration, state: State) -> None:
        self.state, self._began = state, time.monotonic()

    def left(self, migration: Migration, state: State) -> None:
        self.seconds[state].append(time.monotonic() - self._began)

    @contextmanager
    def counting(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Counts what the driver sends for the length of a block."""
        execute, commit = psycopg.Cursor.execute, psycopg.Connection.commit

        def counted_execute(cursor: Any, *given: Any, **named: Any) -> Any:
            self.messages[self.state] += 1
            return execute(cursor, *given, **named)

        def counted_commit(connection: Any) -> None:
            self.commits[self.state] += 1
            commit(connection)

        with patch.context() as patched:
            patched.setattr(psycopg.Cursor, "execute", counted_execute)
            patched.setattr(psycopg.Connection, "commit", counted_commit)
            yield


@pytest.fixture(scope="module", params=["18, 5s", "15, 5s", "15, 200ms"])
def servers(request: pytest.FixtureRequest, server_folder: Path) -> Iterator[dict[str, PostgresServer]]:
    """With ordinary durability; PostgreSQL's own `wal_retrieve_retry_interval` is 5 s."""
    version, _, interval = request.param.partition(", ")
    folder = server_folder / f"bench-pause-{version}-{interval}"
    folder.mkdir()
    folder.chmod(0o755)
    binaries = embedded_binaries(18) if version == "18" else system_binaries(15)
    settings = {**SETTINGS, "wal_retrieve_retry_interval": interval}
    with PostgresServer(folder / "a", binaries, settings) as a, PostgresServer(folder / "b", binaries, settings) as b:
        yield {"a": a, "b": b}


@pytest.fixture
def cluster(tmp_path: Path, servers: dict[str, PostgresServer]) -> Iterator[Cluster]:
    with new_database(servers["a"]) as a, new_database(servers["b"]) as b:
        made = build(tmp_path, {"a": a.dsn, "b": b.dsn}, hash_table(), hash_tablets(2, ["a"]), COLUMNS)
        made.settings = replace(made.settings, chunk_size=MigrationSettings().chunk_size)
        yield made
        made.close()


def test_where_the_time_of_a_move_goes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A tablet of a megabyte, to and fro, without load."""
    insert_rows(cluster, cluster.tablets(), range(20_000))
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    watch = Stopwatch()
    runner = cluster.runner(directory, leadership, watch)
    pauses, whole = [], []
    with watch.counting(monkeypatch):
        for number in range(SWITCHES):
            began = time.monotonic()
            done = runner.run(begin_move(directory, leadership, 1, "b" if number % 2 == 0 else "a").id)
            whole.append(time.monotonic() - began)
            assert done.state == "done", done.error
            pauses.append((read_detail(done).pause or 0.0) * 1000)
    rows: list[tuple[object, ...]] = [
        (
            f"{state}{' *' if state in PAUSE else ''}",
            *quantiles([taken * 1000 for taken in watch.seconds[state]]),
            watch.messages[state] / SWITCHES,
            watch.commits[state] / SWITCHES,
        )
        for state in PATH
    ]
    rows.append(("the pause (*)", *quantiles(pauses), "", ""))
    rows.append(("the whole move", *quantiles([taken * 1000 for taken in whole]), "", ""))
    show_table(
        f"{SWITCHES} moves of a tablet of 1 MB; version, wal_retrieve_retry_interval:"
        f" {request.node.callspec.params['servers']}",
        ["state", "p50 ms", "p90 ms", "p99 ms", "longest", "messages to nodes", "commits on nodes"],
        rows,
    )
