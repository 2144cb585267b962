"""`balancer ddl`: a change on nodes of both versions, killed at each word, held up, refused; never twice or half."""

import json
import os
import random
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.handover_record import HandoverRecord
from balancer.directory.identity import identity_of
from balancer.directory.model import Pause, Put
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Unavailable
from balancer.features.ddl.apply import ChangeRunner, changes_of
from balancer.features.ddl.statements import leaf_index
from balancer.naming import Name
from balancer.nodes.session.addresses import addresses_of
from balancer.settings import load_settings
from tests.support.commands import balancer as balancer_process
from tests.support.commands import balancer_here as balancer
from tests.support.directories import migration, transaction
from tests.support.forked import run_forked
from tests.support.nemeses import until
from tests.support.owned import plain_role
from tests.support.servers import Database

FILE = """
ALTER TABLE orders ADD COLUMN note text DEFAULT 'x';
CREATE INDEX CONCURRENTLY by_note ON orders (note);
ALTER TABLE orders ADD CONSTRAINT positive CHECK (id > 0);
ALTER TABLE orders ALTER COLUMN note SET NOT NULL;
"""
STEPS = 8
POINTS = 8  # of a change that are tried, chosen by the seed


@pytest.fixture
def databases(
    postgres15: PostgresServer, postgres18: PostgresServer, database: Callable[[PostgresServer], Database]
) -> list[Database]:
    return [database(postgres15), database(postgres18)]


@pytest.fixture
def config(tmp_path: Path, databases: list[Database]) -> Path:
    (tmp_path / "bundles").mkdir()
    (tmp_path / "balancer.toml").write_text(f'directory = "sqlite://{tmp_path}/directory.db"\n')
    nodes = "".join(f"[nodes.{name}]\ndsn = '{db.dsn}'\n" for name, db in zip("ab", databases, strict=True))
    table = '[tables.orders]\nroots = ["public.orders"]\nlayout = "hash"\nkey = ["id"]\n'
    (tmp_path / "bundles" / "shop.toml").write_text(nodes + table)
    (tmp_path / "change.sql").write_text(FILE)
    made = tmp_path / "balancer.toml"
    adopted(made, databases)
    return made


def adopted(config: Path, databases: list[Database], owner: str = "") -> None:
    with databases[0].connect() as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, n int) PARTITION BY HASH (id)")
        for remainder in range(2):
            connection.execute(
                f"CREATE TABLE p{remainder} PARTITION OF orders FOR VALUES WITH (MODULUS 2, REMAINDER {remainder})"
            )
        connection.execute("INSERT INTO orders SELECT i, i FROM generate_series(1, 100) i")
    done = balancer("table", "adopt", "shop", "orders", "--config", config)
    assert done.code == 0, done.err


def started_over(config: Path, databases: list[Database]) -> None:
    for database in databases:
        with database.connect() as connection:
            connection.execute("DROP TABLE IF EXISTS orders CASCADE")
            connection.execute("DROP SCHEMA IF EXISTS balancer CASCADE")
    for file in config.parent.glob("directory.db*"):
        file.unlink()
    adopted(config, databases)


def look(database: Database) -> list[tuple[object, ...]]:
    """The root and its leaves: columns, constraints, indexes and what there is of each."""
    statement = """
        WITH family AS (
            SELECT 'orders'::regclass AS oid
            UNION SELECT inhrelid FROM pg_inherits WHERE inhparent = 'orders'::regclass
        )
        SELECT 'column', attrelid::regclass::text, attname::text, attnotnull::text
        FROM pg_attribute JOIN family ON oid = attrelid WHERE attnum > 0 AND NOT attisdropped
        UNION ALL SELECT 'constraint', conrelid::regclass::text, conname::text, convalidated::text
        FROM pg_constraint k JOIN family ON family.oid = conrelid WHERE contype = 'c'
        UNION ALL SELECT 'index', indrelid::regclass::text, indexrelid::regclass::text, indisvalid::text
        FROM pg_index JOIN family ON oid = indrelid
        ORDER BY 1, 2, 3
    """
    with database.connect() as connection:
        return connection.execute(statement.encode()).fetchall()


def with_death_at(point: int, words: list[str]) -> "subprocess.CompletedProcess[str]":
    return run_forked("tests.support.ddl_killed", str(point), *words)


def apply(config: Path, *more: object) -> tuple[int, str, str]:
    done = balancer("ddl", "apply", "shop", *map(str, more), "--config", config)
    return done.code, done.out, done.err


def paused(config: Path) -> bool:
    with open_directory(f"sqlite://{config.parent}/directory.db") as directory:
        return "shop" in directory.snapshot().pauses


def check_applied(config: Path, databases: list[Database]) -> None:
    for database in databases:
        found = look(database)
        with database.connect() as connection:
            leaves = [
                str(row[0])
                for row in connection.execute(
                    "SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'orders'::regclass ORDER BY 1"
                )
            ]
            noted = connection.execute("SELECT count(*) FROM balancer.ddl_step WHERE number > 0").fetchone()
        tables = ["orders", *leaves]
        assert [row for row in found if row[2] == "note"] == [("column", table, "note", "true") for table in tables]
        assert [row for row in found if row[0] == "constraint"] == [
            ("constraint", table, "positive", "true") for table in tables
        ]
        assert [row[3] for row in found if row[0] == "index" and "by_note" in str(row[2])] == ["true"] * len(tables)
        assert noted == (STEPS,)
    assert not paused(config)


def test_a_change_is_shown_then_done_and_its_state_told(config: Path, databases: list[Database]) -> None:
    before = [look(database) for database in databases]
    code, out, err = apply(config, config.parent / "change.sql", "--dry-run", "--output", "json")
    assert code == 0, err
    shown = json.loads(out)
    assert [(row["step"], row["undo"]) for row in shown] == [(number, "yes") for number in range(1, STEPS + 1)]
    assert [look(database) for database in databases] == before
    assert not paused(config)
    code, out, err = apply(config, config.parent / "change.sql")
    assert code == 0, err
    check_applied(config, databases)
    status = json.loads(balancer("ddl", "status", "--config", config, "--output", "json").out)
    assert [(row["state"], row["nodes"]) for row in status] == [("done", "a 8 of 8, b 8 of 8")]
    assert balancer("doctor", "--config", config).code == 0
    code, _, err = apply(config, "--continue")
    assert (code, "no schema change that has not ended" in err) == (4, True)


@pytest.mark.timeout(600)
def test_a_change_that_is_killed_goes_on_or_is_taken_back(config: Path, databases: list[Database]) -> None:
    before = [look(database) for database in databases]
    words = ["ddl", "apply", "shop", str(config.parent / "change.sql"), "--config", str(config)]
    whole = with_death_at(0, words)
    assert whole.returncode == 0, whole.stderr
    (count,) = re.findall(r"words (\d+)", whole.stdout)
    everything = os.environ["SAMPLE_SEED"] == "all"
    chance = random.Random(os.environ["SAMPLE_SEED"])
    points = range(1, int(count) + 1) if everything else sorted(chance.sample(range(1, int(count) + 1), POINTS))
    print(f"{count} words; killed at {list(points)}")
    for point in points:
        started_over(config, databases)
        killed = with_death_at(point, words)
        assert killed.returncode == -9, killed.stderr
        if "--undo" in (way := chance.choice(["--continue", "--undo"])):
            code, _, err = apply(config, way)
            if "no schema change" in err:  # it was killed before it began
                assert code == 4
            else:
                assert code == 0, (point, err)
            assert [look(database) for database in databases] == before, point
            assert not paused(config)
            code, _, err = apply(config, config.parent / "change.sql")
            assert code == 0, (point, err)
        else:
            code, _, err = apply(config, way)
            if "no schema change" in err:
                code, _, err = apply(config, config.parent / "change.sql")
            assert code == 0, (point, err)
        check_applied(config, databases)


def test_a_lock_that_is_held_is_waited_for_and_named(config: Path, databases: list[Database]) -> None:
    change = config.parent / "add.sql"
    change.write_text("ALTER TABLE orders ADD COLUMN note text")
    before = [look(database) for database in databases]
    with databases[1].connect(autocommit=False) as other:
        other.execute("LOCK TABLE orders IN ACCESS SHARE MODE")
        code, _, err = apply(config, change, "--patience", "2s")
        assert (code, "trying it on node b was given up after 2 s" in err) == (3, True), err
    assert [look(database) for database in databases] == before
    assert not paused(config), "it was not begun"
    with databases[1].connect(autocommit=False) as other, ThreadPoolExecutor(1) as beside:
        other.execute("LOCK TABLE orders IN ACCESS SHARE MODE")
        words = ("ddl", "apply", "shop", str(change), "--config", str(config))
        waiting = beside.submit(lambda: balancer_process(*words))
        with databases[0].connect() as observer:
            asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tablet-balancer ddl'"
            until(lambda: observer.execute(asked.encode()).fetchone() != (0,), "the change")
        other.rollback()
        done = waiting.result()
    assert done.code == 0, done.err
    assert all("note" in str(look(database)) for database in databases)


def test_moves_are_waited_for_and_nothing_is_changed_beside_them(config: Path, databases: list[Database]) -> None:
    before = [look(database) for database in databases]
    with open_directory(f"sqlite://{config.parent}/directory.db") as directory:
        view = directory.snapshot()
        record = migration(view.tablet(1), "b", "copying")
        directory.commit(transaction([Put(record)], view.version))
        code, _, err = apply(config, config.parent / "change.sql", "--patience", "1s")
        assert (code, f"migration {record.id} of bundle shop has not ended" in err) == (3, True), err
        assert [look(database) for database in databases] == before
        assert paused(config)
        code, _, err = apply(config, config.parent / "change.sql")
        assert (code, "has not ended: use --continue or --undo" in err) == (4, True), err
        directory.commit(transaction([Put(replace(record, state="done", finished=True))], directory.snapshot().version))
    code, _, err = apply(config, "--continue")
    assert code == 0, err
    check_applied(config, databases)


def test_an_operators_pause_stays(config: Path, databases: list[Database]) -> None:
    with open_directory(f"sqlite://{config.parent}/directory.db") as directory:
        directory.commit(transaction([Put(Pause("shop", None, "me", "lunch"))], directory.snapshot().version))
        code, _, err = apply(config, config.parent / "change.sql")
        assert code == 0, err
        assert directory.snapshot().pauses["shop"].reason == "lunch"


def test_a_bundle_that_is_being_handed_over_is_not_changed_though_it_is_paused(
    config: Path, databases: list[Database]
) -> None:
    """With an operator's pause there is nothing to be written down. But the nodes go to the other directory one by one,
    and the change would stay half-done there."""
    before = [look(database) for database in databases]
    with open_directory(f"sqlite://{config.parent}/directory.db") as directory:
        directory.commit(transaction([Put(Pause("shop", None, "ann", "a holiday"))], directory.snapshot().version))
        leaving = HandoverRecord("h1", "closed", "sqlite:///other.db", "1", ("shop",)).pause("shop", "ann")
        directory.commit(transaction([Put(leaving)], directory.snapshot().version))
        code, _, err = apply(config, config.parent / "change.sql")
        assert (code, "is being handed over" in err) == (4, True), err
        assert changes_of(directory) == [], "it has not begun, and is in nobody's way"
    assert [look(database) for database in databases] == before


def test_what_one_node_refuses_is_found_before_anything_is_changed(config: Path, databases: list[Database]) -> None:
    with databases[1].connect() as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('good')")
    change = config.parent / "bad.sql"
    change.write_text("ALTER TABLE orders ADD COLUMN note text; CREATE TYPE mood AS ENUM ('good', 'bad')")
    before = [look(database) for database in databases]
    code, _, err = apply(config, change)
    assert (code, 'node b refuses it: type "mood" already exists' in err) == (4, True), err
    assert [look(database) for database in databases] == before
    assert not paused(config)
    change.write_text("ALTER TABLE p0 ADD COLUMN note text")
    code, _, err = apply(config, change)
    assert (code, "public.p0 is a tablet; give the change to its root" in err) == (2, True), err


def test_a_step_that_fails_leaves_it_held_and_can_be_taken_back(config: Path, databases: list[Database]) -> None:
    before = [look(database) for database in databases]
    change = config.parent / "bad.sql"
    change.write_text("ALTER TABLE orders ADD COLUMN x int; ALTER TABLE orders ADD CONSTRAINT small CHECK (n < 50)")
    code, _, err = apply(config, change)
    assert (code, "small" in err) == (4, True), err
    assert paused(config)
    (row,) = json.loads(balancer("ddl", "status", "--config", config, "--output", "json").out)
    assert row["state"] == "running"
    assert "small" in row["error"]
    code, _, err = apply(config, "--undo")
    assert code == 0, err
    assert [look(database) for database in databases] == before
    assert not paused(config)


def test_what_was_there_before_the_change_is_there_after_it_was_taken_back(
    config: Path, databases: list[Database]
) -> None:
    """On one node a leaf's column is NOT NULL, on the other, which has none, the root's."""
    with databases[0].connect() as connection:
        connection.execute("ALTER TABLE p1 ALTER COLUMN n SET NOT NULL")
    with databases[1].connect() as connection:
        connection.execute("ALTER TABLE orders ALTER COLUMN n SET NOT NULL")
    before = [columns_and_indexes(database) for database in databases]
    assert before[0] != before[1]
    change = config.parent / "bad.sql"
    change.write_text(
        "ALTER TABLE orders ALTER COLUMN n SET NOT NULL;"
        " CREATE INDEX fresh ON orders (n); ALTER TABLE orders ADD CONSTRAINT small CHECK (n < 0)"
    )
    code, _, err = apply(config, change)
    assert (code, "small" in err) == (4, True), err
    code, _, err = apply(config, "--undo")
    assert code == 0, err
    assert [columns_and_indexes(database) for database in databases] == before
    assert not paused(config)


def columns_and_indexes(database: Database) -> list[tuple[object, ...]]:
    with database.connect() as connection:
        return connection.execute(
            "SELECT c.relname, a.attnotnull, (SELECT array_agg(x.indexrelid::regclass::text || x.indisvalid ORDER BY 1)"
            " FROM pg_index x WHERE x.indrelid = c.oid) FROM pg_partition_tree('orders') t JOIN pg_class c"
            " ON c.oid = t.relid JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'n' ORDER BY 1"
        ).fetchall()


def test_roots_that_differ_afterwards_are_named(config: Path, databases: list[Database]) -> None:
    with databases[1].connect() as connection:
        connection.execute("ALTER TABLE orders ADD COLUMN stray int")
    code, _, err = apply(config, config.parent / "change.sql")
    assert (code, "column stray is absent on a and integer on b" in err) == (4, True), err
    with databases[1].connect() as connection:
        connection.execute("ALTER TABLE orders DROP COLUMN stray")
    code, _, err = apply(config, "--continue")
    assert code == 0, err
    assert not paused(config)


def give_to(role: str, databases: list[Database]) -> None:
    """The root and its leaves get another owner, on every node."""
    family = (
        "SELECT 'orders' UNION SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'orders'::regclass"
    )
    for database in databases:
        with database.connect() as connection:
            for (table,) in connection.execute(family).fetchall():
                connection.execute(f"ALTER TABLE {table} OWNER TO {role}".encode())


def test_what_a_statement_calls_has_the_owners_rights_only(config: Path, databases: list[Database]) -> None:
    """A default is a function of the owner's: it tries to become who we are."""
    dsns = {name: database.dsn for name, database in zip("ab", databases, strict=True)}
    spy = """
        CREATE TABLE public.seen (who text, said text);
        CREATE FUNCTION public.spy() RETURNS int LANGUAGE plpgsql VOLATILE AS $$
        DECLARE said text := 'became';
        BEGIN
            BEGIN
                PERFORM set_config('role', 'none', false);
            EXCEPTION WHEN OTHERS THEN said := sqlerrm;
            END;
            INSERT INTO public.seen VALUES (current_user, said);
            RETURN 1;
        END $$
    """
    with plain_role(dsns, spy) as role:
        give_to(role, databases)
        change = config.parent / "spy.sql"
        change.write_text("ALTER TABLE orders ADD COLUMN x int DEFAULT public.spy()")
        code, _, err = apply(config, change)
        assert code == 0, err
        with databases[0].connect() as connection:
            seen = set(connection.execute("SELECT who, said FROM public.seen").fetchall())
        assert [who for who, _ in seen] == [role]
        assert all("cannot set parameter" in str(said) for _, said in seen), seen


def test_what_a_statement_leaves_to_the_commit_does_not_run_with_our_rights(
    config: Path, databases: list[Database]
) -> None:
    """The owner's default writes to a table whose deferred trigger would run when we commit."""
    dsns = {name: database.dsn for name, database in zip("ab", databases, strict=True)}
    trap = """
        CREATE TABLE public.caught (who text);
        CREATE TABLE public.bait (n int);
        CREATE FUNCTION public.late() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO public.caught VALUES (current_user); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER late AFTER INSERT ON public.bait DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION public.late();
        CREATE FUNCTION public.lure() RETURNS int LANGUAGE plpgsql VOLATILE AS
            $$ BEGIN INSERT INTO public.bait VALUES (1); RETURN 1; END $$;
    """
    with plain_role(dsns, trap) as role:
        give_to(role, databases)
        change = config.parent / "trap.sql"
        change.write_text("ALTER TABLE orders ADD COLUMN x int DEFAULT public.lure()")
        code, _, err = apply(config, change, "--allow-rewrite")
        assert (code, "the deferrable trigger late of" in err) == (4, True), err
        for database in databases:
            with database.connect() as connection:
                assert connection.execute("SELECT * FROM public.caught WHERE who <> %s", (role,)).fetchall() == []


LEFT_BEHIND = {
    "search path": "PERFORM set_config('search_path', 'evil, pg_catalog', false);",
    "prepared statement": """
        EXECUTE 'DEALLOCATE "balancer ours"';
        EXECUTE 'PREPARE "balancer ours" AS SELECT evil.note()';
    """,
    "cursor": "EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT evil.note()';",
}


@pytest.mark.parametrize("left", LEFT_BEHIND)
def test_what_a_statement_leaves_in_the_session_does_not_run_with_our_rights(
    config: Path, databases: list[Database], left: str
) -> None:
    """A cursor is read when we commit, a prepared statement has our name for one, and a path gives names meanings."""
    dsns = {name: database.dsn for name, database in zip("ab", databases, strict=True)}
    trap = f"""
        CREATE TABLE evil.seen (who text);
        CREATE FUNCTION evil.note() RETURNS int LANGUAGE plpgsql VOLATILE AS
            $$ BEGIN INSERT INTO evil.seen VALUES (current_user); RETURN 0; END $$;
        CREATE FUNCTION evil.to_regclass(text) RETURNS regclass LANGUAGE plpgsql VOLATILE AS
            $$ BEGIN PERFORM evil.note(); RETURN pg_catalog.to_regclass($1); END $$;
        CREATE FUNCTION evil.once() RETURNS int LANGUAGE plpgsql VOLATILE AS $$
            BEGIN
                IF NOT EXISTS (SELECT FROM pg_cursors WHERE name = 'c') THEN {LEFT_BEHIND[left]} END IF;
                RETURN 1;
            END $$;
    """
    with plain_role(dsns) as role:
        for database in databases:
            with database.connect() as connection:
                connection.execute(f"CREATE SCHEMA evil AUTHORIZATION {role}; SET ROLE {role}; {trap}".encode())
        give_to(role, databases)
        change = config.parent / "trap.sql"
        change.write_text(
            "ALTER TABLE orders ADD COLUMN x int DEFAULT evil.once(); ALTER TABLE orders ADD COLUMN y int"
        )
        code, _, err = apply(config, change)
        with databases[0].connect() as connection:
            assert connection.execute("SELECT * FROM evil.seen WHERE who <> %s", (role,)).fetchall() == []
        assert code == 0, err


def test_a_change_is_not_taken_back_while_another_process_carries_it_out(
    config: Path, databases: list[Database]
) -> None:
    """Else the one says that it is done, the other that it is undone, and half of it is there."""
    settings = load_settings(config)
    refused: list[str] = []

    def runner(directory: Directory, tell: Callable[[str], None], patience: float) -> ChangeRunner:
        addresses = addresses_of([settings.bundle("shop")], identity_of(directory.snapshot()))
        return ChangeRunner(directory, "shop", addresses, "directory", SystemClock(), patience=patience, tell=tell)

    with open_directory(f"sqlite://{config.parent}/directory.db") as directory:
        other = runner(directory, lambda _: None, 0.0)

        def tell(text: str) -> None:
            if text.startswith("step 2 on node a"):
                with pytest.raises(Unavailable) as caught:
                    other.take_back()
                refused.append(str(caught.value))

        first = runner(directory, tell, 10.0)
        try:
            ended = first.apply("ALTER TABLE orders ADD COLUMN x int; ALTER TABLE orders ADD COLUMN y int", "ann")
        finally:
            first.close()
            other.close()
    assert ended.state == "done"
    assert "another process" in refused[0]
    for database in databases:
        assert {row[2] for row in look(database) if row[0] == "column"} == {"id", "n", "x", "y"}


def test_what_an_interrupted_build_has_left_is_built_again(config: Path, databases: list[Database]) -> None:
    name = leaf_index("by_n", Name("public", "p0")).name
    with databases[0].connect() as connection:
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute(f"CREATE UNIQUE INDEX CONCURRENTLY {name} ON p0 ((1))".encode())
        left = f"SELECT indisvalid FROM pg_index WHERE indexrelid = '{name}'::regclass"
        assert connection.execute(left.encode()).fetchone() == (False,)
    change = config.parent / "index.sql"
    change.write_text("CREATE INDEX by_n ON orders (n)")
    code, _, err = apply(config, change)
    assert code == 0, err
    with databases[0].connect() as connection:
        assert connection.execute(left.encode()).fetchone() == (True,)
        assert "(n)" in str(connection.execute("SELECT pg_get_indexdef(%s::regclass)", (name,)).fetchone())
