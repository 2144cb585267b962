"""A root that adoption makes on another node does there what it does at home: nobody sees or may do more."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Node
from balancer.errors import Refused
from balancer.features.tables.adopt import TableRequest, adopt, inspect
from balancer.naming import Name
from balancer.nodes.catalog.roots import differences, read_facts
from balancer.nodes.session.connection import Connection

Nodes = dict[str, Connection]
REQUEST = TableRequest("shop", "orders", (Name("public", "orders"),), "hash", ("id",), "test")
LEAF = "CREATE TABLE orders_1 PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
PLAIN = "CREATE TABLE orders (id bigint PRIMARY KEY, who text, n int) PARTITION BY HASH (id)"
ROOT = """
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
    CREATE TABLE orders (id bigint PRIMARY KEY, who name DEFAULT current_user, n int, note text) PARTITION BY HASH (id);
    ALTER TABLE orders OWNER TO {role};
    CREATE POLICY "own %s {{}}" ON orders FOR SELECT TO {role}, pg_monitor USING (who = current_user);
    CREATE POLICY small ON orders AS RESTRICTIVE USING (n < 100) WITH CHECK (n < 50 AND note <> '; {{}} %s');
    ALTER TABLE orders ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE TRIGGER each BEFORE INSERT OR UPDATE OF n ON orders FOR EACH ROW WHEN (NEW.n > 1) EXECUTE FUNCTION note('x');
    CREATE TRIGGER once AFTER DELETE ON orders REFERENCING OLD TABLE AS gone EXECUTE FUNCTION note();
    CREATE TRIGGER never BEFORE INSERT ON orders FOR EACH STATEMENT EXECUTE FUNCTION note();
    ALTER TABLE orders DISABLE TRIGGER never;
    ALTER TABLE orders ENABLE ALWAYS TRIGGER once;
    GRANT SELECT, INSERT ON orders TO pg_monitor WITH GRANT OPTION;
    GRANT UPDATE (n), REFERENCES (id) ON orders TO PUBLIC;
    REVOKE TRUNCATE ON orders FROM {role};
    ALTER TABLE orders ALTER note SET STORAGE EXTERNAL, ALTER note SET STATISTICS 500, ALTER n SET (n_distinct = 7);
    CREATE STATISTICS "two {{}} %s" (dependencies) ON who, n FROM orders;
    ALTER STATISTICS "two {{}} %s" SET STATISTICS 50;
    COMMENT ON TABLE orders IS 'all {{}} %s ''orders''';
    COMMENT ON COLUMN orders.n IS 'how many';
    COMMENT ON POLICY small ON orders IS 'not much';
    COMMENT ON TRIGGER each ON orders IS 'watch';
    COMMENT ON STATISTICS "two {{}} %s" IS 'both';
    COMMENT ON CONSTRAINT orders_pkey ON orders IS 'the key';
"""
SETTINGS = """
    SELECT attname, attstorage::text, coalesce(attstattarget, -1)::int, attoptions::text,
           col_description(attrelid, attnum)
    FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attnum > 0 ORDER BY attnum
"""
OTHERS = """
    SELECT obj_description(c.oid, 'pg_class'), pg_get_statisticsobjdef(s.oid), s.stxstattarget::int,
           pg_get_userbyid(s.stxowner), obj_description(s.oid, 'pg_statistic_ext'),
           (SELECT obj_description(oid, 'pg_policy') FROM pg_policy WHERE polname = 'small'),
           (SELECT obj_description(oid, 'pg_trigger') FROM pg_trigger WHERE tgname = 'each' AND tgrelid = c.oid),
           (SELECT obj_description(oid, 'pg_constraint') FROM pg_constraint WHERE conname = 'orders_pkey')
    FROM pg_class c JOIN pg_statistic_ext s ON s.stxrelid = c.oid WHERE c.oid = 'orders'::regclass
"""


@pytest.fixture
def role(nodes: Nodes) -> Iterator[str]:
    """A plain role on both servers."""
    name = f"r{uuid4().hex[:8]}"
    for connection in nodes.values():
        connection.execute(f"CREATE ROLE {name}; GRANT ALL ON SCHEMA public TO {name}")
    yield name
    for connection in nodes.values():
        connection.execute(f"RESET ROLE; DROP OWNED BY {name} CASCADE; DROP ROLE IF EXISTS {name}")


def facts(connection: Connection) -> dict[str, str]:
    with connection.cursor() as cursor:
        return dict(read_facts(cursor, Name("public", "orders")))


@pytest.mark.parametrize(("home", "other"), [("a", "b"), ("b", "a")])
def test_everything_a_root_has_is_made_on_the_other_node(
    nodes: Nodes, directory: Directory, records: list[Node], role: str, home: str, other: str
) -> None:
    for connection in nodes.values():
        connection.execute("SET search_path = public")
    nodes[home].execute(ROOT.format(role=role).encode())
    nodes[home].execute(LEAF)
    nodes[other].execute("CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
    # What the other database gives to everybody must not be added.
    nodes[other].execute("ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC")
    adopt(REQUEST, directory, nodes, records, "shop")
    assert facts(nodes[home]) == facts(nodes[other])
    assert {"policy small", "trigger never", "row level security"} <= facts(nodes[other]).keys()
    for question in (SETTINGS, OTHERS):
        assert nodes[home].execute(question).fetchall() == nodes[other].execute(question).fetchall()


def test_a_role_that_saw_nothing_sees_nothing_on_the_other_node(
    nodes: Nodes, directory: Directory, records: list[Node], role: str
) -> None:
    nodes["a"].execute(PLAIN + "; ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    nodes["a"].execute(f"GRANT SELECT ON orders TO {role}; {LEAF}")
    adopt(REQUEST, directory, nodes, records, "shop")
    nodes["b"].execute(LEAF + "; INSERT INTO orders VALUES (1)")
    nodes["b"].execute(f"SET ROLE {role}")
    assert nodes["b"].execute("SELECT count(*) FROM orders").fetchone() == (0,)


def test_roles_that_are_not_on_the_other_node_are_named(nodes: Nodes, directory: Directory, role: str) -> None:
    nodes["a"].execute(f"{PLAIN}; {LEAF}; CREATE POLICY p ON orders TO {role}; ALTER TABLE orders OWNER TO {role}")
    nodes["b"].execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    with pytest.raises(
        Refused, match=rf"table orders cannot be made on node b: .* roles that are not here: \['{role}'\]"
    ):
        inspect(REQUEST, nodes)
    nodes["b"].execute(f"CREATE ROLE {role}")


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("CREATE RULE quiet AS ON DELETE TO orders DO INSTEAD NOTHING", "public.orders has the rewrite rule quiet"),
        ("ALTER TABLE orders ALTER n SET DEFAULT f()", "function public.f() does not exist"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_is(
    nodes: Nodes, directory: Directory, statement: str, reason: str
) -> None:
    nodes["a"].execute(f"{PLAIN}; {LEAF}; CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    nodes["a"].execute(statement.encode())
    with pytest.raises(Refused) as caught:
        inspect(REQUEST, nodes)
    assert reason in str(caught.value)
    assert nodes["b"].execute("SELECT to_regclass('orders')").fetchone() == (None,)


@pytest.mark.parametrize(
    ("statement", "fact"),
    [
        ("ALTER TABLE orders ENABLE ROW LEVEL SECURITY", "row level security"),
        ("CREATE POLICY p ON orders", "policy p"),
        ("ALTER TABLE orders ALTER n SET DEFAULT 5", "column n"),
        ("ALTER TABLE orders ADD extra int", "column extra"),
        ("GRANT SELECT ON orders TO pg_monitor", "grant SELECT to pg_monitor"),
        ("GRANT SELECT (n) ON orders TO pg_monitor", "grant SELECT on column n to pg_monitor"),
        ("CREATE TRIGGER t BEFORE INSERT ON orders EXECUTE FUNCTION suppress_redundant_updates_trigger()", "trigger t"),
        ("CREATE RULE quiet AS ON DELETE TO orders DO INSTEAD NOTHING", "rule quiet"),
        ("ALTER TABLE orders OWNER TO pg_monitor", "owner"),
        ("ALTER TABLE orders ADD FOREIGN KEY (n) REFERENCES kinds", "foreign key FOREIGN KEY"),
        ("CREATE INDEX ON orders (n)", "index USING btree (n)"),
    ],
)
def test_a_difference_between_two_nodes_is_found(nodes: Nodes, statement: str, fact: str) -> None:
    for connection in nodes.values():
        connection.execute(PLAIN + "; CREATE TABLE kinds (n int PRIMARY KEY)")
    nodes["a"].execute(LEAF)
    assert differences(facts(nodes["a"]), facts(nodes["b"]), "a", "b") == []
    nodes["b"].execute(statement.encode())
    with pytest.raises(Refused) as caught:
        inspect(REQUEST, nodes)
    assert f"public.orders differs between the nodes: {fact}" in str(caught.value)
