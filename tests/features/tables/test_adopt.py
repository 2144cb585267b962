"""An adopted table is in the directory as it is on the nodes, and the nodes know what they own."""

import os
import subprocess

import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Layout, Node, RangeBounds
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Refused
from balancer.features.tables.adopt import TableRequest, adopt, inspect
from balancer.naming import parse_name
from balancer.nodes.schema.install import OwnState, read_tablets
from balancer.nodes.session.connection import Connection
from balancer.policies.keyspace.hash_leaves import Leaf
from tests.support.servers import Database

Nodes = dict[str, Connection]


def request_of(roots: str, layout: str, key: str) -> TableRequest:
    names = tuple(parse_name(root) for root in roots.split(","))
    return TableRequest("shop", "orders", names, layout, tuple(key.split(",")), "test")


def pgbench(database: Database, method: str) -> None:
    arguments = ["-i", "-q", "--scale=1", "--partitions=16", f"--partition-method={method}", database.name]
    environment = {
        **os.environ,
        "PGHOST": "127.0.0.1",
        "PGPORT": str(database.server.port),
        "PGUSER": "postgres",
        "PGPASSWORD": database.server.password(),
    }
    program = str(database.server.program("pgbench"))
    subprocess.run([program, *arguments], env=environment, check=True, capture_output=True)


@pytest.mark.parametrize("case", ["hash a", "range a", "hash b", "range b"])
def test_what_pgbench_made_is_adopted_as_it_is(
    databases: dict[str, Database], nodes: Nodes, directory: Directory, records: list[Node], case: str
) -> None:
    method, node = case.split()
    pgbench(databases[node], method)
    adopted = adopt(request_of("pgbench_accounts", method, "aid"), directory, nodes, records, "shop")
    snapshot = directory.snapshot()
    table = snapshot.table("orders")
    tablets = snapshot.tablets(table.id)
    assert (table.layout, table.roots) == (Layout(method), ("public.pgbench_accounts",))
    assert [t.id for t in tablets] == list(range(1, 17))
    assert {t.partitions[0] for t in tablets} == {f"pgbench_accounts_{n}" for n in range(1, 17)}
    assert {t.node for t in tablets} == {node}
    assert {isinstance(t.bounds, Leaf if method == "hash" else RangeBounds) for t in tablets} == {True}
    assert adopted.tablets == tuple(tablets)
    with nodes[node].cursor() as cursor:
        rows = read_tablets(cursor)
    assert [(row.id, row.epoch, row.state) for row in rows] == [(n, 1, OwnState.OWNED) for n in range(1, 17)]
    other = nodes["b" if node == "a" else "a"]
    count = "SELECT count(*), (SELECT count(*) FROM pg_inherits WHERE inhparent = 'pgbench_accounts'::regclass)"
    assert other.execute(f"{count} FROM pgbench_accounts").fetchone() == (0, 0)
    assert nodes[node].execute(f"{count} FROM pgbench_accounts").fetchone() == (100000, 16)


def two_halves(nodes: Nodes) -> None:
    for number, connection in enumerate(nodes.values()):
        connection.execute("CREATE TABLE orders (id int) PARTITION BY HASH (id)")
        connection.execute(
            f"CREATE TABLE half{number} PARTITION OF orders FOR VALUES WITH (MODULUS 2, REMAINDER {number})"
        )


def test_adopting_again_repairs_what_an_interruption_left(
    nodes: Nodes, directory: Directory, records: list[Node]
) -> None:
    two_halves(nodes)
    wanted = request_of("orders", "hash", "id")
    adopt(wanted, directory, nodes, records, "shop")
    version = directory.snapshot().version
    nodes["b"].execute("DELETE FROM balancer.tablet")
    nodes["a"].execute("UPDATE balancer.tablet SET state = 'moved', moved_to = 'b', epoch = 2")
    adopt(wanted, directory, nodes, records, "shop")
    assert directory.snapshot().version == version
    assert nodes["b"].execute("SELECT id, state FROM balancer.tablet").fetchall() == [(2, "owned")]
    assert nodes["a"].execute("SELECT id, state FROM balancer.tablet").fetchall() == [(1, "moved")]


def test_a_table_that_differs_from_its_record_is_refused(
    nodes: Nodes, directory: Directory, records: list[Node]
) -> None:
    two_halves(nodes)
    wanted = request_of("orders", "hash", "id")
    adopt(wanted, directory, nodes, records, "shop")
    nodes["a"].execute("ALTER TABLE half0 RENAME TO other")
    with pytest.raises(Refused, match="in the directory already, with other tablets"):
        adopt(wanted, directory, nodes, records, "shop")


def test_a_dry_run_changes_nothing(nodes: Nodes, directory: Directory) -> None:
    two_halves(nodes)
    found = inspect(request_of("orders", "hash", "id"), nodes)
    assert len(found.tablets) == 2
    assert directory.snapshot().version == 0
    assert nodes["a"].execute("SELECT to_regnamespace('balancer')").fetchone() == (None,)


def test_a_file_that_says_something_else_is_refused(nodes: Nodes) -> None:
    two_halves(nodes)
    with pytest.raises(Refused, match=r"the bundle's file says range by \(id\), but public.orders is hash by \(id\)"):
        inspect(request_of("orders", "range", "id"), nodes)


def test_colocated_roots_are_given_to_a_node_that_lacks_them(
    nodes: Nodes, directory: Directory, records: list[Node]
) -> None:
    nodes["a"].execute(
        """
        CREATE SCHEMA "Shop";
        CREATE TABLE "Shop".orders (
            id bigint PRIMARY KEY, name text COLLATE "C" DEFAULT 'it''s' NOT NULL, at timestamptz DEFAULT now(),
            twice bigint GENERATED ALWAYS AS (id * 2) STORED, CHECK (name <> 'x')
        ) PARTITION BY HASH (id);
        CREATE INDEX by_name ON "Shop".orders (lower(name)) WHERE name > 'a';
        CREATE TABLE "Shop".items (id bigint REFERENCES "Shop".orders, n numeric(10, 2), UNIQUE (id, n))
            PARTITION BY HASH (id);
        GRANT SELECT ON "Shop".orders TO PUBLIC;
        CREATE TABLE "Shop".o PARTITION OF "Shop".orders FOR VALUES WITH (MODULUS 1, REMAINDER 0);
        CREATE TABLE "Shop".i PARTITION OF "Shop".items FOR VALUES WITH (MODULUS 1, REMAINDER 0);
        """
    )
    adopt(request_of('"Shop".orders,"Shop".items', "hash", "id"), directory, nodes, records, "shop")
    assert directory.snapshot().table("orders").roots == ('"Shop".orders', '"Shop".items')
    for question in (
        """SELECT attrelid::regclass::text, attname, format_type(atttypid, atttypmod), attnotnull, attgenerated,
                  attcollation, pg_get_expr(adbin, adrelid)
           FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
           WHERE attrelid IN ('"Shop".orders'::regclass, '"Shop".items'::regclass) AND attnum > 0 ORDER BY 1, 2""",
        """SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
           WHERE conrelid IN ('"Shop".orders'::regclass, '"Shop".items'::regclass) AND contype <> 'n'
             AND conparentid = 0 ORDER BY 1""",
        """SELECT pg_get_indexdef(indexrelid) FROM pg_index
           WHERE indrelid IN ('"Shop".orders'::regclass, '"Shop".items'::regclass) ORDER BY 1""",
        """SELECT relname, has_table_privilege('pg_monitor', oid, 'SELECT'), relowner::regrole::text,
                  pg_get_partkeydef(oid) FROM pg_class
           WHERE relnamespace = '"Shop"'::regnamespace AND relkind = 'p' ORDER BY 1""",
    ):
        assert nodes["b"].execute(question).fetchall() == nodes["a"].execute(question).fetchall()


def test_a_root_that_draws_from_a_sequence_is_not_copied(
    nodes: Nodes, directory: Directory, records: list[Node]
) -> None:
    nodes["a"].execute(
        """CREATE TABLE orders (id bigserial, n int) PARTITION BY HASH (id);
           CREATE TABLE o PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0)"""
    )
    with pytest.raises(Refused, match=r'column "id" of public.orders draws from a sequence'):
        adopt(request_of("orders", "hash", "id"), directory, nodes, records, "shop")
    assert directory.snapshot().version == 0


def test_a_database_of_another_cluster_is_refused(
    nodes: Nodes, directory: Directory, records: list[Node], postgres18: PostgresServer
) -> None:
    two_halves(nodes)
    adopt(request_of("orders", "hash", "id"), directory, nodes, records, "shop")
    with pytest.raises(Refused, match="this database is node a of cluster shop"):
        adopt(request_of("orders", "hash", "id"), directory, nodes, records, "another")
