"""A plain table goes through convert and unconvert with everything that names it; rows and rights stay as they were."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Identifier, Literal

from balancer.directory.contract import Directory
from balancer.directory.model import Node
from balancer.embedded.postgres import PostgresServer
from balancer.features.convert.plan import plan_conversion
from balancer.features.convert.run import Converted, Unconverted, convert, plan_unconversion, unconvert
from balancer.naming import Name, parse_name
from balancer.nodes.catalog.roots import read_facts
from balancer.nodes.session.connection import Address, Connection, connect
from tests.support.converting import ROOTS, Shop, dump, request_of, workplace
from tests.support.servers import Database

NewDatabase = Callable[[PostgresServer], Database]
RECORDS = [Node("a", "shop", "postgresql:///shop")]


@pytest.fixture
def node(shop: Shop) -> Iterator[Connection]:
    with connect(Address("a", shop.database.dsn), purpose="test") as connection:
        yield connection


def converted(node: Connection, directory: Directory) -> Converted:
    return convert(request_of(), directory, {"a": node}, RECORDS, "shop", workplace=workplace())


def unconverted(node: Connection, directory: Directory) -> Unconverted:
    return unconvert(request_of(), directory, {"a": node}, workplace=workplace())


def facts(node: Connection) -> dict[str, dict[str, str]]:
    """What decides the answer of any query on the tables; the key of a partitioned table is meant to be new."""
    with node.cursor() as cursor:
        found = {root: dict(read_facts(cursor, parse_name(root))) for root in ROOTS}
    for root in found.values():
        root.pop("partition key")
    return found


OUTSIDE = """
SELECT 'view', c.oid::regclass::text, pg_get_viewdef(c.oid) || coalesce(c.reloptions::text, '')
    || coalesce(c.relacl, acldefault('r', c.relowner))::text
    || coalesce(obj_description(c.oid), '') || pg_get_userbyid(c.relowner)
    FROM pg_class c WHERE c.relkind IN ('v', 'm') AND c.relnamespace = 'public'::regnamespace
UNION ALL SELECT 'function', p.oid::regprocedure::text, pg_get_functiondef(p.oid) || coalesce(p.proacl::text, '')
    || coalesce(obj_description(p.oid), '') FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
UNION ALL SELECT 'rule', rulename, pg_get_ruledef(r.oid) FROM pg_rewrite r JOIN pg_class c ON c.oid = ev_class
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind NOT IN ('v', 'm')
UNION ALL SELECT 'publication', p.pubname, t.tablename || coalesce(t.attnames::text, '') || coalesce(t.rowfilter, '')
    FROM pg_publication p JOIN pg_publication_tables t USING (pubname)
UNION ALL SELECT 'comment', c.oid::regclass::text, obj_description(c.oid) FROM pg_class c
    WHERE c.relnamespace = 'public'::regnamespace AND c.relname !~ '_t0' AND obj_description(c.oid) IS NOT NULL
ORDER BY 1, 2
"""


def test_there_and_back_every_definition_is_as_it_was(shop: Shop, node: Connection, directory: Directory) -> None:
    before = dump(shop.database)
    converted(node, directory)
    assert "ATTACH PARTITION public.orders_t0" in dump(shop.database)
    unconverted(node, directory)
    assert dump(shop.database).splitlines() == before.splitlines()
    assert directory.snapshot().tables == {}
    assert node.execute("SELECT count(*) FROM balancer.tablet").fetchone() == (0,)


def test_the_root_is_what_the_table_was_and_is_named_by_what_named_it(
    shop: Shop, node: Connection, directory: Directory
) -> None:
    before, outside = facts(node), node.execute(OUTSIDE).fetchall()
    converted(node, directory)
    assert facts(node) == before
    assert node.execute(OUTSIDE).fetchall() == outside
    assert [row for row in outside if row[0] == "publication"] != []


def test_triggers_policies_sequences_and_keys_work_through_the_root(
    shop: Shop, node: Connection, directory: Directory
) -> None:
    last = node.execute("SELECT max(id), max(number) FROM public.orders").fetchone()
    assert last is not None
    converted(node, directory)
    with shop.database.connect() as connection:
        added = connection.execute(
            "INSERT INTO orders (user_id) VALUES (7) RETURNING id, number, note, twice"
        ).fetchone()
        assert added == (last[0] + 5, last[1] + 1, "+", 2)
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            connection.execute("INSERT INTO items VALUES (7, 1, 1, 'of no order')")
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            connection.execute("INSERT INTO orders (user_id, country) VALUES (7, 'xx')")
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute("INSERT INTO orders (user_id, price) VALUES (7, 0)")
        connection.execute("UPDATE orders SET parent = NULL")
        assert connection.execute("DELETE FROM orders WHERE user_id = 3").rowcount == 20
        assert connection.execute("SELECT count(*) FROM items WHERE user_id = 3").fetchone() == (0,)
        connection.execute("REFRESH MATERIALIZED VIEW totals")
        assert connection.execute("SELECT count(*) FROM totals").fetchone() == (9,)
        connection.execute("UPDATE orders SET country = 'ru' WHERE user_id = 5")
        connection.execute(f"SET ROLE {shop.role('clerk')}")
        assert connection.execute("SELECT count(*) FROM orders WHERE user_id = 5").fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT FROM orders_t0")
        connection.execute(f"SET ROLE {shop.role('reader')}")
        assert connection.execute("SELECT count(id) FROM orders").fetchone() == (0,)  # no policy lets it see rows
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT price FROM orders")


def test_a_dry_run_shows_and_changes_nothing(shop: Shop, node: Connection, directory: Directory) -> None:
    before = dump(shop.database, ours=True)
    intent = plan_conversion(request_of(), {"a": node}, widen=False)
    assert [str(conversion.leaf) for conversion in intent.conversions] == ["public.orders_t0", "public.items_t0"]
    assert {"view public.cheap", "materialised view public.totals", "publication a_few"} <= {
        name for conversion in intent.conversions for name in conversion.carried
    }
    assert dump(shop.database, ours=True) == before
    converted(node, directory)
    before = dump(shop.database, ours=True)
    assert plan_unconversion(request_of(), directory, {"a": node})
    assert dump(shop.database, ours=True) == before


def test_writers_and_readers_go_on_meanwhile(shop: Shop, node: Connection, directory: Directory) -> None:
    clients = [Client(shop, number) for number in range(4)]
    for client in clients:
        client.start()
    pauses = []
    for _ in range(2):
        pauses += [converted(node, directory).pause, unconverted(node, directory).pause]
    for client in clients:
        client.stop.set()
    for client in clients:
        client.join(60)
    assert [client.error for client in clients] == [None] * 4
    written = sum(client.written for client in clients)
    assert written > 0
    assert node.execute("SELECT count(*) FROM public.orders").fetchone() == (200 + written,)
    assert node.execute("SELECT count(*) FROM public.items WHERE line = 9").fetchone() == (written,)
    longest = max(client.longest for client in clients)
    print(f"{written} transactions, longest {longest * 1000:.0f} ms; swaps {[round(p * 1000) for p in pauses if p]} ms")


def test_what_changes_while_the_swap_waits_for_its_locks_is_carried(
    shop: Shop, node: Connection, directory: Directory
) -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'orders'::regclass"
    with shop.database.connect(autocommit=False) as other, shop.database.connect() as watcher:

        def change() -> None:
            other.execute("COMMENT ON TABLE orders IS 'changed meanwhile'")
            steps.append("commented")
            while watcher.execute(waiting).fetchone() != (1,):
                time.sleep(0.002)
            other.commit()
            steps.append("committed")

        steps: list[str] = []
        thread = threading.Thread(target=change)

        def observe(step: str) -> None:
            steps.append(step)
            if step == "check of public.items":  # the last before the swap
                thread.start()
                while "commented" not in steps:
                    time.sleep(0.002)

        convert(request_of(), directory, {"a": node}, RECORDS, "shop", workplace=workplace(observe))
        thread.join(30)
    assert (steps.count("committed"), steps.count("swap")) == (1, 1)
    comment = "SELECT obj_description('public.orders'::regclass)"
    assert node.execute(comment).fetchone() == ("changed meanwhile",)


def test_hostile_names_stay_names(any_postgres: PostgresServer, database: NewDatabase, directory: Directory) -> None:
    fresh = database(any_postgres)
    long = "x" * 40 + "é" * 11  # 62 bytes
    names = ['or"ders; DROP TABLE t; --', "%s {0} $1 \\'", long]
    with fresh.connect() as connection, connect(Address("a", fresh.dsn), purpose="test") as node:
        connection.execute("CREATE TABLE t (n int)")
        for name in names:
            table, key = Identifier(name), Identifier(f"k {name}"[:40])
            made = "CREATE TABLE {0} ({1} bigint, n int GENERATED ALWAYS AS IDENTITY, CONSTRAINT {2} PRIMARY KEY (n))"
            connection.execute(SQL(made).format(table, key, Identifier(f"p {name}"[:40])))
            connection.execute(SQL("CREATE INDEX {} ON {} (n) WHERE n > 5").format(Identifier(f"i {name}"[:40]), table))
            connection.execute(SQL("COMMENT ON COLUMN {}.{} IS {}").format(table, key, Literal(name)))
            connection.execute(SQL("CREATE VIEW {} AS SELECT * FROM {}").format(Identifier(f"v {name}"[:40]), table))
            connection.execute(SQL("INSERT INTO {} SELECT 5 FROM generate_series(1, 10)").format(table))
            before = dump(fresh)
            wanted = replace(request_of(), name="hostile", roots=(Name("public", name),), key=(f"k {name}"[:40],))
            place = workplace()
            convert(wanted, directory, {"a": node}, RECORDS, "shop", workplace=place, widen=True)
            view = SQL("SELECT count(*) FROM {}").format(Identifier(f"v {name}"[:40]))
            assert connection.execute(view).fetchone() == (10,)
            unconvert(wanted, directory, {"a": node}, workplace=place)
            after = dump(fresh)
            meant = {line for line in after.splitlines() if "PRIMARY KEY" in line or "NOT NULL" in line}
            assert [line for line in after.splitlines() if line not in before.splitlines()] == [
                line for line in after.splitlines() if line in meant and line not in before.splitlines()
            ]
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_a_role_that_is_no_superuser_converts_what_it_acts_for(
    any_postgres: PostgresServer, database: NewDatabase, directory: Directory
) -> None:
    fresh, prefix = database(any_postgres), f"r{uuid4().hex[:8]}"
    with fresh.connect() as connection:
        connection.execute(PLAIN_ROLES.format(prefix=prefix, database=fresh.name).encode())
        try:
            before = dump(fresh)
            worker = Address("a", fresh.dsn.replace("postgres:", f"{prefix}_worker:", 1), "worker")
            with connect(worker, purpose="test") as node:
                wanted = request_of("orders", key="id")
                convert(wanted, directory, {"a": node}, RECORDS, "shop", workplace=workplace())
                assert connection.execute("SELECT count(*) FROM one").fetchone() == (1,)
                unconvert(wanted, directory, {"a": node}, workplace=workplace())
            assert dump(fresh).splitlines() == before.splitlines()
        finally:
            connection.execute(f"DROP OWNED BY {prefix}_worker, {prefix}_owner CASCADE".encode())
            connection.execute(f"DROP ROLE {prefix}_worker, {prefix}_owner".encode())


PLAIN_ROLES = """
CREATE ROLE {prefix}_owner; CREATE ROLE {prefix}_worker LOGIN PASSWORD 'worker' IN ROLE {prefix}_owner;
GRANT CREATE ON DATABASE "{database}" TO {prefix}_worker;
GRANT USAGE, CREATE ON SCHEMA public TO {prefix}_owner, {prefix}_worker;
SET ROLE {prefix}_owner;
CREATE FUNCTION same() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
CREATE TABLE orders (id bigint PRIMARY KEY, n serial, m int GENERATED ALWAYS AS IDENTITY, note text);
CREATE TRIGGER same BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION same();
ALTER TABLE orders ENABLE ROW LEVEL SECURITY;
CREATE POLICY few ON orders USING (id > 0);
GRANT SELECT ON orders TO PUBLIC;
CREATE VIEW one AS SELECT id FROM orders;
CREATE MATERIALIZED VIEW kept AS SELECT id FROM orders;
CREATE FUNCTION of_it(o orders) RETURNS bigint LANGUAGE sql AS 'SELECT o.id';
INSERT INTO orders (id) VALUES (1);
RESET ROLE;
"""


class Client(threading.Thread):
    """Writes to both tables in one transaction and reads through a view, without an end and without a retry."""

    def __init__(self, shop: Shop, number: int) -> None:
        super().__init__()
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.written = 0
        self.longest = 0.0
        self._shop = shop
        self._user = 1000 + number

    def run(self) -> None:
        try:
            with self._shop.database.connect(autocommit=False) as connection:
                while not self.stop.is_set():
                    began = time.monotonic()
                    row = connection.execute(
                        "INSERT INTO orders (user_id, price) VALUES (%s, 5) RETURNING id", (self._user,)
                    ).fetchone()
                    assert row is not None
                    connection.execute("INSERT INTO items VALUES (%s, %s, 9, 'thing')", (self._user, row[0]))
                    seen = connection.execute("SELECT count(*) FROM cheap WHERE user_id = %s", (self._user,)).fetchone()
                    connection.commit()
                    self.written += 1
                    assert seen == (self.written,)
                    self.longest = max(self.longest, time.monotonic() - began)
        except BaseException as error:
            self.error = error
