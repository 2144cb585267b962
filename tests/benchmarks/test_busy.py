"""Splits, merges and moves beside an ordinary busy database: how long they take, and how long others wait.

Also the pause of a split under steady writes, and what the doubled writes cost, as a ratio in the same run.
`BENCH_SPLITS` (20) makes the second smaller or larger.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from balancer.directory.model import Migration
from balancer.embedded.postgres import PostgresServer
from balancer.migration.begin import begin_move
from balancer.migration.journal import read_detail
from balancer.settings import MigrationSettings
from tests.support.busy import ROWS, Load, busy, elsewhere, snapshots, statements, writers
from tests.support.cluster import Cluster, build, hash_table, hash_tablets, insert_rows
from tests.support.resharding import begin_merge, begin_split
from tests.support.spy import Spy
from tests.support.tables import show_table

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

SPLITS = int(os.environ.get("BENCH_SPLITS", "20"))
ENDS = 120.0
"""Seconds after which a migration is cancelled: it starves."""
LOADS: dict[str, Sequence[Load]] = {
    "nothing": (),
    "4 × statements of 0.3 to 2 s elsewhere": (Load("elsewhere", 4, elsewhere(0.3, 2.0)),),
    "snapshots of 0.3 to 1 s": (Load("snapshots", 1, snapshots(0.3, 1.0)),),
    "3 × writers of 20 to 80 ms": (Load("writers", 3, writers(0.02, 0.08)),),
    **{
        f"{sessions} × statements of {seconds * 1000:.0f} ms": (
            Load("statements", sessions, statements(seconds, seconds)),
        )
        for seconds in (0.05, 0.1, 0.3, 1.0)
        for sessions in (2, 8)
    },
}


@pytest.fixture
def cluster(tmp_path: Path, postgres15: PostgresServer, postgres18: PostgresServer, database: Any) -> Iterator[Cluster]:
    pair = {"a": database(postgres15).dsn, "b": database(postgres18).dsn}
    tablets = hash_tablets(2, ["a"])
    made = build(tmp_path, pair, hash_table(), tablets)
    made.settings = MigrationSettings(retire_grace=0.0)
    insert_rows(made, tablets, range(ROWS))
    yield made
    made.close()


class Work:
    """Migrations one after another, each cancelled if it does not end."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._directory = cluster.directory()
        self._leadership = cluster.become_leader(self._directory)

    def split(self, tablet: int, spy: Spy | None = None) -> Migration:
        return self._run(begin_split(self._directory, self._leadership, tablet), spy)

    def merge(self, tablets: Sequence[int]) -> Migration:
        return self._run(begin_merge(self._directory, self._leadership, tablets))

    def move(self, tablet: int, node: str) -> Migration:
        return self._run(begin_move(self._directory, self._leadership, tablet, node))

    def _run(self, begun: Migration, spy: Spy | None = None) -> Migration:
        runner = self._cluster.runner(self._directory, self._leadership, spy)
        starved = threading.Timer(ENDS, lambda: runner.cancel(begun.id))
        starved.start()
        try:
            return runner.run(begun.id)
        finally:
            starved.cancel()


def test_migrations_beside_a_busy_database(cluster: Cluster) -> None:
    work, tablet, rows = Work(cluster), 2, []
    with ExitStack() as stack:
        for name, load in {**LOADS, "pg_dump of another table": ()}.items():
            if name.startswith("pg_dump"):
                stack.enter_context(_dump(cluster.dsns["a"]))
            times = []
            with busy(cluster.dsns["a"], load) as seen:
                first, split = _timed(lambda tablet=tablet: work.split(tablet))  # type: ignore[misc]
                times.append(first)
                halves = [one.id for one in split.targets] if split.state == "done" else []
                if halves:
                    second, merged = _timed(lambda halves=halves: work.merge(halves))  # type: ignore[misc]
                    times.append(second)
                    tablet = merged.targets[0].id if merged.state == "done" else tablet
            longest = max((one.longest for one in seen.values()), default=0.0)
            refused = sum(sum(one.refused.values()) for one in seen.values())
            assert all(not one.wrong for one in seen.values())
            rows.append([name, *(f"{seconds:.1f}" for seconds in times), f"{longest * 1000:.0f}", str(refused)])
    moved, _ = _timed(lambda: work.move(1, "b"))
    columns = ["beside", "split s", "merge s", "longest wait ms", "refused"]
    show_table("Splits and merges of 10,000 rows beside others", columns, rows)
    print(f"a move beside nothing: {moved:.1f} s")


def _timed(run: Callable[[], Migration]) -> tuple[float, Migration]:
    began = time.monotonic()
    done = run()
    return time.monotonic() - began, done


@contextmanager
def _dump(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn, application_name="pg_dump") as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM elsewhere")
        yield


def test_the_pause_of_a_split_under_steady_writes(cluster: Cluster) -> None:
    work, tablets, pauses, worst = Work(cluster), [2], [], []
    with busy(cluster.dsns["a"], (Load("writers", 5, _steady(0.01)),)) as seen:
        steady = seen["writers"]
        for _ in range(SPLITS):
            before = len(steady.waits)
            done = work.split(tablets[0]) if len(tablets) == 1 else work.merge(tablets)
            assert done.state == "done", done.error
            tablets = [one.id for one in done.targets]
            pauses.append(read_detail(done).pause or 0.0)
            worst.append(max(steady.waits[before:]))
    ordinary = sorted(steady.waits)
    rows = [
        ["a write, ordinarily", *_quantiles(ordinary)],
        ["the worst write of each split or merge", *_quantiles(sorted(worst))],
        ["the pause that was noted", *_quantiles(sorted(pauses))],
    ]
    show_table("The pause of a split under 500 writes a second", ["ms", "p50", "p99"], rows)


def _quantiles(found: Sequence[float]) -> list[str]:
    return [f"{found[min(len(found) - 1, int(len(found) * share))] * 1000:.1f}" for share in (0.5, 0.99)]


def _steady(rest: float) -> Any:
    def work(connection: Any, choice: Any, seen: Any) -> None:
        began = time.monotonic()
        connection.execute("UPDATE orders SET n = n + 1 WHERE id = %s", (choice.randrange(ROWS),))
        seen.one(time.monotonic() - began, 1)
        time.sleep(rest)

    return work


def test_what_doubled_writes_cost(cluster: Cluster) -> None:
    """Single rows, and many in a statement, with what logs changes and with what mirrors them, against neither."""
    again = "WITH gone AS (DELETE FROM orders_t2 WHERE id % 2 = 0 RETURNING *) INSERT INTO orders SELECT * FROM gone"
    works = {
        "UPDATE of one row": [f"UPDATE orders_t2 SET n = n + 1 WHERE id = {number}" for number in range(900)],
        "UPDATE of all rows": ["UPDATE orders_t2 SET n = n + 1"],
        "DELETE and INSERT of half": [again],
    }
    figures: dict[str, list[float]] = {name: [] for name in works}

    def measure() -> None:
        for name, texts in works.items():
            with cluster.connect("a") as connection:
                began = time.monotonic()
                for text in texts:
                    connection.execute(text.encode())
                figures[name].append(time.monotonic() - began)

    measure()
    measure()
    done = Work(cluster).split(2, Spy({"left:copying": measure, "left:mirroring": measure}))
    assert done.state == "done", done.error
    rows = [[name, f"{log / plain:.1f}", f"{mirror / plain:.1f}"] for name, (_, plain, log, mirror) in figures.items()]
    show_table("What writes to a tablet cost while it is split", ["times as long", "log", "mirror"], rows)
