"""What cannot be converted is refused in one sentence that names it, and nothing is changed."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Node
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Refused
from balancer.features.convert.plan import plan_conversion
from balancer.features.convert.run import convert, unconvert
from balancer.nodes.session.connection import Address, Connection, connect
from tests.support.converting import dump, request_of, workplace
from tests.support.servers import Database

PLAIN = "CREATE TABLE orders (id bigint PRIMARY KEY, n int)"

CASES = {
    "there is none": ("", "no node of the bundle has public.orders"),
    "no key": ("CREATE TABLE orders (n int)", 'public.orders has no column "id"'),
    "a type that is no key": (
        "CREATE TABLE orders (id jsonb)",
        'key column "id" of public.orders is of type jsonb; supported',
    ),
    "a generated key": (
        "CREATE TABLE orders (n int, id int GENERATED ALWAYS AS (n + 1) STORED)",
        'key column "id" of public.orders is generated',
    ),
    "NULL in the key": (
        "CREATE TABLE orders (id int); INSERT INTO orders VALUES (1), (NULL)",
        r"public.orders has rows with NULL in its key \(id\): give them a value, or delete them",
    ),
    "a narrow primary key": (
        "CREATE TABLE orders (id int NOT NULL, n int PRIMARY KEY)",
        r"primary key orders_pkey of public.orders does not contain the key \(id\): --widen-keys makes it \(n, id\)",
    ),
    "a narrow unique index": (
        f"{PLAIN}; CREATE UNIQUE INDEX one ON orders (lower(n::text))",
        "unique index one of public.orders does not contain the key .* so it is not widened: drop it",
    ),
    "an invalid index": (
        f"{PLAIN}; INSERT INTO orders VALUES (1, 1), (2, 1)",
        "public.orders: index twice is invalid",
    ),
    "an exclusion constraint": (
        f"{PLAIN}; ALTER TABLE orders ADD CONSTRAINT apart EXCLUDE USING btree (n WITH =)",
        "constraint apart is an exclusion constraint, which is not carried over",
    ),
    "a check that is not validated": (
        f"{PLAIN}; ALTER TABLE orders ADD CONSTRAINT few CHECK (n > 0) NOT VALID",
        "constraint few is NOT VALID: ALTER TABLE public.orders VALIDATE CONSTRAINT few",
    ),
    "a check that is not inherited": (
        f"{PLAIN}; ALTER TABLE orders ADD CONSTRAINT few CHECK (n > 0) NO INHERIT",
        "constraint few is NO INHERIT",
    ),
    "children": (f"{PLAIN}; CREATE TABLE child () INHERITS (orders)", "children or a parent by inheritance"),
    "a parent": ("CREATE TABLE p (id int); CREATE TABLE orders () INHERITS (p)", "children or a parent by inheritance"),
    "an unlogged table": (
        "CREATE UNLOGGED TABLE orders (id int PRIMARY KEY)",
        "public.orders is unlogged, and its rows would not survive a crash: ALTER TABLE public.orders SET LOGGED",
    ),
    "a view": ("CREATE VIEW orders AS SELECT 1 AS id", "public.orders is a view: only an ordinary table"),
    "a foreign table": (
        (
            "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
            " CREATE FOREIGN TABLE orders (id int) SERVER s"
        ),
        "public.orders is a foreign table; its rows are not on this node",
    ),
    "a table of a type": (
        "CREATE TYPE kind AS (id int); CREATE TABLE orders OF kind",
        "public.orders is a table of a type",
    ),
    "partitions": (
        (
            "CREATE TABLE orders (id int) PARTITION BY HASH (id);"
            " CREATE TABLE p PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
        ),
        "is partitioned on node a: take it over with `balancer table adopt`",
    ),
    "the leaf's name is taken": (
        f"{PLAIN}; CREATE TABLE orders_t0 (n int)",
        "the name public.orders_t0, which the conversion of public.orders needs, is taken: rename it",
    ),
    "the root's first name is taken": (
        f"{PLAIN}; CREATE TABLE orders_root_t0 (n int) PARTITION BY HASH (n)",
        "the name public.orders_root_t0, which the conversion of public.orders needs, is taken: rename it",
    ),
    "an index's name is taken": (
        f"{PLAIN}; CREATE VIEW orders_t0_pkey AS SELECT 1",
        "the name public.orders_t0_pkey, which the conversion of public.orders needs, is taken: rename it",
    ),
    "a foreign key from outside": (
        f"{PLAIN}; CREATE TABLE other (id bigint REFERENCES orders)",
        "foreign key other_id_fkey of public.other points to public.orders, whose tablets could then not leave",
    ),
    "a column of its row type": (
        f"{PLAIN}; CREATE TABLE other (o orders)",
        "table public.other uses public.orders in a way that is not carried over: drop it",
    ),
    "a view with its row type": (
        f"{PLAIN}; CREATE VIEW whole AS SELECT o FROM orders o",
        "view .*whole.* uses public.orders in a way that is not carried over",
    ),
    "a function of its row type that others use": (
        (
            f"{PLAIN}; CREATE FUNCTION f(o orders) RETURNS int LANGUAGE sql AS 'SELECT 1';"
            " CREATE VIEW used AS SELECT f(NULL)"
        ),
        "f.* has the row type of public.orders in its signature, and others depend on it: drop it",
    ),
    "a view of a view that is materialised": (
        (
            f"{PLAIN}; CREATE MATERIALIZED VIEW one AS SELECT id FROM orders;"
            " CREATE MATERIALIZED VIEW two AS SELECT id FROM one"
        ),
        "materialised view public.two reads materialised view public.one, which reads public.orders: drop it",
    ),
    "a transition table for each row": (
        (
            f"{PLAIN}; CREATE FUNCTION t() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
            " CREATE TRIGGER each AFTER INSERT ON orders REFERENCING NEW TABLE AS a FOR EACH ROW EXECUTE FUNCTION t()"
        ),
        "trigger each has a transition table for each row",
    ),
    "a publication with other partitions": (
        (
            f"{PLAIN}; CREATE TABLE p (id int) PARTITION BY HASH (id);"
            " CREATE TABLE q PARTITION OF p FOR VALUES WITH (MODULUS 1, REMAINDER 0);"
            " CREATE PUBLICATION both_of_them FOR TABLE orders, p"
        ),
        r"publication both_of_them publishes partitions under their own names, .* SET \(publish_via_partition_root",
    ),
}


@pytest.fixture
def fresh(any_postgres: PostgresServer, database: Callable[[PostgresServer], Database]) -> Database:
    return database(any_postgres)


@pytest.fixture
def node(fresh: Database) -> Iterator[Connection]:
    with connect(Address("a", fresh.dsn), purpose="test") as connection:
        yield connection


def prepare(fresh: Database, case: str, definition: str) -> None:
    with fresh.connect() as connection:
        connection.execute(definition.encode())
        if case == "an invalid index":
            with pytest.raises(psycopg.errors.UniqueViolation):
                connection.execute("CREATE UNIQUE INDEX CONCURRENTLY twice ON orders (n)")


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_in_one_sentence_and_nothing_is_changed(
    fresh: Database, node: Connection, directory: Directory, case: str
) -> None:
    definition, sentence = CASES[case]
    prepare(fresh, case, definition)
    before = dump(fresh, ours=True)
    wanted = request_of("orders", key="id")
    with pytest.raises(Refused, match=sentence) as refused:
        plan_conversion(wanted, {"a": node}, widen=False)
    assert "\n" not in str(refused.value)
    with pytest.raises(Refused, match=sentence):
        convert(wanted, directory, {"a": node}, [], "shop", workplace=workplace())
    assert dump(fresh, ours=True) == before
    assert directory.snapshot().version == 0


def test_a_role_without_rights_is_told_what_it_lacks(fresh: Database, directory: Directory) -> None:
    with fresh.connect() as connection:
        connection.execute(f"{PLAIN}; CREATE ROLE weak LOGIN PASSWORD 'weak'; CREATE ROLE strong".encode())
        connection.execute("ALTER TABLE orders OWNER TO strong")
        try:
            weak = Address("a", f"{fresh.dsn.replace('postgres:', 'weak:')}", "weak")
            with connect(weak, purpose="test") as node:
                with pytest.raises(
                    Refused, match=r"the balancer's role does not act for strong, who owns public.orders: GRANT"
                ):
                    plan_conversion(request_of("orders", key="id"), {"a": node}, widen=False)
                connection.execute("GRANT strong TO weak")
                with pytest.raises(
                    Refused, match=r"the balancer's role may not create tables next to public.orders: GRANT CREATE"
                ):
                    plan_conversion(request_of("orders", key="id"), {"a": node}, widen=False)
        finally:
            connection.execute("DROP OWNED BY weak, strong CASCADE")
            connection.execute("DROP ROLE weak, strong")


def test_code_of_the_owner_is_refused_before_it_can_run(fresh: Database, node: Connection) -> None:
    with fresh.connect() as connection:
        connection.execute(
            """CREATE ROLE stranger; GRANT CREATE ON SCHEMA public TO stranger; SET ROLE stranger;
               CREATE FUNCTION mine(int) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true';
               CREATE TABLE orders (id int PRIMARY KEY, CHECK (mine(1)));
               RESET ROLE"""
        )
        try:
            sentence = "public.orders uses function public.mine.integer., which would run with the balancer's rights"
            with pytest.raises(Refused, match=sentence):
                plan_conversion(request_of("orders", key="id"), {"a": node}, widen=False)
        finally:
            connection.execute("DROP OWNED BY stranger CASCADE; DROP ROLE stranger")


def test_a_table_on_two_nodes_is_refused(nodes: dict[str, Connection]) -> None:
    for connection in nodes.values():
        connection.execute("CREATE TABLE public.orders (id bigint PRIMARY KEY)")
    with pytest.raises(Refused, match="nodes a and b have it; a plain table is converted where it is on one node"):
        plan_conversion(request_of("orders", key="id"), nodes, widen=False)


def test_what_another_node_lacks_is_said_before_anything_is_done(
    nodes: dict[str, Connection], directory: Directory
) -> None:
    nodes["a"].execute(
        "CREATE TABLE public.countries (code text PRIMARY KEY);"
        "CREATE TABLE public.orders (id bigint PRIMARY KEY, country text REFERENCES public.countries)"
    )
    sentence = "it cannot be made on node b: node b refuses: relation .public.countries. does not exist"
    with pytest.raises(Refused, match=sentence):
        convert(request_of("orders", key="id"), directory, nodes, [], "shop", workplace=workplace())
    nodes["a"].execute("DROP TABLE public.orders; CREATE TABLE public.orders (id bigserial PRIMARY KEY)")
    with pytest.raises(Refused, match=r'on node b: column "id" of public.orders draws from a sequence'):
        convert(request_of("orders", key="id"), directory, nodes, [], "shop", workplace=workplace())
    assert nodes["a"].execute("SELECT relkind::text FROM pg_class WHERE relname = 'orders'").fetchone() == ("r",)
    assert nodes["b"].execute("SELECT to_regclass('public.orders')").fetchone() == (None,)


def test_rights_that_are_missing_on_another_node_are_named_with_their_remedy(nodes: dict[str, Connection]) -> None:
    nodes["a"].execute("CREATE TABLE public.orders (id bigint PRIMARY KEY)")
    (owner,) = nodes["a"].execute("SELECT current_user").fetchone() or ("",)
    nodes["b"].execute("DROP ROLE IF EXISTS weak; CREATE ROLE weak; SET ROLE weak")
    try:
        sentence = (
            f"it cannot be made on node b: the balancer's role does not act for {owner}, who owns public.orders: GRANT"
        )
        with pytest.raises(Refused, match=sentence):
            plan_conversion(request_of("orders", key="id"), nodes, widen=False)
    finally:
        nodes["b"].execute("RESET ROLE; DROP ROLE weak")


def test_a_table_with_several_tablets_stays_what_it_is(
    nodes: dict[str, Connection], directory: Directory, records: list[Node]
) -> None:
    nodes["a"].execute("CREATE TABLE public.orders (id bigint PRIMARY KEY) PARTITION BY HASH (id)")
    for remainder in (0, 1):
        bound = f"FOR VALUES WITH (MODULUS 2, REMAINDER {remainder})"
        nodes["a"].execute(f"CREATE TABLE public.p{remainder} PARTITION OF public.orders {bound}")
    with pytest.raises(Refused, match=r"no node has it whole, with one partition; only a table with one tablet can"):
        unconvert(request_of("orders", key="id"), directory, nodes, workplace=workplace())


def test_a_table_that_was_never_converted_has_nothing_to_undo(
    fresh: Database, node: Connection, directory: Directory
) -> None:
    prepare(fresh, "", PLAIN)
    with pytest.raises(Refused, match="is not converted, and no conversion of it was begun"):
        unconvert(request_of("orders", key="id"), directory, {"a": node}, workplace=workplace())
