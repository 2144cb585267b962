"""Tables with foreign keys, numbers, triggers, policies and views, sharded by the application: imported as one."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from balancer.directory.contract import Directory
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.errors import BalancerError, Refused
from tests.support.forked import run_forked
from tests.support.sampling import sampled
from tests.support.self_sharded import TABLETS, importer, make_together, together
from tests.support.servers import Database

USERS = 90
KEYS_OF_A = [f"foreign key of_order of public.items_t{number} on a" for number in (1, 2)]
LATE = [
    *(f"rename on {node}" for node in "dabc"),
    *KEYS_OF_A,
    *(f"foreign key of_order of public.items on {node}" for node in "abcd"),
]


@pytest.fixture
def dsns(
    postgres15: PostgresServer, postgres18: PostgresServer, database: Callable[[PostgresServer], Database]
) -> dict[str, str]:
    """Three nodes with the tables, and one that has none."""
    servers = {"a": postgres15, "b": postgres18, "c": postgres15, "d": postgres18}
    found = {node: database(server).dsn for node, server in servers.items()}
    make_together(found, USERS)
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as opened:
        yield opened


def execute(dsn: str, *statements: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def everywhere(dsns: dict[str, str], query: str) -> list[tuple[object, ...]]:
    return sorted(row for dsn in dsns.values() for row in execute(dsn, query))


def check_imported(dsns: dict[str, str], orders: list[tuple[object, ...]], items: list[tuple[object, ...]]) -> None:
    """Rows as they were, and everything that belongs to the tables, on every node alike."""
    assert everywhere(dsns, "SELECT * FROM orders") == orders
    assert everywhere(dsns, "SELECT * FROM items") == items
    keys = (
        "SELECT conname, convalidated FROM pg_constraint"
        " WHERE conrelid = 'items'::regclass AND contype = 'f' AND conparentid = 0"
    )
    waiting = "SELECT conrelid::regclass FROM pg_constraint WHERE contype = 'f' AND NOT convalidated"
    drawn: dict[str, list[object]] = {"orders": [], "items": []}
    for dsn in dsns.values():
        assert execute(dsn, keys) == [("of_order", True)]
        assert execute(dsn, waiting) == []
        assert execute(dsn, "SELECT polname FROM pg_policy WHERE polrelid = 'orders'::regclass") == [("everybody",)]
        assert execute(dsn, "SELECT obj_description('items'::regclass, 'pg_class')") == [("what was bought",)]
        for table, column in (("orders", "id"), ("items", "item")):
            sequence = f"pg_get_serial_sequence('{table}', '{column}')"
            drawn[table] += [row[0] for row in execute(dsn, f"SELECT nextval({sequence}) FROM generate_series(1, 3)")]
        if mine := execute(dsn, "SELECT user_id, id FROM orders LIMIT 1"):
            [(user, number)] = mine
            execute(dsn, f"INSERT INTO items (user_id, order_id, price) VALUES ({user}, {number}, 1000)")
            assert execute(dsn, f"SELECT total FROM orders WHERE user_id = {user}") == [(1003,)]  # the trigger
            with pytest.raises(psycopg.errors.ForeignKeyViolation):
                execute(dsn, f"INSERT INTO items (user_id, order_id, price) VALUES ({user}, -1, 5)")
    used = max(int(str(number)) for number in [*(row[1] for row in orders), *(row[2] for row in items)])
    for numbers in drawn.values():
        assert len({*numbers}) == len(numbers) == 12
        assert min(int(str(number)) for number in numbers) > used


def rows_before(dsns: dict[str, str]) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    sharded = {node: dsns[node] for node in "abc"}
    return everywhere(sharded, "SELECT * FROM orders"), everywhere(sharded, "SELECT * FROM items")


def test_they_come_with_everything_that_belongs_to_them(directory: Directory, dsns: dict[str, str]) -> None:
    orders, items = rows_before(dsns)
    with importer(directory, dsns, wanted=together()) as work:
        plan = work.plan(TABLETS, ())
        assert (plan.sources, plan.without, plan.numbered) == (("a", "b", "c"), ("d",), True)
        assert everywhere(dsns, "SELECT relname FROM pg_class WHERE relname ~ 'import'") == []
        done = work.run(TABLETS, ())
        assert (done.tablets, done.rows) == (TABLETS, USERS * 3)
        check_imported(dsns, orders, items)
        assert everywhere({"a": dsns["a"]}, "SELECT DISTINCT relkind FROM pg_class WHERE relname = 'spent'") == [("v",)]
        before = execute(dsns["a"], "SELECT sum(total) FROM spent")
        execute(dsns["a"], "UPDATE orders SET total = total + 1 WHERE user_id = (SELECT min(user_id) FROM orders)")
        assert execute(dsns["a"], "SELECT sum(total) - 1 FROM spent") == before  # the view reads the new table
        with pytest.raises(psycopg.Error, match="takes no writes"):
            execute(dsns["a"], "DELETE FROM items_before_import")
        assert work.release(dry_run=False) == {"a": 90, "b": 90, "c": 90}
    assert everywhere(dsns, "SELECT relname FROM pg_class WHERE relname ~ 'import'") == []


@pytest.mark.parametrize("step", sampled(LATE, 2, "late steps of an import"))
def test_killed_after_the_commit_it_is_completed(
    step: str, tmp_path: Path, directory: Directory, dsns: dict[str, str]
) -> None:
    orders, items = rows_before(dsns)
    url = f"sqlite://{tmp_path}/directory.db"
    ended = run_forked("tests.support.self_sharded", url, json.dumps(dsns), step, "together")
    assert ended.returncode == -9, ended.stderr + ended.stdout
    with importer(directory, dsns, wanted=together()) as work:
        work.run(TABLETS, ())
    check_imported(dsns, orders, items)


def test_what_a_node_lacks_is_found_before_anything_is_done(directory: Directory, dsns: dict[str, str]) -> None:
    execute(dsns["d"], "DROP FUNCTION add_up")
    with importer(directory, dsns, wanted=together()) as work, pytest.raises(BalancerError, match="add_up"):
        work.run(TABLETS, ())
    assert dict(directory.snapshot().pauses) == {}
    assert everywhere(dsns, "SELECT relname FROM pg_class WHERE relname ~ 'import'") == []


def test_what_changes_while_it_runs_is_found_before_the_switch(directory: Directory, dsns: dict[str, str]) -> None:
    """A trigger that one node cannot have would end the import after its commit, with everybody locked out."""

    def observe(step: str) -> None:
        if step == "follow":
            execute(
                dsns["a"],
                "CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
                "CREATE TRIGGER late AFTER DELETE ON orders FOR EACH ROW EXECUTE FUNCTION later()",
            )

    with importer(directory, dsns, observe, wanted=together()) as work, pytest.raises(BalancerError, match="later"):
        work.run(TABLETS, ())
    execute(dsns["b"], "UPDATE orders SET total = 7")  # nobody is kept out
    execute(dsns["a"], "DROP FUNCTION later() CASCADE")
    with importer(directory, dsns, wanted=together()) as work:
        work.run(TABLETS, ())


def test_half_of_the_tables_on_a_node_and_ties_to_other_users_are_refused(
    directory: Directory, dsns: dict[str, str]
) -> None:
    execute(dsns["d"], "CREATE TABLE items (user_id bigint)")
    with (
        importer(directory, dsns, wanted=together()) as work,
        pytest.raises(Refused, match=r"has public\.items and not"),
    ):
        work.plan(TABLETS, ())
    execute(dsns["d"], "DROP TABLE items")
    execute(
        dsns["b"],
        "ALTER TABLE orders ADD friend bigint, ADD friends_order bigint,"
        " ADD CONSTRAINT like_him FOREIGN KEY (friend, friends_order) REFERENCES orders",
    )
    with (
        importer(directory, dsns, wanted=together()) as work,
        pytest.raises(Refused, match=r"like_him .* other tablets"),
    ):
        work.plan(TABLETS, ())
