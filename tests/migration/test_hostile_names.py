"""A table's owner chooses names; whatever they say, a move or a split gives the owner no right that was not there."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from balancer.directory.model import Tablet
from balancer.policies.keyspace.hash_leaves import Leaf
from tests.support.cluster import build, hash_table, hash_tablets
from tests.support.owned import move_or_split, owned_cluster, plain_role, rights, run_as

pytestmark = pytest.mark.always

Connection = psycopg.Connection[tuple[object, ...]]


@pytest.fixture(params=["15 to 18", "18 to 15"])
def dsns(request: pytest.FixtureRequest, pair: dict[str, str]) -> dict[str, str]:
    """Node a owns the tablets; each version is the source once and the target once."""
    return pair if request.param == "15 to 18" else {"a": pair["b"], "b": pair["a"]}


@pytest.fixture
def owner(dsns: dict[str, str]) -> Iterator[str]:
    with plain_role(dsns) as role:
        yield role


PLAIN = "(id bigint NOT NULL, n bigint, note text, PRIMARY KEY (id))"


@pytest.mark.parametrize("what", ["replicate", "read-only", "split"])
def test_the_name_of_an_index_is_not_run(tmp_path: Path, dsns: dict[str, str], owner: str, what: str) -> None:
    cluster = owned_cluster(tmp_path, dsns, owner, columns=PLAIN, root="public.orders")
    name = f"i ON public.orders_t2 (id);ALTER ROLE {owner} SUPERUSER;--"
    with cluster.connect("a") as connection:
        run_as(connection, owner, sql.SQL("CREATE INDEX {} ON orders_t2 (n)").format(sql.Identifier(name)))
    before = rights(cluster, owner)
    done = move_or_split(cluster, what)
    assert rights(cluster, owner) == before
    assert (done.state, done.error) == ("done", "")
    cluster.close()


def test_the_name_of_a_root_is_not_run_where_a_trigger_repeats_the_leaf(
    tmp_path: Path, dsns: dict[str, str], owner: str
) -> None:
    """The trigger's name repeats ` ON schema.leaf `; the new leaf's name, put there, would end the quotes."""
    name = " AFTER DELETE ON s.y EXECUTE FUNCTION s.f();CALL s.p();--"
    root, trigger = f'public."{name}"', "x ON public.leafy "
    with psycopg.connect(dsns["a"], autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA s AUTHORIZATION {owner}")
        run_as(
            connection,
            owner,
            "CREATE FUNCTION s.f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$",
            f"CREATE PROCEDURE s.p() LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'ALTER ROLE {owner} SUPERUSER'; END $$",
            "CREATE TABLE s.y ()",
        )
    for dsn in dsns.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            run_as(connection, owner, f"CREATE TABLE {root} {PLAIN} PARTITION BY HASH (id)")
    tablets = [Tablet(1, 1, Leaf(2, 0), "a"), Tablet(2, 1, Leaf(2, 1), "a", partitions=("leafy",))]
    cluster = build(tmp_path, dsns, hash_table((root,)), tablets, columns=None)
    with cluster.connect("a") as connection:
        connection.execute(f"ALTER TABLE leafy OWNER TO {owner}")
        create = "CREATE TRIGGER {} BEFORE INSERT OR UPDATE OF n, note ON leafy FOR EACH ROW EXECUTE FUNCTION s.f()"
        run_as(connection, owner, sql.SQL(create).format(sql.Identifier(trigger)))
    before = rights(cluster, owner)
    done = move_or_split(cluster, "split")
    assert rights(cluster, owner) == before
    assert (done.state, done.error) == ("done", "")
    found = cluster.query("a", "SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname LIKE 'x ON%'")
    assert sorted(found) == sorted((f'"{name}_t{target.id}"',) for target in done.targets)
    cluster.close()


def test_a_schema_may_need_quotes(tmp_path: Path, dsns: dict[str, str]) -> None:
    root = '"The ""Shop"" {} %s"."Orders"'
    for dsn in dsns.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute('CREATE SCHEMA "The ""Shop"" {} %s"')
            connection.execute(f"CREATE TABLE {root} {PLAIN} PARTITION BY HASH (id)".encode())
    cluster = build(tmp_path, dsns, hash_table((root,)), hash_tablets(2, ["a"]), columns=None)
    leaf = root.replace("Orders", "Orders_t2")
    with cluster.connect("a") as connection:
        connection.execute(f"CREATE INDEX ON {leaf} (n)".encode())
        pass_on = "EXECUTE FUNCTION suppress_redundant_updates_trigger()"
        connection.execute(f"CREATE TRIGGER t BEFORE UPDATE ON {leaf} FOR EACH ROW {pass_on}".encode())
    for what in ("replicate", "split"):
        done = move_or_split(cluster, what)
        assert (done.state, done.error) == ("done", "")
    cluster.close()


HOSTILE = '%s {0} "; '


@pytest.mark.parametrize("what", ["replicate", "read-only", "split"])
def test_every_name_that_is_carried_may_be_hostile(tmp_path: Path, dsns: dict[str, str], owner: str, what: str) -> None:
    def evil(kind: str) -> sql.Identifier:
        return sql.Identifier(f"{kind}{HOSTILE}ALTER ROLE {owner} SUPERUSER;--")

    for dsn in dsns.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                sql.SQL(
                    "CREATE OPERATOR CLASS {} FOR TYPE text USING btree AS"
                    " OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >,"
                    " FUNCTION 1 bttextcmp(text, text)"
                ).format(evil("k"))
            )
            run_as(
                connection,
                owner,
                sql.SQL("CREATE COLLATION {} (LOCALE = 'C')").format(evil("c")),
                sql.SQL("CREATE DOMAIN {} AS text").format(evil("d")),
                sql.SQL("CREATE FUNCTION {}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'").format(
                    evil("f")
                ),
                sql.SQL("CREATE TABLE {} (id bigint PRIMARY KEY)").format(evil("r")),
                sql.SQL(
                    "CREATE TABLE orders (id bigint NOT NULL, {a} {d} COLLATE {c} DEFAULT {text}, {b} bigint,"
                    " CONSTRAINT {pk} PRIMARY KEY (id), CONSTRAINT {ck} CHECK ({a} <> {text2}),"
                    " CONSTRAINT {fk} FOREIGN KEY ({b}) REFERENCES {r}) PARTITION BY HASH (id)"
                ).format(
                    a=evil("a"),
                    b=evil("b"),
                    c=evil("c"),
                    d=evil("d"),
                    r=evil("r"),
                    pk=evil("pk"),
                    ck=evil("ck"),
                    fk=evil("fk"),
                    text=sql.Literal("';ALTER ROLE --\\"),
                    text2=sql.Literal("%s {} '\\"),
                ),
                sql.SQL("CREATE STATISTICS {} ON id, {} FROM orders").format(evil("s"), evil("a")),
            )
            connection.execute("GRANT SELECT, REFERENCES ON ALL TABLES IN SCHEMA public TO PUBLIC")
    cluster = build(tmp_path, dsns, hash_table(), hash_tablets(2, ["a"]), columns=None)
    with cluster.connect("a") as connection:
        connection.execute(f"ALTER TABLE orders_t1 OWNER TO {owner}; ALTER TABLE orders_t2 OWNER TO {owner}")
        run_as(
            connection,
            owner,
            sql.SQL("CREATE INDEX {} ON orders_t2 ({} {}) WITH (fillfactor = 70)").format(
                evil("i"), evil("a"), evil("k")
            ),
            sql.SQL("CREATE UNIQUE INDEX {} ON orders_t2 (lower({}), id) INCLUDE ({}) WHERE {} <> '{{}}%s'").format(
                evil("u"), evil("a"), evil("b"), evil("a")
            ),
            sql.SQL(
                "CREATE TRIGGER {} BEFORE INSERT OR UPDATE OF {}, id ON orders_t2 FOR EACH ROW"
                " WHEN (NEW.{} <> {}) EXECUTE FUNCTION {}({})"
            ).format(
                evil("t"), evil("a"), evil("a"), sql.Literal("' ON public.orders_t2 "), evil("f"), sql.Literal(HOSTILE)
            ),
            sql.SQL("ALTER TABLE orders_t2 ADD CONSTRAINT {} CHECK ({} <> '%s{{}}')").format(evil("own"), evil("a")),
            sql.SQL("COMMENT ON TABLE orders_t2 IS {}").format(sql.Literal(HOSTILE + "';ALTER ROLE --\\")),
            sql.SQL("COMMENT ON COLUMN orders_t2.{} IS {}").format(evil("a"), sql.Literal(HOSTILE)),
            sql.SQL("COMMENT ON INDEX {} IS {}").format(evil("i"), sql.Literal(HOSTILE + "'\\")),
            sql.SQL("ALTER TABLE orders_t2 ALTER {} SET (n_distinct = 5)").format(evil("a")),
            sql.SQL("INSERT INTO orders (id, {}) SELECT i, {} FROM generate_series(1, 200) AS i").format(
                evil("a"), sql.Literal(HOSTILE)
            ),
        )
    before = rights(cluster, owner)
    rows = cluster.query("a", "SELECT * FROM orders ORDER BY id")
    cluster.settings = replace(cluster.settings, trust_table_owners=True)  # this is about names
    done = move_or_split(cluster, what)
    assert rights(cluster, owner) == before
    assert (done.state, done.error) == ("done", "")
    after = [row for node in "ab" for row in cluster.query(node, "SELECT * FROM orders")]
    assert sorted(after, key=lambda row: int(str(row[0]))) == rows
    cluster.close()
