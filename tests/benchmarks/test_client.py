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
from uhashring import HashRing

from balancer.client import PoolSettings, Router
from balancer.client.routing import Routes
from balancer.directory.model import Counter, KeyColumn, Layout, RangeBounds, Table, Tablet
from balancer.directory.open import open_directory
from balancer.directory.record_rules import TABLET_COUNTER
from balancer.embedded.postgres import PostgresServer
from balancer.policies.hash_leaves import Leaf
from balancer.policies.keys import HIGHEST, LOWEST, KeyType, encode_key
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
    """Alternating, so that both meet the same neighbours; the median of each."""
    insert, numbers = "INSERT INTO orders VALUES (%s, %s)", count()
    with ExitStack() as stack:
        shards = stack.enter_context(new_shards(tmp_path, stack.enter_context(databases(durable))))
        router = stack.enter_context(Router.connect(shards.url, PoolSettings(size=1)))
        links = {name: stack.enter_context(psycopg.connect(dsn, autocommit=True)) for name, dsn in shards.dsns.items()}

        def routed(key: int) -> None:
            with router.transaction("orders", key) as connection:
                connection.execute(insert, (key, next(numbers)))

        def bare(key: int) -> None:
            connection = links[router.locate("orders", key).node]
            with connection.transaction():
                connection.execute(insert, (key, next(numbers)))

        def read(key: int) -> None:
            with router.transaction("orders", key, read_only=True) as connection:
                connection.execute("SELECT n FROM orders WHERE user_id = %s LIMIT 1", (key,)).fetchall()

        def bare_read(key: int) -> None:
            connection = links[router.locate("orders", key).node]
            with connection.transaction():
                connection.execute("SELECT n FROM orders WHERE user_id = %s LIMIT 1", (key,)).fetchall()

        def piped(key: int) -> None:
            router.run("orders", key, lambda c: c.execute(insert, (key, next(numbers))) and None, pipelined=True)

        def piped_read(key: int) -> None:
            select = "SELECT n FROM orders WHERE user_id = %s LIMIT 1"
            router.run("orders", key, lambda c: c.execute(select, (key,)).fetchall(), read_only=True, pipelined=True)

        rows = []
        for name, ours, theirs in (
            ("insert", routed, bare),
            ("select", read, bare_read),
            ("insert, run pipelined", piped, bare),
            ("select, run pipelined", piped_read, bare_read),
        ):
            mine, other = _alternating(ours, theirs)
            rows.append((name, TRANSACTIONS, mine * 1e3, other * 1e3, mine / other))
    columns = ("transaction", "of each", "routed, ms (median)", "bare psycopg, ms (median)", "ratio")
    show_table("a transaction of one statement, pooled and proven, beside a bare one; goal 1.15", columns, rows)


def _alternating(ours: Callable[[int], None], theirs: Callable[[int], None]) -> tuple[float, float]:
    taken: tuple[list[float], list[float]] = ([], [])
    for key in range(TRANSACTIONS):
        for work, into in ((ours, taken[0]), (theirs, taken[1])):
            began = time.perf_counter()
            work(key)
            into.append(time.perf_counter() - began)
    return statistics.median(taken[0]), statistics.median(taken[1])
