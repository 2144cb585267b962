"""A converted table is a table like any other: its one tablet splits and moves, and the way back is shut then."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Node
from balancer.errors import Refused
from balancer.features.convert.run import convert, unconvert
from balancer.features.repair.doctor import examine
from balancer.migration.begin import begin_move
from balancer.nodes.session.connection import Connection
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import KeyType, encode_key
from balancer.settings import MigrationSettings
from tests.support.cluster import AMPLE, Cluster
from tests.support.converting import request_of, workplace
from tests.support.resharding import begin_merge, begin_split
from tests.support.servers import Database

TABLES = """
CREATE TABLE public.orders (id bigint PRIMARY KEY, user_id bigint NOT NULL, note text);
CREATE TABLE public.items (user_id bigint, order_id bigint, line int, PRIMARY KEY (user_id, order_id, line));
CREATE VIEW public.both_tables AS SELECT o.id, i.line FROM public.orders o JOIN public.items i ON i.order_id = o.id;
INSERT INTO public.orders SELECT n, n % 97, 'row' FROM generate_series(1, 1000) AS n;
INSERT INTO public.items SELECT user_id, id, 1 FROM public.orders;
"""


@pytest.fixture
def cluster(
    tmp_path: Path,
    databases: dict[str, Database],
    nodes: dict[str, Connection],
    directory: Directory,
    records: list[Node],
    layout: str,
) -> Iterator[Cluster]:
    nodes["a"].execute(TABLES.encode())
    wanted = request_of(layout=layout)
    done = convert(wanted, directory, nodes, records, "directory", workplace=workplace(), widen=True)
    settings = MigrationSettings(retire_grace=0.0, **AMPLE)
    dsns = {name: database.dsn for name, database in databases.items()}
    made = Cluster(tmp_path, dsns, done.adopted.table, settings)
    yield made
    made.close()


def counts(cluster: Cluster) -> list[tuple[object, ...]]:
    question = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM items)"
    return [row for node in cluster.dsns for row in cluster.query(node, question)]


@pytest.mark.parametrize("layout", ["hash", "range"])
def test_the_one_tablet_splits_and_moves(
    cluster: Cluster, directory: Directory, nodes: dict[str, Connection], layout: str
) -> None:
    [tablet] = cluster.tablets()
    assert tablet.partitions == ("orders_t0", "items_t0")
    assert layout == "range" or tablet.bounds == Leaf(1, 0)
    leadership = cluster.become_leader(directory)
    runner = cluster.runner(directory, leadership)
    cuts = [] if layout == "hash" else [encode_key((KeyType.BIGINT,), (40,))]
    halves = runner.run(begin_split(directory, leadership, tablet.id, cuts).id)
    assert (halves.state, halves.error) == ("done", "")
    moved = runner.run(begin_move(directory, leadership, halves.targets[1].id, "b").id)
    assert (moved.state, moved.error) == ("done", "")
    (first, items), (second, more) = counts(cluster)
    assert (int(str(first)) + int(str(second)), int(str(items)) + int(str(more))) == (1000, 1000)
    assert int(str(second)) > 0
    assert examine(directory, cluster.address) == []
    assert cluster.query("a", "SELECT count(*) FROM both_tables") == [(first,)]
    with pytest.raises(Refused, match="table orders has 2 tablets: merge them until there is one, then undo it"):
        unconvert(request_of(layout=layout), directory, nodes, workplace=workplace())


@pytest.mark.parametrize("layout", ["hash"])
def test_a_table_that_was_split_merged_and_moved_becomes_a_plain_one_where_it_is(
    cluster: Cluster, directory: Directory, nodes: dict[str, Connection], layout: str
) -> None:
    [tablet] = cluster.tablets()
    leadership = cluster.become_leader(directory)
    runner = cluster.runner(directory, leadership)
    halves = runner.run(begin_split(directory, leadership, tablet.id).id).targets
    whole = runner.run(begin_merge(directory, leadership, [half.id for half in halves]).id).targets[0]
    moved = runner.run(begin_move(directory, leadership, whole.id, "b").id)
    assert (moved.state, moved.error) == ("done", "")
    done = unconvert(request_of(layout=layout), directory, nodes, workplace=workplace())
    assert (done.node, done.kept) == ("b", ("a",))
    assert counts(cluster) == [(0, 0), (1000, 1000)]
    names = (
        "SELECT relkind::text, relname FROM pg_class WHERE relname ~ '^(orders|items)' AND relkind <> 'i' ORDER BY 2"
    )
    assert nodes["b"].execute(names).fetchall() == [("r", "items"), ("r", "orders")]
    keys = "SELECT conname FROM pg_constraint WHERE conrelid = 'public.orders'::regclass AND contype = 'p'"
    assert nodes["b"].execute(keys).fetchall() == [("orders_pkey",)]
