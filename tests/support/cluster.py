"""A small cluster for tests of migrations: databases as nodes, a SQLite directory, a table with rows.

Everything is real; only the daemon's loop is left out. `Cluster.become_leader` is what a daemon does first.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import finalize

import psycopg

from balancer.clock import SystemClock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.invariants import TABLET_COUNTER
from balancer.directory.model import (
    Bundle,
    Counter,
    KeyColumn,
    Layout,
    Node,
    Put,
    RangeBounds,
    Record,
    Table,
    Tablet,
    Transaction,
)
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.migration.context import places
from balancer.migration.progress import Observer
from balancer.migration.runner import Runner
from balancer.naming import cluster_name
from balancer.nodes.catalog.bounds import check_expression, for_values
from balancer.nodes.schema.install import OwnedTablet, OwnState, install_schema, write_tablets
from balancer.nodes.session.connection import Address, Connection
from balancer.nodes.session.holder import looks_alive
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import HIGHEST, LOWEST, KeyType, encode_key
from balancer.settings import MigrationSettings
from tests.support.opening import connect

AMPLE: dict[str, Any] = {"write_pause_budget": 5.0, "fence_deadline": 10.0, "lock_timeout": 1.0, "retry_patience": 90.0}
"""For tests that are not about the pause: a busy machine must not decide them."""
QUICK = MigrationSettings(retire_grace=0.0, retry_patience=20.0, retry_back_off=0.05, chunk_size=8192)
"""A page is a chunk: nearly every copy has several."""

COLUMNS = "(id bigint NOT NULL, n bigint NOT NULL DEFAULT 0, note text, PRIMARY KEY (id))"


@dataclass
class Cluster:
    """Nodes, a directory and one table."""

    folder: Path
    dsns: dict[str, str]
    table: Table
    settings: MigrationSettings = QUICK
    url: str = ""
    _open: list[Directory] = field(default_factory=list)
    _idle: dict[str, list[psycopg.Connection[tuple[object, ...]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.url = self.url or f"sqlite://{self.folder / 'directory.db'}"
        finalize(self, _close, self._idle)

    def address(self, node: str) -> Address:
        return Address(node, self.dsns[node], trusts_owners=self.settings.trust_table_owners)

    def connect(self, node: str) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.dsns[node], autocommit=True)

    def directory(self) -> Directory:
        """The directory, opened again, as another process would."""
        opened = open_directory(self.url, lease=10.0)
        self._open.append(opened)
        return opened

    def become_leader(self, directory: Directory) -> Leadership:
        leadership = directory.campaign("test", 20.0)
        assert leadership is not None
        return leadership

    def runner(self, directory: Directory, leadership: Leadership, observer: Observer | None = None) -> Runner:
        return Runner(directory, leadership, self.address, self.settings, clock=SystemClock(), observer=observer)

    @contextmanager
    def session(self, node: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
        """A session of its own, reset for reuse by the next caller: starting one costs more than most answers."""
        idle = self._idle.setdefault(self.dsns[node], [])
        connection = idle.pop() if idle else self.connect(node)
        if not looks_alive(connection):
            connection.close()
            connection = self.connect(node)
        connection.prepare_threshold = None  # the next would find what is prepared discarded
        try:
            yield connection
            connection.execute("DISCARD ALL")
        except BaseException:
            connection.close()
            raise
        idle.append(connection)

    def query(self, node: str, statement: str) -> list[tuple[object, ...]]:
        with self.session(node) as connection:
            return connection.execute(statement.encode()).fetchall()

    def tablets(self) -> list[Tablet]:
        """As the directory has them now."""
        return list(self.directory().snapshot().tablets(self.table.id))

    def rows(self) -> dict[str, dict[int, int]]:
        """What each node's root shows: node → id → n."""
        root = self.table.roots[0]
        return {
            node: {int(str(i)): int(str(n)) for i, n in self.query(node, f"SELECT id, n FROM {root}")}
            for node in self.dsns
        }

    def close(self) -> None:
        for directory in self._open:
            directory.close()
        _close(self._idle)


def _close(idle: dict[str, list[psycopg.Connection[tuple[object, ...]]]]) -> None:
    for connection in (connection for connections in idle.values() for connection in connections):
        connection.close()


def hash_table(roots: Sequence[str] = ("public.orders",)) -> Table:
    return Table(1, "orders", "shop", Layout.HASH, (KeyColumn("id", KeyType.BIGINT),), tuple(roots))


def range_table(roots: Sequence[str] = ("public.orders",)) -> Table:
    return Table(1, "orders", "shop", Layout.RANGE, (KeyColumn("id", KeyType.BIGINT),), tuple(roots))


def hash_tablets(count: int, nodes: Sequence[str]) -> list[Tablet]:
    return [Tablet(i + 1, 1, Leaf(count, i), nodes[i % len(nodes)]) for i in range(count)]


def range_tablets(cuts: Sequence[int], nodes: Sequence[str]) -> list[Tablet]:
    edges = [LOWEST, *(encode_key((KeyType.BIGINT,), (cut,)) for cut in cuts), HIGHEST]
    return [Tablet(i + 1, 1, RangeBounds(edges[i], edges[i + 1]), nodes[i % len(nodes)]) for i in range(len(edges) - 1)]


def build(
    folder: Path,
    dsns: dict[str, str],
    table: Table,
    tablets: Sequence[Tablet],
    columns: str | None = COLUMNS,
    *,
    url: str = "",
) -> Cluster:
    """Makes the roots on every node, the partitions on their owners, and the directory that says so."""

    def make(connection: Connection, node: str) -> None:
        method = "HASH" if table.layout is Layout.HASH else "RANGE"
        for root in table.roots if columns else ():  # None: the caller has made them
            connection.execute(f"CREATE TABLE {root} {columns} PARTITION BY {method} (id)".encode())
        for place in (place for tablet in tablets if tablet.node == node for place in places(table, tablet)):
            bounds = for_values(place.columns, place.part).as_string(connection)
            connection.execute(f"CREATE TABLE {place.partition} PARTITION OF {place.root} {bounds}".encode())

    return adopt(folder, dsns, table, tablets, url=url, first=make)


def adopt(
    folder: Path,
    dsns: dict[str, str],
    table: Table,
    tablets: Sequence[Tablet],
    *,
    url: str = "",
    first: Callable[[Connection, str], None] = lambda connection, node: None,
) -> Cluster:
    """Makes a cluster of roots and partitions that exist, or that `first` makes: our schema on the nodes, and a
    directory."""
    cluster = Cluster(folder, dsns, table, url=url)
    for node, dsn in dsns.items():
        with connect(Address(node, dsn)) as connection, connection.cursor() as cursor:
            first(connection, node)
            become_node(connection, cluster_name(cluster.url), node)
            rows = [
                OwnedTablet(t.id, t.epoch, OwnState.OWNED, tuple(p.partition for p in places(table, t)))
                for t in tablets
                if t.node == node
            ]
            write_tablets(cursor, rows)
    describe(cluster, tablets)
    return cluster


def blank_node(connection: Connection) -> None:
    """For `new_database`: a node that `become_node` gives its name. Our schema takes longer than a small table."""
    install_schema(connection, "", "")


def become_node(connection: Connection, cluster: str, node: str) -> None:
    """Our schema with this name, whether or not the database comes from `blank_node`."""
    there = connection.execute("SELECT to_regclass('balancer.node') IS NOT NULL").fetchone() == (True,)
    named = "UPDATE balancer.node SET cluster = %s, node = %s WHERE (cluster, node) = ('', '')"
    if not there or connection.execute(named, (cluster, node)).rowcount == 0:
        install_schema(connection, cluster, node)


def describe(cluster: Cluster, tablets: Sequence[Tablet]) -> None:
    """Fills the directory of a cluster whose nodes are ready."""
    nodes = [Node(node, "shop", dsn) for node, dsn in cluster.dsns.items()]
    records: list[Record] = [Bundle("shop"), *nodes, cluster.table, *tablets]
    cluster.directory().commit(
        Transaction((*map(Put, records), Put(Counter(TABLET_COUNTER, 1000))), 0, "a test's cluster", "test")
    )


def insert_rows(cluster: Cluster, tablets: Sequence[Tablet], ids: range) -> None:
    """Puts each row on the node whose root takes it."""
    root = cluster.table.roots[0]
    fresh = f"generate_series({ids.start}::bigint, {ids.stop - 1}, {ids.step}) AS fresh (id)"
    for node in cluster.dsns:
        with cluster.session(node) as connection:
            for tablet in (tablet for tablet in tablets if tablet.node == node):
                rows = f"SELECT id, 'row ' || id FROM {fresh} WHERE (SELECT {_takes(cluster, tablet)})"
                connection.execute(f"INSERT INTO {root} (id, note) {rows}".encode())


def _takes(cluster: Cluster, tablet: Tablet) -> str:
    place = places(cluster.table, tablet)[0]
    bounds = tablet.bounds
    if isinstance(bounds, Leaf):
        return f"satisfies_hash_partition('{place.root}'::regclass, {bounds.modulus}, {bounds.remainder}, id)"
    return check_expression(place.columns, place.part, 0).as_string(None)


def start_server(folder: Path, binaries: Path) -> PostgresServer:
    server = PostgresServer(folder, binaries)
    server.start()
    return server
