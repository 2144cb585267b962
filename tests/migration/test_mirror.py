"""From the mirror on, old and new partitions are equal in every snapshot, whatever is written and however."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.migration.journal import read_detail
from balancer.migration.machine import State
from tests.support import nemeses
from tests.support.cluster import AMPLE, Cluster, build, hash_table, hash_tablets, insert_rows
from tests.support.directed import LEAF, Beside, complaints, split, tally
from tests.support.resharding import begin_split
from tests.support.spy import Spy

pytestmark = pytest.mark.always

NEW = ("orders_t1000", "orders_t1001")
COLUMNS = """(id bigint NOT NULL, n bigint NOT NULL DEFAULT 0, note text, at bigint NOT NULL DEFAULT 0, "new part" int,
    twice bigint GENERATED ALWAYS AS (n * 2) STORED, PRIMARY KEY (id),
    CONSTRAINT place UNIQUE (id, at) DEFERRABLE)"""
MOMENT = "left:mirroring"


@pytest.fixture
def single(
    tmp_path: Path, any_postgres: PostgresServer, database: Any, request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """One node, each version in turn. The key may be one that is checked late."""
    tablets = hash_tablets(4, ["a"])
    columns = COLUMNS.replace("(id),", f"(id) {getattr(request, 'param', '')},")
    made = build(tmp_path, {"a": database(any_postgres).dsn}, hash_table(), tablets, columns)
    made.settings = replace(made.settings, **{**AMPLE, "lock_timeout": 0.5})
    insert_rows(made, tablets, range(1000))
    yield made
    made.close()


def ids(cluster: Cluster, count: int = 8) -> list[int]:
    """Keys of the tablet that is split."""
    found = cluster.query("a", f"SELECT id FROM {LEAF} ORDER BY id LIMIT {count}")
    return [int(str(number)) for (number,) in found]


def free(cluster: Cluster, count: int = 4) -> list[int]:
    """Keys that it would have."""
    where = "satisfies_hash_partition('orders'::regclass, 4, 1, id::bigint)"
    found = cluster.query("a", f"SELECT id FROM generate_series(5000, 5200) AS id WHERE {where} LIMIT {count}")
    return [int(str(number)) for (number,) in found]


def difference(cluster: Cluster) -> list[tuple[object, ...]]:
    """Rows that only one side has, in one snapshot."""
    new = " UNION ALL ".join(f"SELECT * FROM {name}" for name in NEW)
    old = f"SELECT * FROM ONLY {LEAF}"
    return cluster.query("a", f"(({old}) EXCEPT ALL ({new})) UNION ALL (({new}) EXCEPT ALL ({old}))")


def run(connection: psycopg.Connection[Any], *statements: str) -> None:
    for statement in statements:
        connection.execute(statement.encode())


def function(name: str, body: str) -> str:
    return f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NULL; END $$"


def trigger(name: str, events: str) -> str:
    return f"CREATE TRIGGER {name} AFTER {events} ON orders FOR EACH ROW EXECUTE FUNCTION {name}()"


Case = tuple[Sequence[str], Sequence[str]]  # prepared before the split, written while the mirror stands

CASES: dict[str, Case] = {
    "rows of all kinds": (
        (),
        (
            "INSERT INTO orders (id, note) VALUES ({f0}, 'new'), ({f1}, 'new')",
            "UPDATE orders SET n = n + 1 WHERE id IN ({0}, {1}, {f0})",
            "DELETE FROM orders WHERE id = {2}",
            "UPDATE orders SET id = {f2} WHERE id = {3}",
            "UPDATE orders SET id = {2} WHERE id = {4}",
            "INSERT INTO orders (id) VALUES ({0}) ON CONFLICT (id) DO UPDATE SET n = -1, note = NULL",
            (
                "MERGE INTO orders USING (VALUES ({0}::bigint), ({f3})) AS v (i) ON id = i"
                " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id) VALUES (i)"
            ),
            "UPDATE orders_t2 SET note = repeat('x', 5000)",
            "UPDATE orders SET n = n - 1, note = note || 'y'",
            'UPDATE orders SET "new part" = 7 WHERE id = {5}',
        ),
    ),
    "rows that leave and come": (
        (),
        (
            "UPDATE orders SET id = 100000 + id WHERE id IN ({0}, {1}, {2})",
            "UPDATE orders SET id = id - 100000 WHERE id >= 100000",
            "UPDATE orders SET id = id + 1 WHERE id IN (SELECT id FROM orders ORDER BY id DESC LIMIT 1)",
        ),
    ),
    "an upset transaction": (
        (),
        (
            (
                "BEGIN; UPDATE orders SET n = 5 WHERE id = {0}; SAVEPOINT s; DELETE FROM orders WHERE id = {0};"
                " INSERT INTO orders (id, n) VALUES ({0}, 9); ROLLBACK TO s;"
                " UPDATE orders SET n = n + 1 WHERE id = {0}; COMMIT"
            ),
            "BEGIN; DELETE FROM orders_t2; ROLLBACK",
            (
                "BEGIN; SELECT FROM orders WHERE id = {1} FOR UPDATE; UPDATE orders SET n = 3 WHERE id = {1};"
                " SELECT FROM orders WHERE id = {1} FOR SHARE; UPDATE orders SET n = n + 1 WHERE id = {1}; COMMIT"
            ),
            (
                "SET session_replication_role = replica; UPDATE orders SET n = 4 WHERE id = {2};"
                " DELETE FROM orders WHERE id = {3}; SET session_replication_role = origin"
            ),
            "BEGIN ISOLATION LEVEL REPEATABLE READ; UPDATE orders SET n = 8 WHERE id = {4}; COMMIT",
            (
                "BEGIN ISOLATION LEVEL SERIALIZABLE; DELETE FROM orders WHERE id = {5};"
                " INSERT INTO orders (id, n) VALUES ({5}, 1); COMMIT"
            ),
        ),
    ),
    "a key taken again in one statement": (
        (),
        (
            (
                "WITH gone AS (DELETE FROM orders WHERE id = {0} RETURNING id)"
                " INSERT INTO orders (id, n) SELECT id, 77 FROM gone"
            ),
            (
                "WITH gone AS (DELETE FROM orders WHERE id IN ({1}, {2}) RETURNING id)"
                " INSERT INTO orders (id, n) SELECT id, 78 FROM gone"
            ),
        ),
    ),
    "a trigger that changes the row": (
        (
            function("after_all", "UPDATE orders SET note = TG_OP || n WHERE id = NEW.id AND note <> TG_OP || n;"),
            trigger("after_all", "INSERT OR UPDATE"),
        ),
        (
            "INSERT INTO orders (id, note) VALUES ({f0}, ''), ({f1}, '')",
            "UPDATE orders SET n = n + 1, note = '' WHERE id IN ({0}, {1}, {2})",
            "UPDATE orders SET id = {f2}, note = '' WHERE id = {0}",
        ),
    ),
    "a trigger that changes the other rows": (
        (
            function(
                "push",
                "IF pg_trigger_depth() = 1 THEN UPDATE orders SET n = n + 1 WHERE id <> NEW.id AND n < 1000;"
                " DELETE FROM orders WHERE id = NEW.n; END IF;",
            ),
            trigger("push", "UPDATE"),
        ),
        ("UPDATE orders SET n = id WHERE id IN ({0}, {1}, {2})", "UPDATE orders SET n = {3} WHERE id IN ({4}, {5})"),
    ),
    "a trigger that puts back what is deleted": (
        (
            function("back", "INSERT INTO orders (id, n) VALUES (OLD.id, OLD.n + 1);"),
            trigger("back", "DELETE"),
        ),
        ("DELETE FROM orders WHERE id IN ({0}, {1})", "DELETE FROM orders_t2"),
    ),
    "a trigger that takes another row's key": (
        (
            function("take", "IF OLD.id = {0} THEN INSERT INTO orders (id, n) VALUES ({1}, 99); END IF;"),
            trigger("take", "DELETE OR UPDATE OF id"),
        ),
        ("DELETE FROM orders WHERE id IN ({0}, {1})",),
    ),
    "a trigger that takes another row's key when keys change": (
        (
            function("take", "IF OLD.id = {0} THEN INSERT INTO orders (id, n) VALUES ({1}, 99); END IF;"),
            trigger("take", "UPDATE OF id"),
        ),
        ("UPDATE orders SET id = CASE id WHEN {0} THEN {f0}::bigint ELSE {f1} END WHERE id IN ({0}, {1})",),
    ),
    "a trigger that deletes what is new": (
        (function("away", "DELETE FROM orders WHERE id = NEW.id;"), trigger("away", "INSERT")),
        ("INSERT INTO orders (id) VALUES ({f0}), ({f1})",),
    ),
    "a trigger that changes keys": (
        (
            function("shift", "UPDATE orders SET id = id + 100000 WHERE id = NEW.id AND id < 100000;"),
            trigger("shift", "UPDATE"),
        ),
        ("UPDATE orders SET n = 1 WHERE id IN ({0}, {1}, {2})", "UPDATE orders SET id = {f0} WHERE id = {3}"),
    ),
    "places that change hands": (
        (),
        (
            "BEGIN; SET CONSTRAINTS ALL DEFERRED; UPDATE orders SET at = 1 - at; UPDATE orders SET at = 5; COMMIT",
            "UPDATE orders SET at = id",
        ),
    ),
}


LATE = (
    "UPDATE orders SET id = CASE id WHEN {0} THEN {1}::bigint ELSE {0} END WHERE id IN ({0}, {1})",
    "UPDATE orders SET id = CASE id WHEN {2} THEN {3}::bigint WHEN {3} THEN {4} ELSE {2} END WHERE id IN ({2},{3},{4})",
    (
        "BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO orders (id, n) VALUES ({0}, 7), ({0}, 8), ({f0}, 9);"
        " UPDATE orders SET n = n + 1 WHERE id = {0}; DELETE FROM orders WHERE id = {0} AND n <> 8; COMMIT"
    ),
    (
        "BEGIN; SET CONSTRAINTS ALL DEFERRED; UPDATE orders SET id = {1} WHERE id = {2};"
        " DELETE FROM orders WHERE id = {1}; COMMIT"
    ),
    (
        "BEGIN; SET CONSTRAINTS orders_pkey DEFERRED; INSERT INTO orders (id, n, at) VALUES ({5}, 7, 1);"
        " DELETE FROM orders WHERE id = {5} AND n = 7; COMMIT"
    ),
)


@pytest.mark.parametrize("single", ["DEFERRABLE INITIALLY DEFERRED", "DEFERRABLE"], indirect=True)
@pytest.mark.parametrize("case", [*CASES, "keys in turn"])
def test_both_sides_are_equal_where_the_key_is_checked_late(single: Cluster, case: str) -> None:
    prepared, written = CASES.get(case, ((), LATE))
    equal_after_each(single, prepared, [statement for statement in written if "ON CONFLICT" not in statement])


@pytest.mark.parametrize("case", CASES)
def test_both_sides_are_equal_after_every_statement(single: Cluster, case: str) -> None:
    equal_after_each(single, *CASES[case])


def equal_after_each(single: Cluster, prepared: Sequence[str], written: Sequence[str]) -> None:
    known, fresh = ids(single), free(single)
    names = {str(number): one for number, one in enumerate(known)} | {f"f{i}": one for i, one in enumerate(fresh)}

    def filled(text: str) -> str:
        for word, number in names.items():
            text = text.replace("{" + word + "}", str(number))
        return text

    with single.connect("a") as connection:
        run(connection, *map(filled, prepared))
    differed: list[object] = []

    def write() -> None:
        with single.connect("a") as connection:
            for statement in map(filled, written):
                connection.execute(statement.encode())
                differed.extend((statement, row) for row in difference(single))

    done = split(single, {MOMENT: write})
    assert differed == []
    assert (done.state, done.error) == ("done", "")
    assert read_detail(done).retries == 0
    assert complaints(single) == []


def test_what_is_written_during_mirror_and_swap_is_kept(single: Cluster) -> None:
    row = tally(single)
    done = split(single, {MOMENT: row.write_everywhere, "entered:swapping": row.write_everywhere})
    assert done.state == "done"
    assert row.faults() == []
    assert row.kept == 4


def test_a_value_that_two_rows_have_in_turn_fails_no_statement(single: Cluster) -> None:
    """When the first row's trigger gives the note to the third, the mirror has not heard yet that the second gave it
    up."""
    first, second, third = ids(single, 3)
    with single.connect("a") as connection:
        run(
            connection,
            "CREATE UNIQUE INDEX one_note ON orders_t2 (note)",
            f"UPDATE orders SET note = 'taken' WHERE id = {second}",
            function("take", f"UPDATE orders SET note = 'taken' WHERE id = {third} AND pg_trigger_depth() = 1;"),
            trigger("take", "UPDATE"),
        )

    def write() -> None:
        with single.connect("a") as connection:
            run(connection, f"UPDATE orders SET note = 'given up ' || id WHERE id IN ({first}, {second})")

    done = split(single, {MOMENT: write})
    assert (done.state, done.error) == ("done", "")
    assert read_detail(done).retries > 0  # it had to be replayed
    found = single.query("a", f"SELECT note FROM orders WHERE id IN ({first}, {second}, {third}) ORDER BY id")
    assert found == [(f"given up {first}",), (f"given up {second}",), ("taken",)]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_who_writes_by_an_older_snapshot_is_refused_and_may_try_again(single: Cluster, level: str) -> None:
    key, fresh = ids(single, 1)[0], free(single, 2)
    changes = (
        f"UPDATE orders SET n = 1 WHERE id = {key}",
        f"DELETE FROM orders WHERE id = {key}",
        f"INSERT INTO orders (id) VALUES ({fresh[0]})",
        f"UPDATE orders SET id = {fresh[1]} WHERE id = {key}",
    )
    answers: list[str | None] = []
    holders = [single.connect("a") for _ in changes]

    def begin() -> None:
        for holder in holders:
            run(holder, f"BEGIN ISOLATION LEVEL {level}", "SELECT count(*) FROM orders")

    def write() -> None:
        for holder, change in zip(holders, changes, strict=True):
            try:
                run(holder, change)
            except psycopg.Error as error:
                answers.append(error.sqlstate)
                holder.rollback()
                run(holder, f"BEGIN ISOLATION LEVEL {level}", change, "ROLLBACK")
            else:
                answers.append(None)
                run(holder, "COMMIT")
            holder.close()

    with Late(single, begin, write) as watch:
        done = split(single, watch.spy)
    assert answers == ["40001"] * 4
    assert (done.state, done.error) == ("done", "")
    assert sum(map(len, single.rows().values())) == 1000


def test_who_reads_by_an_older_snapshot_is_waited_for_and_keeps_nobody_waiting(single: Cluster) -> None:
    """Also where the server does not say when its transaction began."""
    row = tally(single)
    with single.connect("a") as reader, single.connect("a") as observer:
        run(reader, "SET track_activities = off", "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1")
        migration = Beside(lambda: split(single, {}))
        stands = "SELECT 1 FROM pg_trigger WHERE tgname = '!balancer_mirror' AND tgenabled = 'A'"
        nemeses.until(lambda: observer.execute(stands.encode()).fetchall(), "the mirror stands")
        nemeses.came(lambda: migration.over, STANDING)
        assert not migration.over
        row.write_everywhere()
        assert row.answers == ["1", "1"]
        assert reader.execute("SELECT count(*), sum(n) FROM orders").fetchall() == [(1000, 0)]
        run(reader, "COMMIT")
        assert migration.result().state == "done"
    assert row.faults() == []


STANDING = 3.0
"""Seconds after which a migration that waits for a snapshot is believed to do so."""


class Late:
    """Runs something at the end of catching up, and something else once the mirror stands, while it waits."""

    def __init__(self, cluster: Cluster, first: Callable[[], object], then: Callable[[], object]) -> None:
        self._cluster, self._then = cluster, then
        self.spy = Spy({"left:catching_up": first, "entered:mirroring": self._start})
        self._beside = threading.Thread(target=self._work)

    def _start(self) -> None:
        self._beside.start()

    def _work(self) -> None:
        stands = "SELECT 1 FROM pg_trigger WHERE tgname = '!balancer_mirror' AND tgenabled = 'A'"
        nemeses.until(lambda: self._cluster.query("a", stands), "the mirror stands")
        self._then()

    def __enter__(self) -> "Late":
        return self

    def __exit__(self, *error: object) -> None:
        self._beside.join()


# What the mirror must not do: fail a statement, or run an owner's code as us.


def broken(single: Cluster, *statements: str) -> str:
    """These run in one session, which has written before, while the mirror stands; how the split ends."""
    key = ids(single, 1)[0]

    def write() -> None:
        with single.connect("a") as connection:
            run(connection, f"UPDATE orders SET n = 1 WHERE id = {key}", *statements)

    done = split(single, {MOMENT: write})
    assert done.state == "failed"
    left = single.query("a", "SELECT relname FROM pg_class WHERE relname ~ '^(changes_m|orders_t1...$)'")
    assert left == single.query("a", "SELECT tgname FROM pg_trigger WHERE tgname ~ '^[~!]balancer_(mirror|capture)'")
    return done.error


DDL = (
    "ALTER TABLE orders ALTER COLUMN at TYPE int",
    "ALTER TABLE orders ALTER COLUMN at TYPE numeric",
    'ALTER TABLE orders DROP COLUMN "new part"',
    "ALTER TABLE orders ADD COLUMN more int DEFAULT 3",
    "ALTER TABLE orders RENAME COLUMN note TO notes",
    "CREATE INDEX more ON orders (n)",
    "ALTER TABLE orders_t2 RENAME TO another",
    "ALTER TABLE orders_t2 ENABLE ROW LEVEL SECURITY",
    "TRUNCATE orders_t2",
)


@pytest.mark.parametrize("ddl", DDL)
def test_no_statement_fails_after_ddl(single: Cluster, ddl: str) -> None:
    error = broken(
        single,
        ddl,
        "UPDATE orders SET at = at + 1",
        "DELETE FROM orders WHERE id % 50 = 0",
        "INSERT INTO orders (id) SELECT 7000 + i FROM generate_series(1, 50) AS i",
    )
    assert "changed" in error or "truncated" in error
    assert "7001" in str(single.query("a", "SELECT id FROM orders WHERE id = 7001"))


def test_a_mirror_that_was_switched_off_and_on_ends_the_split(single: Cluster) -> None:
    def switch() -> None:
        with single.connect("a") as connection:
            run(
                connection,
                'ALTER TABLE orders_t2 DISABLE TRIGGER "!balancer_mirror"',
                "UPDATE orders_t2 SET n = 7",
                'ALTER TABLE orders_t2 ENABLE ALWAYS TRIGGER "!balancer_mirror"',
            )

    done = split(single, {"left:verifying": switch})
    assert done.state == "failed"
    assert "switched off" in done.error
    assert set(single.rows()["a"].values()) == {0, 7}


def test_an_unchanged_long_value_is_not_written_again(single: Cluster) -> None:
    written: list[int] = []
    with single.connect("a") as connection:
        run(connection, "ALTER TABLE orders_t2 ALTER COLUMN note SET STORAGE EXTERNAL")
        run(connection, "UPDATE orders_t2 SET note = repeat(id::text, 19000)")

    def write() -> None:
        with single.connect("a") as connection:
            before = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchall()[0][0]
            run(connection, "UPDATE orders_t2 SET n = n + 1")
            grown = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)::int", (before,))
            written.append(int(str(grown.fetchall()[0][0])))

    assert split(single, {MOMENT: write}).state == "done"
    assert written[0] < 3_000_000  # 250 rows of 19,000 bytes and more, twice, would be 10 MB


def test_writes_that_depend_on_each_others_reads_do_not_both_pass_the_swap(single: Cluster) -> None:
    """Write skew: each reads what the other writes. One of them reads the old partition and commits before the swap."""
    first, second = ids(single, 2)
    one, other = single.connect("a"), single.connect("a")
    # It keeps what the others have read in memory.
    outcome: list[str | None] = []

    def before() -> None:
        for connection in (one, other):
            run(connection, "BEGIN ISOLATION LEVEL SERIALIZABLE", "SELECT 1")
        run(one, f"SELECT n FROM orders WHERE id = {first}", "UPDATE elsewhere SET n = 1", "COMMIT")
        run(other, "SELECT n FROM elsewhere")

    with single.connect("a") as connection:
        run(connection, "CREATE TABLE elsewhere AS SELECT 0 AS n")

    def after() -> None:
        try:
            run(other, f"UPDATE orders SET n = 1 WHERE id = {first}", "COMMIT")
        except psycopg.Error as error:
            outcome.append(error.sqlstate)
        else:
            outcome.append(None)
        other.close()

    done = split(single, {MOMENT: before, "left:swapping": after})
    assert done.state == "done"
    assert outcome == ["40001"], second
    one.close()


# What a node, a leader or somebody else may do to it meanwhile.

LOST = """
DO $$ DECLARE f record; BEGIN
    FOR f IN SELECT substr(proname, 9) AS rest FROM pg_proc WHERE proname ~ '^capture_m' LOOP
        EXECUTE format('CREATE OR REPLACE FUNCTION balancer.capture_%s() RETURNS trigger LANGUAGE plpgsql AS'
            ' %L', f.rest, format('BEGIN IF TG_OP <> ''INSERT'' THEN INSERT INTO balancer.changes_%1$s (id)'
            ' VALUES (OLD.id); END IF; IF TG_OP <> ''DELETE'' THEN INSERT INTO balancer.changes_%1$s (id)'
            ' VALUES (NEW.id); END IF; RETURN NULL; END', f.rest));
        EXECUTE format('DROP FUNCTION balancer.mirror_%s() CASCADE', f.rest);
    END LOOP;
END $$
"""
"""As a standby has it that was promoted without the transaction that began the mirror."""


def test_a_node_that_has_lost_the_mirror_loses_no_write(single: Cluster) -> None:
    row = tally(single)

    def lose() -> None:
        with single.connect("a") as connection:
            run(connection, LOST)
        row.write_everywhere()

    done = split(single, {"entered:swapping": lose})
    assert (done.state, done.error) == ("done", "")
    assert row.faults() == []
    assert row.kept == 2


def test_what_is_forced_into_an_old_partition_does_not_reach_the_new_ones(single: Cluster) -> None:
    key = ids(single, 1)[0]

    def force() -> None:
        with single.connect("a") as connection:
            run(
                connection,
                'ALTER TABLE orders_t2 DISABLE TRIGGER "!balancer_fence"',
                f"UPDATE orders_t2 SET n = 66 WHERE id = {key}",
            )

    done = split(single, {"left:swapping": force})
    assert done.state == "done"
    assert single.rows()["a"][key] == 0


def test_a_cancelled_split_leaves_writers_alone(single: Cluster) -> None:
    row = tally(single)
    directory = single.directory()
    leadership = single.become_leader(directory)
    begun = begin_split(directory, leadership, 2)
    watch = Spy({"entered:cancelling": row.write_everywhere})
    runner = single.runner(directory, leadership, watch)
    watch.work[MOMENT] = lambda: runner.cancel(begun.id)
    assert runner.run(begun.id).state == "cancelled"
    row.write_everywhere()
    assert row.kept == 4
    assert row.faults() == []
    assert single.query("a", "SELECT tgname FROM pg_trigger WHERE tgname ~ '^[~!]balancer'") == []
    assert complaints(single) == []


class Gone(Exception):
    """The daemon dies."""


def test_a_successor_goes_on_with_the_mirror_that_it_finds(single: Cluster) -> None:
    row = tally(single)
    directory = single.directory()
    leadership = single.become_leader(directory)
    begun = begin_split(directory, leadership, 2)

    def die() -> None:
        raise Gone

    with pytest.raises(Gone):
        single.runner(directory, leadership, Spy({MOMENT: die})).run(begun.id)
    row.write_everywhere()
    first = single.query("a", BEGUN)
    found: list[object] = []
    watch = Spy({"left:mirroring": lambda: found.extend(single.query("a", BEGUN))})
    done = single.runner(directory, leadership, watch).run(begun.id)
    assert (done.state, found) == ("done", first)
    assert State.CATCHING_UP not in watch.states
    assert row.faults() == []


BEGUN = "SELECT xmin::text FROM pg_trigger WHERE tgname = '!balancer_mirror'"
