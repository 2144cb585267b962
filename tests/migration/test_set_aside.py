"""Rows that somebody wrote to a former owner, after switching its fence off: they are kept, and said to be."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from balancer.migration.journal import read_detail
from tests.support.cluster import Cluster
from tests.support.directed import LEAF, Beside, complaints, move, split, tally
from tests.support.nemeses import until

pytestmark = pytest.mark.always


def execute(cluster: Cluster, statement: str) -> None:
    with cluster.connect("a") as connection:
        connection.execute(statement.encode())


def kept_schemas(cluster: Cluster) -> list[str]:
    found = cluster.query("a", "SELECT nspname FROM pg_namespace WHERE starts_with(nspname, 'balancer_kept_')")
    return [str(name) for (name,) in found]


def write_behind_the_fence(cluster: Cluster, key: int, end: str = "ENABLE TRIGGER ALL") -> None:
    """In one transaction: what closes the fence again must not come between switching it off and the write."""
    with cluster.connect("a") as connection, connection.transaction():
        connection.execute(f"ALTER TABLE {LEAF} DISABLE TRIGGER ALL".encode())
        assert connection.execute(f"UPDATE {LEAF} SET n = 77 WHERE id = {key}".encode()).rowcount == 1
        connection.execute(f"ALTER TABLE {LEAF} {end}".encode())


def check_kept(cluster: Cluster, key: int) -> None:
    (schema,) = kept_schemas(cluster)
    assert cluster.query("a", f"SELECT n FROM {schema}.orders_t2 WHERE id = {key}") == [(77,)]
    (finding,) = complaints(cluster)
    assert f"schema {schema}: rows of tablet 2" in finding
    assert "1 rows were written here since" in finding
    assert len({number for content in cluster.rows().values() for number in content}) == 1000
    execute(cluster, f"DROP SCHEMA {schema} CASCADE")
    assert complaints(cluster) == []


@pytest.mark.parametrize("end", ["ENABLE TRIGGER ALL", "ENABLE ALWAYS TRIGGER ALL", "DISABLE TRIGGER ALL"])
@pytest.mark.parametrize("point", ["left:opening", "entered:retiring"])
def test_a_write_to_the_former_owner_of_a_moved_tablet_is_kept(cluster: Cluster, point: str, end: str) -> None:
    if end == "ENABLE ALWAYS TRIGGER ALL":
        end = 'ENABLE ALWAYS TRIGGER "!balancer_fence", ENABLE ALWAYS TRIGGER "!balancer_fence_truncate"'
    key = tally(cluster).key
    done = move(cluster, {point: lambda: write_behind_the_fence(cluster, key, end)})
    assert done.state == "done"
    assert "1 rows were written here since" in read_detail(done).kept
    check_kept(cluster, key)


def test_a_write_to_the_old_partition_of_a_split_is_kept(cluster: Cluster) -> None:
    key = tally(cluster).key
    done = split(cluster, {"entered:retiring": lambda: write_behind_the_fence(cluster, key)})
    assert done.state == "done"
    check_kept(cluster, key)


def test_a_fence_that_is_switched_off_during_the_grace_is_closed_again(cluster: Cluster) -> None:
    cluster.settings = replace(cluster.settings, retire_grace=4.0)
    key = tally(cluster).key
    moving = Beside(lambda: move(cluster, {"entered:retiring": reached}))
    with cluster.connect("a") as observer:
        said = "SELECT FROM balancer.tablet WHERE id = 2 AND state = 'moved'"
        until(lambda: observer.execute(said.encode()).fetchone() is not None, "the move")
        until(lambda: arrived, "retiring")
        write_behind_the_fence(cluster, key, "DISABLE TRIGGER ALL")
        asked = f"SELECT tgenabled FROM pg_trigger WHERE tgrelid = '{LEAF}'::regclass AND tgname = '!balancer_fence'"
        until(lambda: observer.execute(asked.encode()).fetchone() == ("A",), "the closing")
    arrived.clear()
    assert moving.result().state == "done"
    check_kept(cluster, key)


def test_a_fence_that_is_switched_off_by_an_open_transaction_is_seen_under_its_lock(cluster: Cluster) -> None:
    """It began before the former owner is told once more, which waits for it, and commits then."""
    key = tally(cluster).key
    with cluster.connect("a") as writer, cluster.connect("a") as observer:

        def write() -> None:
            writer.execute("BEGIN")
            writer.execute(f"ALTER TABLE {LEAF} DISABLE TRIGGER ALL".encode())
            writer.execute(f"UPDATE {LEAF} SET n = 77 WHERE id = {key}".encode())

        moving = Beside(lambda: move(cluster, {"entered:retiring": write}))
        waiting = f"SELECT FROM pg_locks WHERE relation = to_regclass('{LEAF}') AND NOT granted"
        until(lambda: observer.execute(waiting.encode()).fetchone() is not None, "the waiting")
        writer.execute("COMMIT")
        assert moving.result().state == "done"
    check_kept(cluster, key)


arrived: list[bool] = []


def reached() -> None:
    arrived.append(True)


@pytest.mark.parametrize("operation", [move, split])
def test_rows_that_nobody_wrote_to_are_dropped(cluster: Cluster, operation: Callable[..., object]) -> None:
    """Also when other things of the partition were changed."""
    operation(cluster, {"entered:retiring": lambda: execute(cluster, f"ANALYZE {LEAF}")})
    assert kept_schemas(cluster) == []
    assert complaints(cluster) == []


def test_a_schema_of_somebody_else_does_not_get_the_rows(cluster: Cluster) -> None:
    key = tally(cluster).key
    names: list[str] = []

    def prepare() -> None:
        (name,) = cluster.directory().snapshot().migrations
        names.append(f"balancer_kept_{name}")
        execute(cluster, "DROP ROLE IF EXISTS squatter; CREATE ROLE squatter")
        execute(cluster, f"CREATE SCHEMA {names[0]} AUTHORIZATION squatter")
        write_behind_the_fence(cluster, key)

    moving = Beside(lambda: move(cluster, {"entered:retiring": prepare}))
    with cluster.connect("a") as observer:
        gone = f"SELECT FROM pg_inherits WHERE inhrelid = to_regclass('{LEAF}')"
        until(lambda: names and observer.execute(gone.encode()).fetchone() is None, "the detachment")
        assert not moving.over
        execute(cluster, f"DROP SCHEMA {names[0]}; DROP ROLE squatter")
    assert moving.result().state == "done"
    check_kept(cluster, key)


def test_rows_whose_owner_s_code_would_run_are_kept_and_not_counted(cluster: Cluster) -> None:
    """An index that came after the switch: planning the count would call its function as us."""
    key = tally(cluster).key
    execute(cluster, "DROP ROLE IF EXISTS sly_owner")
    execute(cluster, "CREATE ROLE sly_owner")

    def spoil() -> None:
        write_behind_the_fence(cluster, key)
        execute(cluster, "CREATE TABLE seen (who text)")
        execute(
            cluster, "CREATE FUNCTION really() RETURNS void LANGUAGE sql AS 'INSERT INTO public.seen VALUES (user)'"
        )
        execute(
            cluster,
            "CREATE FUNCTION note_who() RETURNS int LANGUAGE plpgsql IMMUTABLE AS"
            " $$ BEGIN PERFORM public.really(); RETURN 1; END $$",
        )
        execute(cluster, f"ALTER TABLE {LEAF} SET (autovacuum_enabled = off)")  # which calls it too, as its owner
        execute(cluster, f"CREATE INDEX ON {LEAF} (n) WHERE note_who() = 1")
        execute(cluster, "ALTER FUNCTION note_who() OWNER TO sly_owner")
        execute(cluster, "TRUNCATE seen")

    done = move(cluster, {"entered:retiring": spoil})
    assert done.state == "done"
    assert "an unknown number of rows were written here since" in read_detail(done).kept
    assert cluster.query("a", "SELECT who FROM seen") == []
    (schema,) = kept_schemas(cluster)
    execute(cluster, f"DROP SCHEMA {schema} CASCADE")
    execute(cluster, "DROP FUNCTION note_who()")
    execute(cluster, "DROP ROLE sly_owner")


def test_a_schema_that_only_looks_like_it_is_not_named(cluster: Cluster) -> None:
    """A person would be told to drop it, by a name that somebody else has chosen."""
    execute(cluster, "DROP ROLE IF EXISTS sly_namer")
    execute(cluster, "CREATE ROLE sly_namer")
    execute(cluster, 'CREATE SCHEMA "balancer_kept_x; ALTER ROLE sly_namer SUPERUSER; --" AUTHORIZATION sly_namer')
    execute(cluster, "CREATE SCHEMA balancer_kept_y AUTHORIZATION sly_namer")
    assert complaints(cluster) == []
    execute(cluster, "DROP OWNED BY sly_namer")
    execute(cluster, "DROP ROLE sly_namer")
