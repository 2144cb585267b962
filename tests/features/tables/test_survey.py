"""What can be taken over is found as it is; what cannot is refused, and the object is named."""

import pytest

from balancer.errors import Refused
from balancer.features.tables.survey import Found, check_coverage, survey
from balancer.naming import Name, parse_name
from balancer.nodes.catalog.bounds import KeyRange
from balancer.nodes.catalog.preflight import Needs, Severity, TableNeeds, preflight
from balancer.nodes.session.connection import Connection
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import HIGHEST, KeyType, encode_key

Nodes = dict[str, Connection]


def look(nodes: Nodes, *roots: str) -> Found:
    found = survey("orders", [parse_name(root) for root in roots or ("orders",)], nodes)
    check_coverage("orders", found.roots[0].columns, found.tablets)
    return found


def on(nodes: Nodes, node: str, statements: str) -> None:
    nodes[node].execute(statements)


def test_a_hash_table_over_two_nodes_with_any_names(nodes: Nodes) -> None:
    root = "CREATE TABLE orders (id bigint, who text) PARTITION BY HASH (id, who);"
    on(nodes, "a", root + 'CREATE TABLE "Erste Hälfte" PARTITION OF orders FOR VALUES WITH (MODULUS 2, REMAINDER 0)')
    on(
        nodes,
        "b",
        root
        + """CREATE TABLE q1 PARTITION OF orders FOR VALUES WITH (MODULUS 4, REMAINDER 1);
             CREATE TABLE q3 PARTITION OF orders FOR VALUES WITH (MODULUS 4, REMAINDER 3)""",
    )
    found = look(nodes)
    assert {(t.node, t.part, t.partitions) for t in found.tablets} == {
        ("a", Leaf(2, 0), (Name("public", "Erste Hälfte"),)),
        ("b", Leaf(4, 1), (Name("public", "q1"),)),
        ("b", Leaf(4, 3), (Name("public", "q3"),)),
    }
    assert found.roots[0].key_types == (KeyType.BIGINT, KeyType.TEXT)


def test_a_range_table_on_one_node_only(nodes: Nodes) -> None:
    on(
        nodes,
        "b",
        """CREATE SCHEMA shop;
           CREATE TABLE shop.orders (at timestamptz, n int2) PARTITION BY RANGE (at, n);
           CREATE UNLOGGED TABLE shop.old PARTITION OF shop.orders
               FOR VALUES FROM (MINVALUE, MINVALUE) TO ('2024-01-01 03:00+03', MINVALUE);
           CREATE TABLE shop.new PARTITION OF shop.orders
               FOR VALUES FROM ('2024-01-01', MINVALUE) TO (MAXVALUE, MAXVALUE)""",
    )
    found = look(nodes, "shop.orders")
    assert found.without == ("a",)
    assert found.home == "b"
    assert "shop.old is unlogged" in found.notes[0]
    parts = {t.partitions[0].name: t.part for t in found.tablets}
    assert isinstance(parts["old"], KeyRange)
    assert isinstance(parts["new"], KeyRange)
    assert parts["old"].upper == parts["new"].lower
    assert (parts["old"].lower, parts["new"].upper) == (b"", HIGHEST)


def test_colocated_roots_make_one_tablet_of_their_partitions(nodes: Nodes) -> None:
    for root in ("orders", "items"):
        on(nodes, "a", f"CREATE TABLE {root} (id int) PARTITION BY RANGE (id)")
        on(nodes, "a", f"CREATE TABLE {root}_x PARTITION OF {root} FOR VALUES FROM (MINVALUE) TO (5)")
        on(nodes, "a", f"CREATE TABLE {root}_y PARTITION OF {root} FOR VALUES FROM (5) TO (MAXVALUE)")
    found = look(nodes, "orders", "items")
    five = encode_key([KeyType.INTEGER], [5])
    assert {(t.part, t.partitions) for t in found.tablets} == {
        (KeyRange(b"", five), (Name("public", "orders_x"), Name("public", "items_x"))),
        (KeyRange(five, HIGHEST), (Name("public", "orders_y"), Name("public", "items_y"))),
    }


HASHED = "CREATE TABLE orders (id int) PARTITION BY HASH (id);"
RANGED = "CREATE TABLE orders (id int) PARTITION BY RANGE (id);"


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        ("CREATE TABLE orders (id int)", "public.orders is not a partitioned table"),
        ("CREATE TABLE orders (id int) PARTITION BY LIST (id)", "public.orders is partitioned by LIST"),
        (
            RANGED + "CREATE TABLE rest PARTITION OF orders DEFAULT",
            "public.orders has the DEFAULT partition public.rest",
        ),
        (
            RANGED + "CREATE TABLE sub PARTITION OF orders FOR VALUES FROM (1) TO (2) PARTITION BY HASH (id)",
            "partition public.sub has partitions of its own",
        ),
        (
            (
                "CREATE TABLE top (id int) PARTITION BY HASH (id);"
                "CREATE TABLE orders PARTITION OF top FOR VALUES WITH (MODULUS 2, REMAINDER 0) PARTITION BY HASH (id)"
            ),
            "public.orders is itself a partition",
        ),
        (
            "CREATE TABLE orders (id int) PARTITION BY HASH ((id + 1))",
            "the key of public.orders contains an expression",
        ),
        (
            "CREATE TABLE orders (id varchar) PARTITION BY HASH (id)",
            'key column "id" of public.orders is of type character varying; supported are smallint',
        ),
        (
            'CREATE TABLE orders (id text COLLATE "und-x-icu") PARTITION BY RANGE (id)',
            'key column "id" of public.orders has the collation "und-x-icu"; .* collation C only',
        ),
        (
            (
                "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
                "CREATE TABLE orders (id text COLLATE loose) PARTITION BY HASH (id)"
            ),
            'key column "id" of public.orders has the nondeterministic collation "loose"',
        ),
        (
            "CREATE TABLE orders (id text) PARTITION BY RANGE (id text_pattern_ops)",
            'key column "id" of public.orders uses the operator class text_pattern_ops',
        ),
        (
            HASHED + "CREATE TABLE third PARTITION OF orders FOR VALUES WITH (MODULUS 3, REMAINDER 0)",
            "partition public.third: .* modulus 3 is not a power of two",
        ),
        (
            HASHED + "CREATE TABLE half PARTITION OF orders FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
            "orders leaves a gap after public.half on node a; every remainder",
        ),
        (
            RANGED + "CREATE TABLE p PARTITION OF orders FOR VALUES FROM (1) TO (MAXVALUE)",
            r"orders leaves a gap before public.p on node a; make a partition FOR VALUES FROM \(MINVALUE\) TO \('1'",
        ),
        (HASHED, "orders has no partitions on any node"),
        (
            HASHED + "CREATE SCHEMA s;CREATE TABLE s.p PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
            "partition s.p is not in the schema of its root public.orders",
        ),
        (
            RANGED + "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
            "CREATE FOREIGN TABLE far PARTITION OF orders FOR VALUES FROM (1) TO (2) SERVER s",
            "partition public.far is a foreign table",
        ),
        (
            (
                "CREATE TABLE orders (at timestamptz) PARTITION BY RANGE (at);"
                "CREATE TABLE p PARTITION OF orders FOR VALUES FROM ('0044-03-15 BC') TO (MAXVALUE)"
            ),
            "partition public.p: .*BC' cannot be used as a key",
        ),
        ("", "no node of the bundle has public.orders"),
    ],
)
def test_what_cannot_be_adopted_is_named(nodes: Nodes, statements: str, reason: str) -> None:
    if statements:
        on(nodes, "a", statements)
    with pytest.raises(Refused, match=reason):
        look(nodes)


def test_a_custom_hash_operator_class_is_named(nodes: Nodes) -> None:
    on(
        nodes,
        "b",
        """CREATE FUNCTION odd(int, int8) RETURNS int8 LANGUAGE sql IMMUTABLE AS 'SELECT 1::int8';
           CREATE OPERATOR CLASS odd_ops FOR TYPE int USING hash AS OPERATOR 1 =, FUNCTION 2 odd(int, int8);
           CREATE TABLE orders (id int) PARTITION BY HASH (id odd_ops)""",
    )
    with pytest.raises(Refused, match=r'node b: key column "id" of public.orders uses the operator class odd_ops'):
        look(nodes)


def test_the_same_part_on_two_nodes_is_an_overlap(nodes: Nodes) -> None:
    for node in nodes:
        on(nodes, node, RANGED + "CREATE TABLE p PARTITION OF orders FOR VALUES FROM (MINVALUE) TO (MAXVALUE)")
    with pytest.raises(Refused, match=r"public.p on node a and public.p on node b overlap"):
        look(nodes)


def test_roots_that_differ_between_nodes_are_named(nodes: Nodes) -> None:
    on(nodes, "a", HASHED)
    on(nodes, "b", "CREATE TABLE orders (id bigint) PARTITION BY HASH (id)")
    expected = r"public.orders is hash by \(id integer\) on node a, but hash by \(id bigint\) on b"
    with pytest.raises(Refused, match=expected):
        look(nodes)


def test_colocated_roots_must_agree(nodes: Nodes) -> None:
    on(nodes, "a", HASHED)
    with pytest.raises(Refused, match=r"public.orders is there, but public.items is not"):
        look(nodes, "orders", "items")
    on(nodes, "a", "CREATE TABLE items (id int, n int) PARTITION BY HASH (id, n)")
    with pytest.raises(Refused, match=r"public.items is hash by \(id integer, n integer\), but public.orders is"):
        look(nodes, "orders", "items")
    on(nodes, "a", "DROP TABLE items; CREATE TABLE items (id int) PARTITION BY HASH (id)")
    on(nodes, "a", "CREATE TABLE p PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    with pytest.raises(Refused, match=r"partition public.p has no counterpart with the same bound in public.items"):
        look(nodes, "orders", "items")


def test_a_half_detached_partition_is_named_with_the_remedy(nodes: Nodes) -> None:
    on(nodes, "a", HASHED + "CREATE TABLE p PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    on(nodes, "a", "UPDATE pg_inherits SET inhdetachpending = true WHERE inhrelid = 'p'::regclass")
    with pytest.raises(Refused, match=r"ALTER TABLE public.orders DETACH PARTITION public.p FINALIZE"):
        look(nodes)


def test_columns_that_mean_less_on_another_node_are_noted(nodes: dict[str, Connection]) -> None:
    nodes["a"].execute(
        """
        CREATE SEQUENCE "fast %s" CACHE 20;
        CREATE SEQUENCE slow;
        CREATE DOMAIN lo AS oid;
        CREATE TABLE orders (
            id int, a bigint DEFAULT nextval('"fast %s"'), b bigint DEFAULT nextval('slow'), picture lo, other oid
        ) PARTITION BY HASH (id);
        CREATE TABLE o PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0);
        """
    )
    notes = survey("orders", [Name("public", "orders")], nodes).notes
    assert [note.split(":")[1].strip() for note in notes] == [
        'sequence "fast %s" has CACHE 20',
        'column "picture" of public.orders is of type lo',
        'column "other" of public.orders is of type oid',
    ]
    found = preflight(nodes["a"], Needs((TableNeeds((Name("public", "orders"),), ("id",)),)))
    texts = [finding.text for finding in found if finding.level is Severity.WARNING]
    assert [f"node a: {text}" for text in texts if "CACHE" in text or "large objects" in text] == list(notes)
