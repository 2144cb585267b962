"""A table that the application shards by `id % 3` is imported under load, killed at each step: 0 lost, 0 doubled."""

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.invariants import violations
from balancer.directory.model import Node
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Conflict, Refused, Unavailable
from balancer.features.import_tables.plan import ImportedTable, ImportPlan
from balancer.features.import_tables.record import ImportJournal
from balancer.naming import parse_name
from balancer.nodes.catalog.bounds import KeyColumn
from balancer.nodes.catalog.roots import Root
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import KeyType
from tests.support.forked import run_forked
from tests.support.sampling import sampled
from tests.support.self_sharded import SETTINGS, TABLETS, Writer, importer, make_tables, request, rows_of
from tests.support.servers import Database

ROWS = 600
STEPS = [
    "begin",
    *(f"root on {node}" for node in "abcd"),
    *(f"capture on {node}" for node in "abc"),
    *(f"empty {node}" for node in "abcd"),
    *(f"copy from {node}" for node in "abc"),
    "compare",
    "follow",
    *(f"rehearse on {node}" for node in "dabc"),
    *(f"fence {node}" for node in "abc"),
    "last changes",
    *(f"seal {node}" for node in "abc"),
    "commit",
    *(f"rename on {node}" for node in "dabc"),
    "proofs",
    "end",
]
BEFORE_COMMIT = STEPS[1 : STEPS.index("commit") + 1]


@pytest.fixture
def dsns(
    postgres15: PostgresServer, postgres18: PostgresServer, database: Callable[[PostgresServer], Database]
) -> dict[str, str]:
    """Three nodes with the table, and one that has none."""
    servers = {"a": postgres15, "b": postgres18, "c": postgres15, "d": postgres18}
    found = {node: database(server).dsn for node, server in servers.items()}
    make_tables(found, ROWS)
    return found


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/directory.db"


@pytest.fixture
def directory(url: str) -> Iterator[Directory]:
    with open_directory(url) as opened:
        yield opened


def killed(url: str, dsns: dict[str, str], step: str, *words: str) -> subprocess.CompletedProcess[str]:
    return run_forked("tests.support.self_sharded", url, json.dumps(dsns), step, *words)


def execute(dsn: str, *statements: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def left_over(dsns: dict[str, str]) -> list[object]:
    """Objects of an import that should not be there any more."""
    query = """
        SELECT relname FROM pg_class WHERE relname ~ 'orders_import|^changes_m' AND relkind IN ('r', 'p', 'i', 'I')
        UNION ALL SELECT proname FROM pg_proc WHERE proname ~ '^capture_m'
        UNION ALL SELECT tgname FROM pg_trigger WHERE tgname ~ '^[!~]balancer'
    """
    return [name for dsn in dsns.values() for (name,) in execute(dsn, query)]


def with_writers(dsns: dict[str, str], work: Callable[[], object]) -> list[tuple[int, int]]:
    """What must be there in the end, if two writers work all the while."""
    writers = [Writer(dsns, range(10_000 + at * 1000, 10_000 + at * 1000 + 60)) for at in range(2)]
    for writer in writers:
        writer.start()
    try:
        work()
    finally:
        rows = [writer.stop() for writer in writers]
    return sorted([*((number, 1) for number in range(1, ROWS + 1)), *(item for one in rows for item in one.items())])


@pytest.mark.parametrize("step", sampled(STEPS, 3, "steps of an import"))
def test_killed_at_a_step_and_continued_nothing_is_lost_or_doubled(step: str, url: str, dsns: dict[str, str]) -> None:
    def work() -> None:
        ended = killed(url, dsns, step)
        assert ended.returncode == -9, ended.stderr
        again = killed(url, dsns, "never")
        assert again.returncode == 0, again.stderr

    wanted = with_writers(dsns, work)
    assert rows_of(dsns) == wanted
    assert left_over(dsns) == []
    with open_directory(url) as directory:
        snapshot = directory.snapshot()
        assert (list(violations(snapshot)), dict(snapshot.pauses)) == ([], {})
        assert len(list(snapshot.tablets(1))) == TABLETS


@pytest.mark.parametrize("step", sampled(BEFORE_COMMIT, 1, "steps of an import to cancel"))
def test_killed_at_a_step_and_cancelled_everything_is_as_it_was(step: str, url: str, dsns: dict[str, str]) -> None:
    def work() -> None:
        assert killed(url, dsns, step).returncode == -9
        ended = killed(url, dsns, "never", "cancel")
        assert ended.returncode == 0, ended.stderr

    wanted = with_writers(dsns, work)
    assert rows_of(dsns) == wanted
    assert left_over(dsns) == []
    with open_directory(url) as directory:
        assert (dict(directory.snapshot().pauses), dict(directory.snapshot().tables)) == ({}, {})
    kinds = [execute(dsn, "SELECT relkind FROM pg_class WHERE relname = 'orders'") for dsn in dsns.values()]
    assert kinds == [[("r",)], [("r",)], [("r",)], []]


def test_the_old_tables_are_kept_read_only_until_they_are_released(directory: Directory, dsns: dict[str, str]) -> None:
    with importer(directory, dsns) as work:
        assert work.plan(TABLETS, ()).without == ("d",)
        done = work.run(TABLETS, ())
        assert (done.rows, done.pause is not None) == (ROWS, True)
        with pytest.raises(psycopg.Error, match="takes no writes") as refused:
            execute(dsns["a"], "UPDATE orders_before_import SET n = 5")
        assert refused.value.sqlstate == "TB007"
        names = execute(
            dsns["a"], "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 'orders'::regclass"
        )
        assert sorted(names) == [("by_note",), ("orders_pkey",)]
        with pytest.raises(Refused, match="is in the directory already"):
            work.run(TABLETS, ())
        assert work.release(dry_run=True) == {"a": 200, "b": 200, "c": 200}
        assert work.release(dry_run=False) == {"a": 200, "b": 200, "c": 200}
        with pytest.raises(Refused, match="nothing is left to release"):
            work.release(dry_run=False)
    assert rows_of(dsns) == [(number, 1) for number in range(1, ROWS + 1)]


def test_keys_on_two_nodes_are_listed_and_stop_it(directory: Directory, dsns: dict[str, str]) -> None:
    execute(dsns["b"], "INSERT INTO orders (id) VALUES (3), (6)")
    before = {node: execute(dsn, "SELECT count(*) FROM pg_class") for node, dsn in dsns.items()}
    with importer(directory, dsns) as work:
        with pytest.raises(Refused, match=r"with the same key: \(3\) on a and b; \(6\) on a and b; only"):
            work.run(TABLETS, ())
        assert {node: execute(dsn, "SELECT count(*) FROM pg_class") for node, dsn in dsns.items()} == before
        execute(dsns["b"], "DELETE FROM orders WHERE id IN (3, 6)")

        # One that comes while the import runs is found before the switch, and writers go on meanwhile.
        def observe(step: str) -> None:
            if step == "follow":
                execute(dsns["b"], "INSERT INTO orders (id) VALUES (9)")

        with importer(directory, dsns, observe) as other:
            work.__exit__()
            with pytest.raises(Refused, match=r"with the same key: \(9\) on a and b; only"):
                other.run(TABLETS, ())
        execute(dsns["b"], "DELETE FROM orders WHERE id = 9", "UPDATE orders SET n = 1 WHERE id = 1")
    with importer(directory, dsns) as last:
        last.run(TABLETS, ())
    assert rows_of(dsns) == [(number, 1) for number in range(1, ROWS + 1)]


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (["ALTER TABLE orders ADD COLUMN x int DEFAULT 5"], "the columns of public.orders have changed"),
        (
            [
                "ALTER TABLE orders DISABLE TRIGGER USER",
                "UPDATE orders SET n = 7",
                'ALTER TABLE orders ENABLE ALWAYS TRIGGER "~balancer_capture"',
                'ALTER TABLE orders ENABLE ALWAYS TRIGGER "~balancer_capture_truncate"',
            ],
            "switched off what captures the changes",
        ),
        (["TRUNCATE orders"], "was truncated"),
    ],
)
def test_what_happens_to_an_old_table_meanwhile_is_seen(
    statements: list[str], why: str, directory: Directory, dsns: dict[str, str]
) -> None:
    def observe(step: str) -> None:
        if step == "compare":
            execute(dsns["c"], *statements)

    with importer(directory, dsns, observe) as work, pytest.raises(Refused, match=why):
        work.run(TABLETS, ())
    execute(dsns["c"], "INSERT INTO orders (id) VALUES (5000)")  # writers go on
    if "truncated" in why:
        with importer(directory, dsns) as work:
            work.run(TABLETS, ())
        wanted = [number for number in range(1, ROWS + 1) if number % 3 != 2]
        assert [number for number, _ in rows_of(dsns)] == [*wanted, 5000]


def test_two_processes_do_not_import_at_once(directory: Directory, dsns: dict[str, str]) -> None:
    def observe(step: str) -> None:
        if step == "follow":
            with importer(directory, dsns) as other, pytest.raises(Unavailable, match="another process imports"):
                other.run(TABLETS, ())

    with importer(directory, dsns, observe) as work:
        assert work.run(TABLETS, ()).rows == ROWS


class Leaping(SystemClock):
    """A clock on which the last changes take longer than writers may wait."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead

    def leap(self, step: str) -> None:
        self.ahead += 11.0 if step == "last changes" else 0.0


def test_a_switch_that_would_take_too_long_is_taken_back(directory: Directory, dsns: dict[str, str]) -> None:
    clock = Leaping()
    twice = replace(SETTINGS, fence_attempts=2)
    with (
        importer(directory, dsns, clock.leap, settings=twice, clock=clock) as work,
        pytest.raises(Unavailable, match="given up after 2 tries: writers were refused for 11"),
    ):
        work.run(TABLETS, ())
    execute(dsns["a"], "UPDATE orders SET n = 2")
    with importer(directory, dsns) as again:
        again.run(TABLETS, ())
    assert sum(n for _, n in rows_of(dsns)) == ROWS + ROWS // 3


IN_THE_WAY = {
    r"unique index once .* does not contain the key \(id\)": (
        "CREATE UNIQUE INDEX once ON orders (note)",
        "DROP INDEX once",
    ),
    "the materialised view public.cheap reads": (
        "CREATE MATERIALIZED VIEW cheap AS SELECT * FROM orders",
        "DROP MATERIALIZED VIEW cheap",
    ),
    "foreign key lines_of_fkey of public.lines points to public.orders": (
        "CREATE TABLE lines (of bigint REFERENCES orders)",
        "DROP TABLE lines",
    ),
    "foreign key to_lines of public.orders points to public.lines, which is not imported with it": (
        (
            "CREATE TABLE lines (of bigint PRIMARY KEY); INSERT INTO lines SELECT id FROM orders;"
            " ALTER TABLE orders ADD CONSTRAINT to_lines FOREIGN KEY (id) REFERENCES lines"
        ),
        "ALTER TABLE orders DROP CONSTRAINT to_lines; DROP TABLE lines",
    ),
    "publication everything has public.orders in it": (
        "CREATE PUBLICATION everything FOR ALL TABLES",
        "DROP PUBLICATION everything",
    ),
    "not the same on all nodes: row level security is": (
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE orders DISABLE ROW LEVEL SECURITY",
    ),
    "draws from a sequence, .* say spread_sequences": (
        "ALTER TABLE orders ALTER id ADD GENERATED BY DEFAULT AS IDENTITY",
        "ALTER TABLE orders ALTER id DROP IDENTITY",
    ),
    "is not the same on all nodes": (
        "ALTER TABLE orders ALTER n SET DEFAULT 1",
        "ALTER TABLE orders ALTER n SET DEFAULT 0",
    ),
    "a name that an import needs": ("CREATE TABLE orders_import ()", "DROP TABLE orders_import"),
    "has no primary key": ("ALTER TABLE orders DROP CONSTRAINT orders_pkey", "ALTER TABLE orders ADD PRIMARY KEY (id)"),
}


def test_what_is_in_the_way_is_said_and_nothing_is_changed(directory: Directory, dsns: dict[str, str]) -> None:
    for why, (statement, undo) in IN_THE_WAY.items():
        execute(dsns["b"], statement)
        with importer(directory, dsns) as work, pytest.raises(Refused, match=why):
            work.run(TABLETS, ())
        execute(dsns["b"], undo)
    assert dict(directory.snapshot().pauses) == {}
    assert execute(dsns["a"], "SELECT count(*) FROM pg_namespace WHERE nspname = 'balancer'") == [(0,)]
    with importer(directory, dsns) as work:
        assert work.plan(TABLETS, ()).sources == ("a", "b", "c")


def test_a_hostile_name_and_a_range_of_texts(directory: Directory, dsns: dict[str, str]) -> None:
    root = 'public."Or ders%s; ""x"'
    for number, dsn in enumerate(list(dsns.values())[:3]):
        execute(
            dsn,
            f'CREATE TABLE {root} ("k %s" text COLLATE "C" PRIMARY KEY, "v""" jsonb)',
            f"INSERT INTO {root} SELECT chr(97 + g) || g, jsonb_build_object('g', g) FROM generate_series(0, 20) AS g"
            f" WHERE g % 3 = {number}",
        )
    wanted = request(layout="range", key="k %s", root=root)
    with importer(directory, dsns, wanted=wanted) as work:
        assert work.run(1, ("f", "m", "t")).tablets == 4
    counts = [execute(dsn, f"SELECT count(*) FROM {root}")[0][0] for dsn in dsns.values()]
    assert sum(map(int, map(str, counts))) == 21


def test_a_process_that_slept_cannot_commit(directory: Directory) -> None:
    table = parse_name("public.orders")
    plan = ImportPlan((ImportedTable(table, 0, ("id",)),), ("a",), (), (Leaf(1, 0),), ("a",))
    slept, other = ImportJournal(directory, request()), ImportJournal(directory, request())
    slept.begin(plan, [Node("a", "shop", "postgresql:///a")], {})
    found = other.found()
    assert found is not None
    other.save(replace(found, attempt=2))
    root = Root(table, 1, "hash", (KeyColumn("id", KeyType.BIGINT),), "postgres")
    with pytest.raises(Conflict, match="another process works on the import of table orders"):
        slept.commit(replace(slept.record, state="renaming"), plan, root)
    with pytest.raises(Conflict, match="another process works on the import of table orders"):
        slept.save(slept.record)
    other.commit(replace(other.record, state="renaming"), plan, root)
    assert [table.name for table in directory.snapshot().tables.values()] == ["orders"]
