"""The mirror runs with the balancer's rights in every write of the application: nothing of an owner's runs as it."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from balancer.directory.model import Migration
from tests.support.cluster import Cluster
from tests.support.directed import split
from tests.support.owned import owned_cluster, plain_role, run_as

pytestmark = pytest.mark.always

COLUMNS = "(id bigint NOT NULL, line bigint NOT NULL, n bigint, PRIMARY KEY (id, line))"
CODE = """
CREATE SCHEMA app;
CREATE TABLE app.seen (who name); GRANT INSERT, SELECT ON app.seen TO PUBLIC; GRANT USAGE ON SCHEMA app TO PUBLIC;
CREATE FUNCTION app.who() RETURNS bigint LANGUAGE plpgsql AS
    $$BEGIN INSERT INTO app.seen VALUES (current_user); RETURN 0; END$$;
CREATE FUNCTION app.note(x bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
    $$BEGIN PERFORM set_config('app.who', current_setting('app.who', true) || ' ' || current_user, false);
    RETURN x; END$$;
CREATE FUNCTION app.noted() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM app.who(); RETURN NEW; END$$;
CREATE TYPE app.boxed AS (value bigint);
CREATE FUNCTION app.unbox(app.boxed) RETURNS bigint LANGUAGE plpgsql AS
    $$BEGIN PERFORM app.who(); RETURN ($1).value; END$$;
CREATE CAST (app.boxed AS bigint) WITH FUNCTION app.unbox(app.boxed) AS ASSIGNMENT;
"""


@pytest.fixture
def owner(pair: dict[str, str]) -> Iterator[str]:
    with plain_role(pair) as role:
        for dsn in pair.values():
            with psycopg.connect(dsn, autocommit=True) as connection:
                name = connection.info.dbname
                connection.execute(f'GRANT CREATE ON DATABASE "{name}" TO {role}')
                run_as(connection, role, CODE)
        yield role


@pytest.fixture
def cluster(tmp_path: Path, pair: dict[str, str], owner: str) -> Iterator[Cluster]:
    made = owned_cluster(tmp_path, pair, owner, columns=COLUMNS, root="app.orders")
    with made.connect("a") as connection:
        run_as(connection, owner, "INSERT INTO app.orders SELECT i, 1, i FROM generate_series(1, 50) i")
    yield made
    made.close()


def meddled(cluster: Cluster, owner: str, *statements: str) -> tuple[Migration, set[str]]:
    """While the mirror stands, its table's owner runs these in one session that has written before: how the split
    ends, and whose rights the owner's code had."""
    who: set[str] = set()

    def meddle() -> None:
        with cluster.connect("a") as connection:
            run_as(connection, owner, "SET app.who = ''", "UPDATE app.orders SET n = n + 1", *statements)
            who.update(str(connection.execute("SELECT current_setting('app.who')").fetchall()[0][0]).split())

    done = split(cluster, {"left:mirroring": meddle})
    return done, who | {str(name) for (name,) in cluster.query("a", "SELECT who FROM app.seen")}


WRITES = ("DELETE FROM app.orders WHERE id < 10", "UPDATE app.orders SET id = id + 1000 WHERE id < 20")
WAYS = {
    "an index": ("CREATE INDEX ON app.orders ((app.note(1) + n))",),
    "statistics": ("CREATE STATISTICS app.s ON (app.note(1) + n), (n + 1) FROM app.orders_t2",),
    "a check": ("SET constraint_exclusion = on", "ALTER TABLE app.orders ADD CHECK (app.note(1) < 5 OR n < 0)"),
    "a policy": (
        "CREATE POLICY p ON app.orders_t2 USING (app.note(1) = 1)",
        "ALTER TABLE app.orders_t2 ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
    ),
    "a view in its place": (
        "ALTER TABLE app.orders_t2 RENAME TO aside",
        "CREATE VIEW app.orders_t2 AS SELECT id, app.who() AS line, n FROM app.aside",
    ),
    "a table in the place of a new one": (
        "DROP TABLE app.orders_t1000",
        "CREATE TABLE app.orders_t1000 (LIKE app.orders, PRIMARY KEY (id, line))",
        (
            "CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON app.orders_t1000"
            " FOR EACH ROW EXECUTE FUNCTION app.noted()"
        ),
        "UPDATE app.orders SET n = n + 1",
    ),
    "a cast": (
        "ALTER TABLE app.orders ALTER COLUMN n TYPE app.boxed USING ROW(n)::app.boxed",
        "INSERT INTO app.orders SELECT i, 2, ROW(2)::app.boxed FROM generate_series(1, 50) i",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_of_the_owners_runs_as_the_balancer(cluster: Cluster, owner: str, way: str) -> None:
    done, who = meddled(cluster, owner, *WAYS[way], *WRITES)
    assert who <= {owner}
    assert done.state == "failed"
    assert cluster.query("a", "SELECT 1 FROM app.orders WHERE id = 15") == []


def test_nobody_may_put_a_mirror_on_a_table_of_his_own(cluster: Cluster, owner: str) -> None:
    refused: list[str] = []

    def borrow() -> None:
        with cluster.connect("a") as connection:
            run_as(connection, owner, "CREATE TABLE app.mine (id bigint)")
            functions = cluster.query("a", "SELECT oid::regproc::text FROM pg_proc WHERE proname ~ '^mirror_m'")
            for (name,) in functions:
                make = f"CREATE TRIGGER t AFTER INSERT ON app.mine FOR EACH ROW EXECUTE FUNCTION {name}('m1', '5')"
                try:
                    run_as(connection, owner, make)
                except psycopg.errors.InsufficientPrivilege as error:
                    refused.append(str(error.diag.message_primary))
                    connection.rollback()

    assert split(cluster, {"left:mirroring": borrow}).state == "done"
    assert len(refused) == 1
