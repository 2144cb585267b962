"""What a copy costs the application's commits, with and without `throttle = "auto"`. `BENCH_MB` (512) is its size."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.migration.begin import begin_move
from balancer.policies.options import AUTO
from balancer.settings import MigrationSettings
from tests.benchmarks.test_migrations import Written, cluster, fill, quantiles, servers, writing  # noqa: F401 - fixtures
from tests.support.cluster import Cluster
from tests.support.tables import show_table

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

QUIET = 10.0
ROUNDS = 2


def test_latency_of_commits_beside_a_copy(cluster: Cluster, servers: dict[str, PostgresServer]) -> None:  # noqa: F811
    """500 writes a second to the tablet that stays, by a process of its own; in turns: all meet the same disk."""
    size = fill(cluster)
    url = f"sqlite://{cluster.folder / 'directory.db'}"
    with cluster.connect("a") as connection:
        ids = list(range(1_000_000_000, 1_000_100_000))
        connection.execute(
            "INSERT INTO orders (id) SELECT i FROM unnest(%s::bigint[]) AS i"
            " WHERE satisfies_hash_partition('orders'::regclass, 2, 1, i) LIMIT 2000",
            (ids,),
        )
        keys = [int(str(row[0])) for row in connection.execute("SELECT id FROM orders_t2 ORDER BY id LIMIT 2000")]
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    spans: dict[str, list[tuple[float, float]]] = {"nothing is copied": [], "a move": [], "a move, throttled": []}
    base = replace(cluster.settings, chunk_size=MigrationSettings().chunk_size, chunks_at_once=2)
    ways = [("a move", base), ("a move, throttled", replace(base, throttle=AUTO))]
    with writing(url, keys) as written:
        time.sleep(2.0)
        for number in range(ROUNDS * 2):
            with noted(spans["nothing is copied"]):
                time.sleep(QUIET)
            name, cluster.settings = ways[number % 2 if number < 2 else 1 - number % 2]
            with noted(spans[name]):
                target = "b" if number % 2 == 0 else "a"
                done = cluster.runner(directory, leadership).run(begin_move(directory, leadership, 1, target).id)
            assert done.state == "done", done.error
    assert written.errors == []
    rows = []
    quiet = waits_of(written, spans["nothing is copied"])
    for name, found in spans.items():
        waits = waits_of(written, found)
        seconds = sum(last - first for first, last in found) / len(found)
        cuts = quantiles(waits)
        rows.append((name, len(waits), seconds, *cuts, cuts[0] / quantiles(quiet)[0]))
    show_table(
        f"commits of the application beside a copy of {size / 1e6:,.0f} MB, ms",
        ["while", "writes", "seconds each", "p50", "p90", "p99", "longest", "p50 beside quiet"],
        rows,
    )


@contextmanager
def noted(spans: list[tuple[float, float]]) -> Iterator[None]:
    began = time.monotonic()
    yield
    spans.append((began, time.monotonic()))


def waits_of(written: Written, spans: list[tuple[float, float]]) -> list[float]:
    """Milliseconds of each write that ended in one of these spans."""
    return [taken * 1000 for at, taken in written.waits if any(first <= at <= last for first, last in spans)]
