"""What a partition carries goes along with it: what it is made of, what was set on it, what others may do with it."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from balancer.directory.model import MigrationMode
from balancer.features.repair.doctor import examine
from balancer.migration.begin import begin_move
from tests.support.cluster import Cluster, build, hash_table, hash_tablets
from tests.support.resharding import begin_split

ROOTS = """
    CREATE SEQUENCE ticket_numbers;
    CREATE TYPE mood AS ENUM ('fine', 'poor');
    CREATE TABLE kinds (kind text PRIMARY KEY);
    INSERT INTO kinds VALUES ('a'), ('b');
    CREATE TABLE orders (
        id bigint NOT NULL, number bigint NOT NULL DEFAULT nextval('ticket_numbers'), kind text REFERENCES kinds,
        amount numeric(12, 2) DEFAULT 1.50 CHECK (amount >= 0), moods mood[], document jsonb, picture bytea,
        at timestamptz DEFAULT '2026-01-02 03:04:05+02', twice numeric GENERATED ALWAYS AS (amount * 2) STORED,
        PRIMARY KEY (id)
    ) PARTITION BY HASH (id);
    CREATE INDEX orders_kind ON orders (kind, lower(kind)) WHERE kind <> 'b';
    CREATE TABLE items (
        id bigint NOT NULL, line int NOT NULL, note text, PRIMARY KEY (id, line),
        FOREIGN KEY (id) REFERENCES orders (id) ON DELETE CASCADE
    ) PARTITION BY HASH (id);
    CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN NEW.note := upper(NEW.note); RETURN NEW; END $$;
    CREATE TRIGGER shout BEFORE INSERT ON items FOR EACH ROW EXECUTE FUNCTION shout();
"""
OWN = """
    ALTER TABLE orders_t2 SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_enabled = off);
    ALTER TABLE orders_t2 ALTER document SET STATISTICS 500, ALTER picture SET STORAGE EXTERNAL;
    ALTER TABLE orders_t2 ADD CONSTRAINT small CHECK (amount < 1000000);
    CREATE INDEX own_index ON orders_t2 USING gin (document);
    CREATE UNIQUE INDEX own_unique ON orders_t2 (number) INCLUDE (amount);
    ALTER TABLE orders_t2 REPLICA IDENTITY USING INDEX orders_t2_pkey;
    CREATE FUNCTION whisper() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
    CREATE TRIGGER whisper AFTER UPDATE ON orders_t2 FOR EACH ROW EXECUTE FUNCTION whisper();
    ALTER TABLE orders_t2 DISABLE TRIGGER whisper;
    GRANT SELECT, UPDATE ON orders_t2 TO pg_monitor;
    COMMENT ON TABLE orders_t2 IS 'the second';
    COMMENT ON COLUMN orders_t2.amount IS 'in roubles';
    INSERT INTO orders (id, kind, amount, moods, document, picture)
        SELECT i, CASE WHEN i % 2 = 0 THEN 'a' ELSE 'b' END, i, '{fine,poor}', jsonb_build_object('i', i),
               decode(repeat('ab', 3000), 'hex') FROM generate_series(1, 400) AS i;
    INSERT INTO items SELECT id, line, 'text' FROM orders, generate_series(1, 3) AS line;
"""
DESCRIBE = """
    SELECT 'index', regexp_replace(pg_get_indexdef(indexrelid), 'INDEX \\S+ ON', 'INDEX ON') FROM pg_index
        WHERE indrelid = 'orders_t2'::regclass
    UNION ALL SELECT 'constraint', concat_ws(' ', conname, contype, convalidated, pg_get_constraintdef(oid))
        FROM pg_constraint WHERE conrelid IN ('orders_t2'::regclass, 'items_t2'::regclass) AND contype <> 'n'
    UNION ALL SELECT 'column', attname || ' ' || format_type(atttypid, atttypmod) || ' ' || attnotnull || ' '
        || attstorage::text || ' ' || coalesce(attstattarget, -1) || ' ' || attgenerated::text || ' '
        || coalesce(col_description(attrelid, attnum), '') || ' '
        || coalesce(pg_get_expr(adbin, adrelid), '')
        FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE attrelid = 'orders_t2'::regclass AND attnum > 0
    UNION ALL SELECT 'trigger', pg_get_triggerdef(oid) || ' ' || tgenabled::text FROM pg_trigger
        WHERE tgrelid IN ('orders_t2'::regclass, 'items_t2'::regclass) AND NOT tgisinternal
    UNION ALL SELECT 'table', concat_ws(' ', c.relreplident::text, c.reloptions::text, t.reloptions::text,
        obj_description(c.oid), (SELECT string_agg(privilege_type, ',' ORDER BY privilege_type)
        FROM aclexplode(c.relacl) WHERE grantee = 'pg_monitor'::regrole))
        FROM pg_class c JOIN pg_class t ON t.oid = c.reltoastrelid WHERE c.oid = 'orders_t2'::regclass
    ORDER BY 1, 2
"""


@pytest.fixture
def carrying(tmp_path: Path, pair: dict[str, str]) -> Iterator[Cluster]:
    for dsn in pair.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(ROOTS)
    made = build(tmp_path, pair, hash_table(("public.orders", "public.items")), hash_tablets(2, ["a"]), columns=None)
    with made.connect("a") as connection:
        connection.execute(OWN)
    with made.connect("b") as connection:
        connection.execute("CREATE FUNCTION whisper() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$")
    yield made
    made.close()


def describe(cluster: Cluster, node: str) -> list[tuple[object, ...]]:
    with cluster.connect(node) as connection:
        connection.execute("SET search_path = public")
        return connection.execute(DESCRIBE).fetchall()


@pytest.mark.parametrize("mode", list(MigrationMode))
def test_everything_a_partition_carries_arrives(carrying: Cluster, mode: MigrationMode) -> None:
    directory = carrying.directory()
    leadership = carrying.become_leader(directory)
    before = describe(carrying, "a")
    rows = carrying.query("a", "SELECT * FROM orders_t2 ORDER BY id")
    items = carrying.query("a", "SELECT * FROM items_t2 ORDER BY id, line")
    done = carrying.runner(directory, leadership).run(begin_move(directory, leadership, 2, "b", mode=mode).id)
    assert (done.state, done.error) == ("done", "")
    assert describe(carrying, "b") == before
    assert carrying.query("b", "SELECT * FROM orders_t2 ORDER BY id") == rows
    assert carrying.query("b", "SELECT * FROM items_t2 ORDER BY id, line") == items
    assert examine(directory, carrying.address) == []


def test_no_id_is_given_twice_and_foreign_keys_work_on_the_new_owner(carrying: Cluster) -> None:
    directory = carrying.directory()
    leadership = carrying.become_leader(directory)
    last = carrying.query("a", "SELECT max(number) FROM orders")[0][0]
    number = carrying.query("a", "SELECT min(id) FROM orders_t2")[0][0]
    done = carrying.runner(directory, leadership).run(begin_move(directory, leadership, 2, "b").id)
    assert done.state == "done"
    assert int(str(carrying.query("b", "SELECT nextval('ticket_numbers')")[0][0])) > int(str(last))
    with carrying.connect("b") as connection:
        connection.execute(f"INSERT INTO items VALUES ({number}, 9, 'loud')")
        assert connection.execute(f"SELECT note FROM items WHERE id = {number} AND line = 9").fetchone() == ("LOUD",)
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            connection.execute(
                f"INSERT INTO orders_t2 (id, kind) SELECT {number} + 0, 'z' WHERE false; "
                f"UPDATE orders SET kind = 'z' WHERE id = {number}"
            )
        connection.execute(f"DELETE FROM orders WHERE id = {number}")
        assert connection.execute(f"SELECT count(*) FROM items WHERE id = {number}").fetchone() == (0,)


def test_a_split_carries_it_too(carrying: Cluster) -> None:
    directory = carrying.directory()
    leadership = carrying.become_leader(directory)
    rows = carrying.query("a", "SELECT * FROM orders ORDER BY id")
    items = carrying.query("a", "SELECT * FROM items ORDER BY id, line")
    done = carrying.runner(directory, leadership).run(begin_split(directory, leadership, 2).id)
    assert (done.state, done.error) == ("done", "")
    assert carrying.query("a", "SELECT * FROM orders ORDER BY id") == rows
    assert carrying.query("a", "SELECT * FROM items ORDER BY id, line") == items
    child = done.targets[0].id
    kept = carrying.query("a", f"SELECT reloptions, relacl::text FROM pg_class WHERE relname = 'orders_t{child}'")
    assert "fillfactor=70" in str(kept[0][0])
    assert "pg_monitor" in str(kept[0][1])
    assert examine(directory, carrying.address) == []


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("ALTER TABLE orders_t2 ENABLE ROW LEVEL SECURITY", "row security"),
        ("CREATE RULE quiet AS ON DELETE TO orders_t2 DO INSTEAD NOTHING", "rewrite rules"),
        ("ALTER TABLE ONLY orders ADD COLUMN extra int", "differs between the nodes: column extra"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(carrying: Cluster, statement: str, reason: str) -> None:
    directory = carrying.directory()
    leadership = carrying.become_leader(directory)
    with carrying.connect("a") as connection:
        connection.execute(statement.replace("ONLY ", ""))
    done = carrying.runner(directory, leadership).run(begin_move(directory, leadership, 2, "b").id)
    assert done.state == "failed"
    assert reason in done.error
    assert [reason in finding.text for finding in examine(directory, carrying.address)] == [True]
