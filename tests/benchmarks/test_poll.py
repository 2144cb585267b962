"""The poll of one node with 2,000 tablets, beside a bare SELECT of the views that hold the same figures."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from psycopg import sql

from balancer.embedded.postgres import PostgresServer
from balancer.naming import Name
from balancer.nodes.schema.install import OwnedTablet, OwnState, install_schema, write_tablets
from balancer.nodes.session.connection import Address, Connection, Timeouts
from balancer.polling.node_poll import poll_node, statement
from tests.support.opening import connect
from tests.support.servers import Database
from tests.support.tables import show_table

pytestmark = pytest.mark.bench

TABLETS = 2048  # 2,000, rounded up to a power of two so that every key has a home
ROUNDS = 15
ROOT = Name("public", "orders")

# The same columns as a monitoring system would read them.
VIEWS = """
SELECT t.relid, t.schemaname, t.relname, pg_total_relation_size(t.relid), t.n_live_tup, t.n_dead_tup, t.n_tup_ins,
       t.n_tup_upd, t.n_tup_del, t.seq_tup_read, t.idx_tup_fetch, io.heap_blks_read + coalesce(io.idx_blks_read, 0),
       io.heap_blks_hit + coalesce(io.idx_blks_hit, 0), greatest(t.last_vacuum, t.last_autovacuum)
FROM pg_stat_user_tables t JOIN pg_statio_user_tables io USING (relid)
"""


def fill(connection: Connection) -> None:
    connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text) PARTITION BY HASH (id)")
    for start in range(0, TABLETS, 128):
        with connection.transaction():
            for number in range(start, start + 128):
                connection.execute(
                    sql.SQL("CREATE TABLE {} PARTITION OF orders FOR VALUES WITH (MODULUS {}, REMAINDER {})").format(
                        sql.Identifier(f"orders_t{number}"), sql.Literal(TABLETS), sql.Literal(number)
                    )
                )
    install_schema(connection, "bench", "a")
    with connection.cursor() as cursor:
        write_tablets(
            cursor,
            [OwnedTablet(n, 1, OwnState.OWNED, (Name("public", f"orders_t{n}"),)) for n in range(TABLETS)],
        )
    connection.execute("INSERT INTO orders SELECT n, 'x' FROM generate_series(1, 60000) n")
    connection.execute("VACUUM ANALYZE orders")


def measured(connection: Connection, work: Callable[[], object]) -> tuple[float, float, float]:
    """Milliseconds: the client's median and worst, and the processor time of the server's process for each round."""
    work()
    taken = []
    before = server_seconds(connection)
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    spent = (server_seconds(connection) - before) / ROUNDS
    return statistics.median(taken) * 1e3, max(taken) * 1e3, spent * 1e3


def server_seconds(connection: Connection) -> float:
    """How long the process behind this connection has run on a processor, all its statements together."""
    return int(Path(f"/proc/{connection.info.backend_pid}/schedstat").read_text().split()[0]) / 1e9


def test_poll_of_a_node_with_2000_tablets(
    postgres18: PostgresServer, database: Callable[[PostgresServer], Database]
) -> None:
    with connect(Address("a", database(postgres18).dsn), timeouts=Timeouts(statement=120)) as connection:
        fill(connection)
        whole = measured(connection, lambda: poll_node(connection, [ROOT]))
        poll = measured(connection, lambda: poll_node(connection, [ROOT], 0))
        views = measured(connection, lambda: connection.execute(VIEWS).fetchall())
        partitions = measured(connection, lambda: connection.execute(statement([ROOT])).fetchall())
        assert len(poll_node(connection, [ROOT]).partitions) == TABLETS
    rows = [
        ("our poll", *poll),
        ("our poll once a minute, with the database's size", *whole),
        ("bare SELECT of the views", *views),
        ("our partitions alone", *partitions),
    ]
    title = f"poll of one node, {TABLETS} tablets, ms: goal server <= 100, a poll <= 1.2 x the views"
    show_table(title, ["what", "median", "worst", "server"], rows)
    show_table("", ["poll / views, client", "server"], [[poll[0] / views[0], poll[2] / views[2]]])
