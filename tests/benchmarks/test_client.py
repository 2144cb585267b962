"""Keys located and grouped per second, beside uhashring; the cost of a routed transaction, beside a bare one."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from random import Random
from typing import TypeVar

import numpy as np
import psycopg
import pytest
from psycopg_pool import ConnectionPool
from uhashring import HashRing

from balancer.client import PoolSettings, Router
from balancer.client.keys.routes import Routes
from balancer.directory.invariants import TABLET_COUNTER
from balancer.directory.model import Counter, KeyColumn, Layout, RangeBounds, Table, Tablet
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import HIGHEST, LOWEST, KeyType, encode_key
from tests.support.directories import fill, frame
from tests.support.servers import postgres
from tests.support.shards import databases, new_shards
from tests.support.tables import show_table

pytestmark = pytest.mark.bench

SEED = 9
NODES = [f"pg-{number}" for number in range(16)]
TABLETS = 1024
RUNS, SINGLE, BULK, TRANSACTIONS = 5, 30_000, 4_000_000, 1500

K = TypeVar("K")


def _seconds(work: Callable[[], object], runs: int = 5) -> float:
    """The best of some runs: the others measure the neighbours."""
    best = float("inf")
    for _ in range(runs):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    """1,024 tablets of each kind on 16 nodes."""
    tables = [
        Table(1, "orders", "shop", Layout.HASH, (KeyColumn("id", KeyType.BIGINT),), ("public.orders",)),
        Table(2, "names", "shop", Layout.HASH, (KeyColumn("id", KeyType.TEXT),), ("public.names",)),
        Table(3, "events", "shop", Layout.RANGE, (KeyColumn("id", KeyType.BIGINT),), ("public.events",)),
    ]
    edges = [LOWEST, *(encode_key((KeyType.BIGINT,), (i << 40,)) for i in range(1, TABLETS)), HIGHEST]
    tablets = [Tablet(t * 10_000 + i, t, Leaf(TABLETS, i), NODES[i % 16]) for t in (1, 2) for i in range(TABLETS)]
    tablets += [Tablet(30_000 + i, 3, RangeBounds(edges[i], edges[i + 1]), NODES[i % 16]) for i in range(TABLETS)]
    with open_directory(f"sqlite://{tmp_path}/directory.sqlite") as directory:
        fill(directory, [*frame(NODES), *tables, *tablets, Counter(TABLET_COUNTER, 100_000)])
        with Router(Routes(directory), samples=False) as opened:
            yield opened


def test_keys_located_per_second(router: Router) -> None:
    """Keys in use are asked for again and again; fresh ones were never asked for before."""
    chance = Random(SEED)
    integers = [chance.getrandbits(50) for _ in range(RUNS * SINGLE)]
    texts = [f"customer-{number}" for number in integers]
    ring = HashRing(nodes=NODES)
    rows = [
        ("locate: bigint, hash, fresh keys", *_fresh(integers, lambda key: router.locate("orders", key))),
        ("locate: bigint, hash, keys in use", *_in_use(integers, lambda key: router.locate("orders", key))),
        ("locate: bigint, range, fresh keys", *_fresh(integers, lambda key: router.locate("events", key))),
        ("locate: text, hash, fresh keys", *_fresh(texts, lambda key: router.locate("names", key))),
        ("locate: text, hash, keys in use", *_in_use(texts, lambda key: router.locate("names", key))),
        ("uhashring get_node: text, fresh keys", *_fresh(texts, ring.get_node)),
        ("uhashring get_node: text, keys in use", *_in_use(texts, ring.get_node)),
    ]
    base = rows[-1][2]
    title = f"single keys, {TABLETS} tablets, 16 nodes (seed {SEED}); goal 500,000/s and 10 × uhashring"
    show_table(title, ("what", "keys", "keys/s", "× uhashring"), [(*row, row[2] / base) for row in rows])


def _fresh(keys: Sequence[K], find: Callable[[K], object]) -> tuple[int, float]:
    """Each run has keys of its own."""
    parts = iter([keys[at * SINGLE : (at + 1) * SINGLE] for at in range(RUNS)])
    return SINGLE, SINGLE / _seconds(lambda: [find(key) for key in next(parts)], RUNS)


def _in_use(keys: Sequence[K], find: Callable[[K], object]) -> tuple[int, float]:
    """Every run has the same keys; the first does not count."""
    return SINGLE, SINGLE / _seconds(lambda: [find(key) for key in keys[:SINGLE]], RUNS)


def test_keys_grouped_per_second(router: Router) -> None:
    draw = np.random.default_rng(SEED)
    integers = draw.integers(0, 1 << 50, BULK)
    texts = [f"customer-{number}" for number in integers[: BULK // 16].tolist()]
    loop = integers[: BULK // 16].tolist()
    rows = []
    for name, keys, work in (
        ("group: bigint, hash, array", integers, lambda keys: router.group("orders", keys)),
        ("group: bigint, range, array", integers, lambda keys: router.group("events", keys)),
        ("group: text, hash, list", texts, lambda keys: router.group("names", keys)),
        ("a loop over locate: bigint, hash", loop, lambda keys: [router.locate("orders", key) for key in keys]),
    ):
        taken = _seconds(lambda work=work, keys=keys: work(keys), runs=3)  # type: ignore[misc]
        rows.append((name, len(keys), taken, len(keys) / taken / 1e6))
    show_table(f"many keys (seed {SEED}); goal 10 M/s", ("what", "keys", "seconds", "million keys/s"), rows)


@pytest.fixture
def durable(server_folder: Path) -> Iterator[PostgresServer]:
    """A server that waits for its disk, as an application's does."""
    server = postgres(server_folder / "durable", 18)
    server._settings["fsync"] = "on"
    with server:
        yield server


def test_cost_of_a_routed_transaction(tmp_path: Path, durable: PostgresServer) -> None:
    """Beside what an application without a cluster would write: `with pool.connection()`, of the same pool library."""
    insert, select, numbers = (
        "INSERT INTO orders VALUES (%s, %s)",
        "SELECT n FROM orders WHERE user_id = %s LIMIT 1",
        count(),
    )
    with ExitStack() as stack:
        shards = stack.enter_context(new_shards(tmp_path, stack.enter_context(databases(durable))))
        router = stack.enter_context(Router.connect(shards.url, PoolSettings(size=1)))
        pools = {
            name: stack.enter_context(ConnectionPool(dsn, min_size=1, max_size=1, open=True))
            for name, dsn in shards.dsns.items()
        }

        def routed(key: int) -> None:
            with router.transaction("orders", key) as connection:
                connection.execute(insert, (key, next(numbers)))

        def bare(key: int) -> None:
            with pools[router.locate("orders", key).node].connection() as connection:
                connection.execute(insert, (key, next(numbers)))

        def read(key: int) -> None:
            with router.transaction("orders", key, read_only=True) as connection:
                connection.execute(select, (key,)).fetchall()

        def bare_read(key: int) -> None:
            with pools[router.locate("orders", key).node].connection() as connection:
                connection.execute(select, (key,)).fetchall()

        def piped(key: int) -> None:
            router.run("orders", key, lambda c: c.execute(insert, (key, next(numbers))) and None, pipelined=True)

        def piped_read(key: int) -> None:
            router.run("orders", key, lambda c: c.execute(select, (key,)).fetchall(), read_only=True, pipelined=True)

        rows = []
        for name, trips, ours, theirs in (
            ("insert", "2, 3", routed, bare),
            ("select", "2, 3", read, bare_read),
            ("insert, run pipelined", "1, 3", piped, bare),
            ("select, run pipelined", "2, 3", piped_read, bare_read),
        ):
            mine, other = _alternating(ours, theirs)
            rows.append((name, TRANSACTIONS, trips, *mine, *other, mine[0] / other[0], mine[1] / other[1]))
    columns = (
        "transaction",
        "of each",
        "round trips",
        "routed, ms",
        "client's CPU",
        "pool.connection(), ms",
        "client's CPU",
        "ratio",
        "of CPU",
    )
    show_table("a transaction of one statement, proven, beside one of a plain pool (medians); goal 1.15", columns, rows)


def _alternating(ours: Callable[[int], None], theirs: Callable[[int], None]) -> list[tuple[float, float]]:
    """In turns, in both orders, so that both meet the same neighbours; the median of each, with our own CPU, in ms."""
    taken: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
    for key in range(TRANSACTIONS):
        for work, into in ((ours, taken[0]), (theirs, taken[1]))[:: 1 if key % 2 else -1]:
            began, used = time.perf_counter(), time.thread_time()
            work(key)
            into.append((time.perf_counter() - began, time.thread_time() - used))
    return [
        (statistics.median(w for w, _ in side) * 1e3, statistics.median(u for _, u in side) * 1e3) for side in taken
    ]


def test_parts_of_a_proof(tmp_path: Path, durable: PostgresServer) -> None:
    """What the server needs for a proof, in the middle of other sessions' work, in round trips of the least size."""
    with ExitStack() as stack:
        shards = stack.enter_context(new_shards(tmp_path, stack.enter_context(databases(durable, 1))))
        tablet = shards.tablets()[0]
        call = f"CALL balancer.hold({tablet.id}, {tablet.epoch}, %s)"
        begin, reading = (
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        )
        works = {
            "SELECT 1": "SELECT 1",
            "BEGIN": begin,
            "BEGIN, hold to write": f"{begin}; {call % 'true'}",
            "BEGIN, hold to read": f"{reading}; {call % 'false'}",
        }
        links = {name: stack.enter_context(psycopg.connect(shards.dsns["pg-a"], autocommit=True)) for name in works}
        taken: dict[str, list[float]] = {name: [] for name in works}
        for at in range(TRANSACTIONS):
            for name in sorted(works, key=lambda name: hash((name, at))):
                began = time.perf_counter()
                links[name].pgconn.exec_(works[name].encode())
                taken[name].append(time.perf_counter() - began)
                links[name].pgconn.exec_(b"COMMIT")
    rows = [(name, statistics.median(times) * 1e6, min(times) * 1e6) for name, times in taken.items()]
    show_table("messages of a proof, each on a session of its own", ("message", "µs (median)", "µs (best)"), rows)
