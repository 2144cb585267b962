"""A created table is whole: on every node, in the directory, or nowhere."""

from datetime import date
from typing import Any

import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Bundle, Node, Put, Transaction
from balancer.errors import BalancerError, Refused, UserError
from balancer.features.tables.adopt import TableRequest, inspect
from balancer.features.tables.create import create, hash_parts, range_parts, spread
from balancer.naming import parse_name
from balancer.nodes.session.connection import Connection
from balancer.policies.keyspace.hash_leaves import Leaf, uncovered
from balancer.policies.keyspace.keys import KeyType

Nodes = dict[str, Connection]
DEFINITION = """
CREATE TABLE orders (id bigint PRIMARY KEY, note text) PARTITION BY {0} (id);
CREATE TABLE items (id bigint REFERENCES orders, n int, PRIMARY KEY (id, n)) PARTITION BY {0} (id);
"""


def wanted(layout: str) -> TableRequest:
    return TableRequest("shop", "orders", (parse_name("orders"), parse_name("items")), layout, ("id",), "test")


def test_a_hash_table_is_made_and_takes_rows(nodes: Nodes, directory: Directory, records: list[Node]) -> None:
    made = create(wanted("hash"), directory, nodes, records, "shop", tablets=8, definition=DEFINITION.format("HASH"))
    snapshot = directory.snapshot()
    assert tuple(snapshot.tablets(made.table.id)) == made.tablets
    assert [t.node for t in made.tablets] == ["a"] * 4 + ["b"] * 4
    assert made.tablets[0].partitions == ("orders_t1", "items_t1")
    found = inspect(wanted("hash"), nodes)
    assert {(t.part, t.node) for t in found.tablets} == {(t.bounds, t.node) for t in made.tablets}
    taken = 0
    for connection in nodes.values():
        for number in range(50):
            row = connection.execute(
                "SELECT EXISTS (SELECT FROM balancer.tablet t, unnest(t.partitions) p"
                " WHERE p LIKE 'orders%%' AND satisfies_hash_partition('orders'::regclass, 8,"
                " (SELECT substring(pg_get_expr(relpartbound, oid) FROM 'remainder (\\d+)')::int"
                " FROM pg_class WHERE relname = p), %s::bigint))",
                (number,),
            ).fetchone()
            if row == (True,):
                connection.execute("INSERT INTO orders VALUES (%s)", (number,))
                connection.execute("INSERT INTO items VALUES (%s, 1)", (number,))
                taken += 1
    assert taken == 50


def test_its_partitions_give_nobody_what_every_new_table_gives(
    nodes: Nodes, directory: Directory, records: list[Node]
) -> None:
    """Rights on a partition would go past the grants and policies of its root."""
    for connection in nodes.values():
        connection.execute("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC, pg_monitor")
    create(wanted("hash"), directory, nodes, records, "shop", tablets=2, definition=DEFINITION.format("HASH"))
    for connection in nodes.values():
        connection.execute("ALTER DEFAULT PRIVILEGES REVOKE SELECT ON TABLES FROM pg_monitor")
        open_to_others = connection.execute(
            "SELECT relname FROM pg_class c, aclexplode(relacl) g WHERE relispartition AND g.grantee <> relowner"
        )
        assert open_to_others.fetchall() == []


def test_a_range_table_is_cut_at_its_splits(nodes: Nodes, directory: Directory, records: list[Node]) -> None:
    made = create(
        wanted("range"),
        directory,
        nodes,
        records,
        "shop",
        tablets=1,
        splits=[10, 20, 30],
        definition=DEFINITION.format("RANGE"),
    )
    assert [t.node for t in made.tablets] == ["a", "a", "b", "b"]
    inspect(wanted("range"), nodes)


def test_the_definition_is_taken_from_a_node_that_has_the_roots(
    nodes: Nodes, directory: Directory, records: list[Node]
) -> None:
    nodes["b"].execute(DEFINITION.format("HASH"))
    create(wanted("hash"), directory, nodes, records, "shop", tablets=2)
    inspect(wanted("hash"), nodes)
    with pytest.raises(Refused, match="table orders is in the directory already"):
        create(wanted("hash"), directory, nodes, records, "shop", tablets=2)


def test_without_any_definition_it_is_refused(nodes: Nodes, directory: Directory, records: list[Node]) -> None:
    with pytest.raises(Refused, match=r"no node of the bundle has public.orders, public.items"):
        create(wanted("hash"), directory, nodes, records, "shop", tablets=2)


@pytest.mark.parametrize(
    ("layout", "definition", "splits", "sentence"),
    [
        ("hash", DEFINITION.format("RANGE"), [], r"says hash by \(id\), but public.orders is range by \(id\)"),
        ("hash", DEFINITION.format("HASH") + "ALTER TABLE items RENAME TO item", [], "public.items is not"),
        ("hash", "CREATE TABLE elsewhere (id int)", [], "the definition does not make public.orders, public.items"),
        ("hash", "CREATE TABLE orders (id int", [], "syntax error"),
        ("range", DEFINITION.format("RANGE"), [5, "x"], "'x'"),
    ],
)
def test_a_definition_with_a_mistake_leaves_nothing_and_can_be_mended(
    nodes: Nodes,
    directory: Directory,
    records: list[Node],
    layout: str,
    definition: str,
    splits: list[Any],
    sentence: str,
) -> None:
    def attempt(definition: str, splits: list[Any]) -> None:
        create(wanted(layout), directory, nodes, records, "shop", tablets=2, splits=splits, definition=definition)

    with pytest.raises(BalancerError, match=sentence):
        attempt(definition, splits)
    for connection in nodes.values():
        left = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        assert connection.execute(left).fetchall() == []
    attempt(DEFINITION.format(layout), [5])


def test_existing_partitions_are_left_to_adoption(nodes: Nodes, directory: Directory, records: list[Node]) -> None:
    nodes["a"].execute(
        DEFINITION.format("HASH")
        + """CREATE TABLE o PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0);
             CREATE TABLE i PARTITION OF items FOR VALUES WITH (MODULUS 1, REMAINDER 0)"""
    )
    with pytest.raises(Refused, match=r"has the partition public.o on node a already; take it over"):
        create(wanted("hash"), directory, nodes, records, "shop", tablets=2)


def test_a_failure_takes_away_what_was_made(nodes: Nodes, directory: Directory, records: list[Node]) -> None:
    # Node b already has a table of a name that a tablet needs.
    nodes["b"].execute("CREATE TABLE items_t4 ()")
    with pytest.raises(Refused, match='"items_t4" already exists'):
        create(wanted("hash"), directory, nodes, records, "shop", tablets=4, definition=DEFINITION.format("HASH"))
    for connection in nodes.values():
        left = connection.execute("SELECT count(*) FROM pg_inherits WHERE inhparent = 'orders'::regclass").fetchone()
        assert left == (0,)
        assert connection.execute("SELECT count(*) FROM balancer.tablet").fetchone() == (0,)
    assert not directory.snapshot().tables


def test_a_refused_commit_takes_away_what_was_made(nodes: Nodes, directory: Directory, records: list[Node]) -> None:
    # The directory knows these nodes as another bundle's: their tablets would be unlawful.
    changes = [Put(Bundle("other")), *(Put(Node(node.id, "other", node.dsn)) for node in records)]
    directory.commit(Transaction(tuple(changes), 0, "test", "test"))
    with pytest.raises(Refused, match="would break the directory"):
        create(wanted("hash"), directory, nodes, records, "shop", tablets=4, definition=DEFINITION.format("HASH"))
    left = nodes["a"].execute("SELECT count(*) FROM pg_inherits WHERE inhparent = 'orders'::regclass").fetchone()
    assert left == (0,)


@pytest.mark.quick
@pytest.mark.parametrize("count", [1, 2, 16, 64])
def test_leaves_cover_and_spread_by_weight(count: int) -> None:
    parts = hash_parts(count)
    assert uncovered(part for part in parts if isinstance(part, Leaf)) is None
    owners = spread(parts, {"a": 1.0, "b": 3.0})
    assert len(owners) == count
    assert owners == sorted(owners)
    assert abs(owners.count("b") - count * 0.75) <= 0.5


@pytest.mark.quick
@pytest.mark.parametrize(
    ("kind", "splits"),
    [
        (KeyType.NUMERIC, [1.5, 2, "1e3"]),
        (KeyType.DATE, ["2024-01-01", date(2025, 1, 1)]),
        (KeyType.TIMESTAMPTZ, ["2024-01-01 00:00+00"]),
        (KeyType.UUID, ["00000000-0000-0000-0000-000000000001"]),
        (KeyType.TEXT, ["a", ["b"]]),
    ],
)
def test_splits_may_be_written_as_in_a_file(kind: KeyType, splits: list[Any]) -> None:
    assert len(range_parts([kind], splits)) == len(splits) + 1


@pytest.mark.quick
@pytest.mark.parametrize("splits", [[5, 5], [6, 5], ["x"], [[1, 2]], [True], [1.5]])
def test_wrong_splits_are_the_users_mistake(splits: list[Any]) -> None:
    with pytest.raises(UserError, match="splits"):
        range_parts([KeyType.INTEGER], splits)
