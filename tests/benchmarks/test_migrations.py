"""How fast a tablet moves beside what anybody could do by hand, and how long its writers wait at the switch.

`BENCH_MB` (1024), `BENCH_ROUNDS` (3) and `BENCH_SWITCHES` (50) make it smaller or larger.
"""

import multiprocessing
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from balancer.client.router import Router
from balancer.client.transaction.pools import PoolSettings
from balancer.embedded.postgres import PostgresServer, embedded_binaries
from balancer.migration.begin import begin_move
from balancer.migration.journal import read_detail
from balancer.settings import MigrationSettings
from tests.support.cluster import Cluster, build, hash_table, hash_tablets, insert_rows
from tests.support.servers import new_database
from tests.support.spy import Spy
from tests.support.tables import show_table

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

MEGABYTES = int(os.environ.get("BENCH_MB", "1024"))
SWITCHES = int(os.environ.get("BENCH_SWITCHES", "50"))
WRITES_PER_SECOND = 500
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
DUMP, PIPE = "pg_dump | psql", "psql | psql, binary, indexes after"
COMPARED = "the same pipe, then the sums of both sides at once"
SUMS = "SELECT count(*), sum(hashint8extended(id, hashint8extended(n, hashtextextended(note, 0)))) FROM orders_t1"
MOVES = {count: f"move, verified, online, {count} chunk{'s' if count > 1 else ''} at once" for count in (1, 2, 3)}
COLUMNS = "(id bigint NOT NULL, n bigint NOT NULL DEFAULT 0, note text, PRIMARY KEY (id))"
_SPAWN = multiprocessing.get_context("spawn")
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB", "maintenance_work_mem": "256MB"}


@pytest.fixture(scope="module")
def servers(server_folder: Path) -> Iterator[dict[str, PostgresServer]]:
    """Two servers with ordinary durability: a crash-safe move is compared with crash-safe copies."""
    folder = server_folder / "bench-migrations"
    folder.mkdir()
    folder.chmod(0o755)
    binaries = embedded_binaries(18)
    with PostgresServer(folder / "a", binaries, SETTINGS) as a, PostgresServer(folder / "b", binaries, SETTINGS) as b:
        yield {"a": a, "b": b}


@pytest.fixture
def cluster(tmp_path: Path, servers: dict[str, PostgresServer]) -> Iterator[Cluster]:
    with new_database(servers["a"]) as a, new_database(servers["b"]) as b:
        made = build(tmp_path, {"a": a.dsn, "b": b.dsn}, hash_table(), hash_tablets(2, ["a"]), COLUMNS)
        yield made
        made.close()


def test_throughput_of_a_move(cluster: Cluster, servers: dict[str, PostgresServer]) -> None:
    """There and back, each way beside the others: a server's first gigabyte of WAL costs more than the next ones.

    The processor's time is the whole machine's: with that of the pipe it says how much faster a move could be at best.
    """
    size = fill(cluster)
    timings: dict[str, list[Taken]] = {DUMP: [], PIPE: [], COMPARED: [], **{name: [] for name in MOVES.values()}}
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    ways = [("a", "b"), ("b", "a")]
    for number, chunks in enumerate([*MOVES] * ROUNDS):
        source, target = ways[number % 2]
        by_hands = ((DUMP, _dump), (PIPE, _pipe), (COMPARED, _compared_pipe))
        for name, work in by_hands if number == 0 else by_hands[1:]:
            timings[name].append(by_hand(cluster, target, partial(work, cluster, servers["a"], source, target)))
        switched: list[Taken] = []
        began = Taken.now()
        spy = Spy({"left:opening": lambda began=began, seen=switched: seen.append(Taken.now() - began)})  # type: ignore[misc]
        cluster.settings = replace(cluster.settings, chunk_size=MigrationSettings().chunk_size, chunks_at_once=chunks)
        done = cluster.runner(directory, leadership, spy).run(begin_move(directory, leadership, 1, target).id)
        assert done.state == "done", done.error
        timings[MOVES[chunks]].append(switched[0])
    medians = {name: Taken.median(taken) for name, taken in timings.items()}
    pipe = medians[PIPE]
    rows = [
        (
            name,
            len(timings[name]),
            taken.seconds,
            size / taken.seconds / 1e6,
            pipe.seconds / taken.seconds,
            taken.processor,
            taken.processor / taken.seconds,
            pipe.processor / taken.processor,
        )
        for name, taken in sorted(medians.items(), key=lambda item: item[1].seconds)
    ]
    show_table(
        f"a tablet of {size / 1e6:,.0f} MB (heap), with a primary key and an index, on {os.cpu_count()} cores",
        ["how", "times", "seconds (median)", "MB/s", "times the bare pipe", "CPU s", "cores busy", "times its CPU"],
        rows,
    )


@dataclass(frozen=True)
class Taken:
    """Time on the clock, and of all processors of the machine."""

    seconds: float
    processor: float

    @classmethod
    def now(cls) -> "Taken":
        user, nice, system, _, _, irq, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
        return cls(time.monotonic(), (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK"))

    def __sub__(self, other: "Taken") -> "Taken":
        return Taken(self.seconds - other.seconds, self.processor - other.processor)

    @classmethod
    def median(cls, taken: "list[Taken]") -> "Taken":
        return cls(statistics.median(one.seconds for one in taken), statistics.median(one.processor for one in taken))


def test_write_pause_of_switches(cluster: Cluster) -> None:
    insert_rows(cluster, cluster.tablets(), range(20_000))
    url = f"sqlite://{cluster.folder / 'directory.db'}"
    with cluster.connect("a") as connection:
        ids = [int(str(row[0])) for row in connection.execute("SELECT id FROM orders_t1 ORDER BY id LIMIT 2000")]
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    runner = cluster.runner(directory, leadership)
    pauses, predicted, fences, switched = [], [], [], []
    with writing(url, ids) as written:
        time.sleep(1.0)
        for number in range(SWITCHES):
            began = time.monotonic()
            done = runner.run(begin_move(directory, leadership, 1, "b" if number % 2 == 0 else "a").id)
            assert done.state == "done", done.error
            switched.append((began, time.monotonic()))
            detail = read_detail(done)
            pauses.append((detail.pause or 0.0) * 1000)
            predicted.append((detail.predicted_pause or 0.0) * 1000)
            fences.append(detail.fences)
    waits = [taken for _, taken in written.waits]
    slowest = [
        max((taken for at, taken in written.waits if first <= at <= last), default=0.0) * 1000
        for first, last in switched
    ]
    show_table(
        f"{SWITCHES} switches at {WRITES_PER_SECOND} writes/s to the moving tablet, ms",
        ["what", "p50", "p90", "p99", "longest"],
        [
            ("writers held back, by the journal", *quantiles(pauses)),
            ("predicted before the fence", *quantiles(predicted)),
            ("slowest write of each switch, by the client", *quantiles(slowest)),
            ("every write, by the client", *quantiles([wait * 1000 for wait in waits])),
        ],
    )
    print(f"writes {len(waits)}, fences per move {sum(fences) / len(fences):.2f}; failed:", written.errors[:3])
    assert written.errors == []


def fill(cluster: Cluster) -> int:
    """About so many megabytes of rows of some 230 bytes in tablet 1, and a second index on the root of both nodes."""
    for node in ("a", "b"):
        with cluster.connect(node) as connection:
            connection.execute("CREATE INDEX orders_n ON orders (n)")
    with cluster.connect("a") as connection:
        connection.execute(
            f"INSERT INTO orders SELECT i, i % 1000, repeat(md5(i::text), 6)"
            f" FROM generate_series(1::bigint, {MEGABYTES * 8000}) AS i"
            " WHERE satisfies_hash_partition('orders'::regclass, 2, 0, i)"
        )
        connection.execute("VACUUM ANALYZE orders_t1")
        connection.execute("CHECKPOINT")
        row = connection.execute("SELECT pg_relation_size('orders_t1')").fetchone()
    assert row is not None
    return int(str(row[0]))


def by_hand(cluster: Cluster, target: str, work: Callable[[], None]) -> Taken:
    """What a copy takes into an empty table on the target, which is dropped again."""
    with cluster.connect(target) as connection:
        connection.execute("DROP TABLE IF EXISTS orders_t1")
        connection.execute("CHECKPOINT")
    began = Taken.now()
    work()
    taken = Taken.now() - began
    with cluster.connect(target) as connection:
        assert connection.execute("SELECT count(*) > 0 FROM orders_t1").fetchone() == (True,)
        connection.execute("DROP TABLE orders_t1")
        connection.execute("CHECKPOINT")
    return taken


def _dump(cluster: Cluster, server: PostgresServer, source: str, target: str) -> None:
    dump = [server.program("pg_dump"), cluster.dsns[source], "--table=public.orders_t1", "--no-owner"]
    load = [server.program("psql"), cluster.dsns[target], "--quiet", "--no-psqlrc", "--output=/dev/null"]
    _run_pipe(list(map(str, dump)), list(map(str, load)))


def _pipe(cluster: Cluster, server: PostgresServer, source: str, target: str) -> None:
    with cluster.connect(target) as connection:
        connection.execute("CREATE TABLE orders_t1 (LIKE orders INCLUDING ALL EXCLUDING INDEXES)")
    psql = [str(server.program("psql")), "--quiet", "--no-psqlrc"]
    _run_pipe(
        [*psql, cluster.dsns[source], "--command=COPY orders_t1 TO STDOUT (FORMAT binary)"],
        [*psql, cluster.dsns[target], "--command=COPY orders_t1 FROM STDIN (FORMAT binary)"],
    )
    with cluster.connect(target) as connection:
        connection.execute("ALTER TABLE orders_t1 ADD PRIMARY KEY (id)")
        connection.execute("CREATE INDEX ON orders_t1 (n)")


def _compared_pipe(cluster: Cluster, server: PostgresServer, source: str, target: str) -> None:
    """What a careful person does: a move has compared every row before it switches."""
    _pipe(cluster, server, source, target)
    sums: dict[str, object] = {}

    def ask(node: str) -> None:
        sums[node] = cluster.query(node, SUMS)

    asking = [threading.Thread(target=ask, args=(node,)) for node in (source, target)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert sums[source] == sums[target]


def _run_pipe(first: list[str], second: list[str]) -> None:
    with subprocess.Popen(first, stdout=subprocess.PIPE) as source:
        subprocess.run(second, stdin=source.stdout, check=False, stderr=subprocess.DEVNULL)
    assert source.returncode == 0


@dataclass
class Written:
    """What the application says of its writes: when each ended and how long it took, and what failed."""

    waits: list[tuple[float, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@contextmanager
def writing(url: str, ids: list[int]) -> Iterator[Written]:
    """An application of four threads in a process of its own, as it is for everybody: it shares no lock with us."""
    written = Written()
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_application, args=(url, ids, theirs), daemon=True)
    process.start()
    assert ours.recv() == "started"
    try:
        yield written
        ours.send("stop")
        written.waits, written.errors = ours.recv()
    finally:
        ours.close()  # which ends it, too
        process.join()


def _application(url: str, ids: list[int], pipe: Any) -> None:
    waits: list[tuple[float, float]] = []
    errors: list[str] = []
    stop = threading.Event()
    threads = [threading.Thread(target=_write, args=(url, ids[number::4], waits, errors, stop)) for number in range(4)]
    for thread in threads:
        thread.start()
    pipe.send("started")
    with suppress(EOFError):
        pipe.recv()
    stop.set()
    for thread in threads:
        thread.join()
    with suppress(OSError):
        pipe.send((waits, errors))


def _write(
    url: str, ids: list[int], waits: list[tuple[float, float]], errors: list[str], stop: threading.Event
) -> None:
    """One of four threads: each writes at a quarter of the rate."""
    interval = 4 / WRITES_PER_SECOND
    with Router.connect(url, PoolSettings(), samples=False) as router:
        at = time.monotonic()
        number = 0
        while not stop.is_set():
            key = ids[number % len(ids)]
            number += 1
            began = time.monotonic()
            try:
                router.run("orders", key, lambda link, key=key: _increment(link, key))  # type: ignore[misc]
            except Exception as error:  # every failure counts, whatever it is
                errors.append(repr(error))
            ended = time.monotonic()
            waits.append((ended, ended - began))
            at = max(at + interval, ended - 1.0)
            time.sleep(max(0.0, at - time.monotonic()))


def _increment(link: psycopg.Connection[tuple[object, ...]], key: int) -> None:
    found = link.execute("UPDATE orders SET n = n + 1 WHERE id = %s", (key,))
    assert found.rowcount == 1, f"row {key} was not found"


def quantiles(values: list[float]) -> tuple[float, float, float, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else [values[0]] * 99
    return cuts[49], cuts[89], cuts[98], max(values)
