"""A tablet of an in-memory table arrives warm: its pages are in the new owner's cache before the switch."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from balancer.migration.begin import begin_move
from tests.support.cluster import Cluster, build, hash_table, hash_tablets
from tests.support.spy import Spy

COLUMNS = "(id bigint NOT NULL, n bigint NOT NULL DEFAULT 0, note text, PRIMARY KEY (id))"
CHUNK = 1 << 20  # of 23 MB
ROWS = 30_000  # of 700 bytes: more than a quarter of the servers' 64 MB, from where on a plain scan leaves nothing
HEAP = "SELECT count(*) FROM ONLY orders_t1 WHERE ctid >= '(0,0)'"
INDEX = "SELECT id FROM ONLY orders_t1 ORDER BY id"


def make(folder: Path, dsns: dict[str, str]) -> Cluster:
    made = build(folder, dsns, hash_table(), hash_tablets(1, ["a"]), COLUMNS)
    made.settings = replace(made.settings, chunk_size=CHUNK)
    with made.connect("a") as connection:
        connection.execute(
            f"INSERT INTO orders SELECT i, 0, repeat('x', 700) FROM generate_series(1, {ROWS}) AS i; ANALYZE"
        )
    return made


@pytest.fixture
def upward(tmp_path: Path, pair: dict[str, str]) -> Iterator[Cluster]:
    """To PostgreSQL 18, which has no extensions here."""
    made = make(tmp_path, pair)
    yield made
    made.close()


@pytest.fixture
def downward(tmp_path: Path, pair: dict[str, str]) -> Iterator[Cluster]:
    """To PostgreSQL 15, with pg_prewarm."""
    made = make(tmp_path, {"a": pair["b"], "b": pair["a"]})
    with made.connect("b") as connection:
        connection.execute("CREATE EXTENSION pg_prewarm; CREATE EXTENSION pg_buffercache")
    yield made
    made.close()


def blocks_read(cluster: Cluster, query: str) -> int:
    """Blocks that a query on the new owner does not find in its cache."""
    with cluster.connect("b") as connection:
        connection.execute("SET enable_seqscan TO off; SET enable_bitmapscan TO off")
        row: Any = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}").fetchone()
        plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
        return int(plan[0]["Plan"]["Shared Read Blocks"])


def move(cluster: Cluster, spy: Spy) -> str:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    done = cluster.runner(directory, leadership, spy).run(begin_move(directory, leadership, 1, "b", warm=True).id)
    return done.state


def test_without_an_extension_rows_and_indexes_are_read(upward: Cluster) -> None:
    read: list[int] = []

    def look() -> None:
        read.extend(blocks_read(upward, query) for query in (HEAP, INDEX))

    assert move(upward, Spy({"entered:fencing": look})) == "done"
    assert read == [0, 0]


def test_where_pg_prewarm_is_installed_every_page_is_cached(downward: Cluster) -> None:
    cached = """
        SELECT c.relkind::text, count(*) >= pg_relation_size(c.oid) / 8192
        FROM pg_buffercache b JOIN pg_class c ON pg_relation_filenode(c.oid) = b.relfilenode
        WHERE c.relname IN ('orders_t1', 'orders_t1_pkey') AND b.relforknumber = 0
          AND b.reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
        GROUP BY c.oid, c.relkind ORDER BY 1
    """
    seen: list[tuple[object, ...]] = []
    assert move(downward, Spy({"entered:fencing": lambda: seen.extend(downward.query("b", cached))})) == "done"
    assert seen == [("i", True), ("r", True)]
