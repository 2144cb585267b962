"""Migrations on servers that run out of disk, or are read by one long snapshot."""

from collections.abc import Callable

import psycopg
import pytest

from balancer.directory.model import Migration
from balancer.embedded.postgres import PostgresServer
from balancer.migration.progress import Observer
from tests.support import nemeses
from tests.support.cluster import Cluster
from tests.support.directed import complaints, move, split


def test_a_target_whose_disk_is_full_ends_the_move_and_the_source_keeps_the_tablet(
    cluster: Cluster, postgres18: PostgresServer
) -> None:
    fill = "INSERT INTO orders (id, note) SELECT n, repeat(md5(n::text), 60) FROM generate_series(5000, 15000) n"
    cluster.query("a", f"{fill} RETURNING 1")
    before = cluster.rows()["a"]
    folder = postgres18.folder / "small"
    with nemeses.small_disk(folder, 4, postgres18.data.stat().st_uid), cluster.connect("b") as connection:
        connection.execute(f"CREATE TABLESPACE small LOCATION '{folder}'".encode())
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET default_tablespace = small'.encode())
        done = move(cluster, {})
        connection.execute(f'ALTER DATABASE "{name}" RESET default_tablespace'.encode())
        connection.execute("DROP TABLESPACE small")
    folder.rmdir()
    assert done.state == "failed"
    assert "No space left on device" in done.error
    assert cluster.rows() == {"a": before, "b": {}}
    assert complaints(cluster) == []


@pytest.mark.parametrize("what", [move, split])
def test_a_dump_that_began_before_has_every_row_and_ends(
    cluster: Cluster, postgres15: PostgresServer, what: Callable[[Cluster, Observer], Migration]
) -> None:
    """It has its locks already: whatever would take rows from it waits, and then goes on."""
    with psycopg.connect(cluster.dsns["a"]) as dumping:
        dumping.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        dumping.execute("LOCK TABLE orders, orders_t1, orders_t2, orders_t3, orders_t4 IN ACCESS SHARE MODE")
        count: list[object] = []
        over: list[str] = []

        def read(point: str) -> None:
            if not over:
                count.append(dumping.execute("SELECT count(*) FROM orders").fetchone())
            if point == ("left:opening" if what is move else "left:copying"):  # a split waits for it before it swaps
                over.append(point)
                dumping.commit()

        done = what(cluster, nemeses.EveryPoint(read))
    assert done.state == "done"
    assert set(count) == {(1000,)}
    assert nemeses.dump(postgres15, cluster.dsns["a"], "public.orders") == len(cluster.rows()["a"])
