"""Fences on real servers: who is held back, who is not, when a fence ends, and when it may not be sealed."""

import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.schema.install import OwnedTablet, OwnState, install_schema, write_tablets
from balancer.nodes.schema.proof import tablets_of
from balancer.nodes.session.connection import Address, Connection, Cursor
from balancer.nodes.tablets.fence import (
    MOVED,
    SEALED,
    Fence,
    drop_fence,
    guard_incoming,
    lift_fence,
    mark_moved,
    read_fence,
    renew_fence,
)
from tests.support.fencing import raise_fence, seal_fence
from tests.support.opening import connect
from tests.support.refusals import refused_with

LEAF = Name("public", "orders_t1")
WANTED = Fence("m1", 1, "", 0, 1)


@pytest.fixture
def node(address: Address) -> Iterator[Connection]:
    with connect(address, purpose="test") as connection:
        install_schema(connection, "test", "a")
        connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, n int DEFAULT 0) PARTITION BY HASH (id)")
        connection.execute("CREATE TABLE orders_t1 PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
        connection.execute("INSERT INTO orders SELECT generate_series(1, 10)")
        yield connection


def fenced(node: Connection, seconds: float = 30.0) -> Fence:
    with node.transaction(), node.cursor() as cursor:
        return raise_fence(cursor, [LEAF], WANTED, seconds, 1.0)


def run(node: Connection, statement: str) -> None:
    if statement.startswith("COPY"):
        with node.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write("13\t0\n")
    else:
        node.execute(statement)


WRITES = (
    "INSERT INTO orders VALUES (11)",
    "UPDATE orders SET n = 1 WHERE id = 1",
    "DELETE FROM orders WHERE id = 1",
    "INSERT INTO orders_t1 VALUES (11)",
    "DELETE FROM ONLY orders_t1",
    "TRUNCATE orders_t1",
    "TRUNCATE orders",
    "MERGE INTO orders o USING (VALUES (1)) v (id) ON o.id = v.id WHEN MATCHED THEN UPDATE SET n = 2",
    "COPY orders FROM STDIN",
    "SET session_replication_role = replica; INSERT INTO orders VALUES (12)",
)


@pytest.mark.parametrize("statement", WRITES)
def test_every_way_of_writing_is_held_back_and_reading_is_not(node: Connection, statement: str) -> None:
    fenced(node)
    with pytest.raises(psycopg.Error) as raised:
        run(node, statement)
    assert refused_with(raised.value) == "TB001"
    assert node.execute("SELECT count(*) FROM orders").fetchone() == (10,)


def test_a_write_of_an_old_snapshot_is_held_back_too(node: Connection, address: Address) -> None:
    with connect(address) as old:
        old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM pg_class")
        fenced(node)
        with pytest.raises(psycopg.Error) as raised:
            old.execute("UPDATE orders SET n = 5 WHERE id = 2")
        assert refused_with(raised.value) == "TB001"


def test_a_fence_waits_for_writers_in_flight_and_gives_up_in_time(node: Connection, address: Address) -> None:
    with connect(address) as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO orders VALUES (20)")
        with pytest.raises(psycopg.errors.LockNotAvailable), node.transaction(), node.cursor() as cursor:
            raise_fence(cursor, [LEAF], WANTED, 30.0, 0.1)
        committing = threading.Timer(0.2, lambda: writer.execute("COMMIT"))
        committing.start()
        with node.transaction(), node.cursor() as cursor:
            raise_fence(cursor, [LEAF], WANTED, 30.0, 20.0)
        committing.join()
        assert node.execute("SELECT count(*) FROM orders").fetchone() == (11,)


def test_an_unsealed_fence_ends_by_itself_and_is_never_sealed_afterwards(node: Connection) -> None:
    fence = fenced(node, 0.2)
    time.sleep(0.25)
    node.execute("INSERT INTO orders VALUES (30)")
    with pytest.raises(Refused, match="expired"), node.transaction(), node.cursor() as cursor:
        seal_fence(cursor, [LEAF], fence, 1.0)
    with pytest.raises(Refused, match="expired"), node.transaction(), node.cursor() as cursor:
        renew_fence(cursor, [LEAF], fence, 5.0, 1.0)


def test_a_clock_that_was_set_back_does_not_hide_a_write_that_came_through(node: Connection) -> None:
    fence = fenced(node, 0.1)
    time.sleep(0.15)
    node.execute("INSERT INTO orders VALUES (31)")
    # What the server sees after its clock went back: the same fence, whose deadline is ahead again.
    with node.transaction(), node.cursor() as cursor:
        cursor.execute(
            'CREATE OR REPLACE TRIGGER "!balancer_fence" BEFORE INSERT OR UPDATE OR DELETE ON orders_t1 FOR EACH ROW'
            " EXECUTE FUNCTION balancer.refuse_write("
            f"'m1', '1', '{time.time() + 60}', '{fence.breaches}', '1', '', '0')"
        )
    with pytest.raises(Refused, match="expired"), node.transaction(), node.cursor() as cursor:
        seal_fence(cursor, [LEAF], fence, 1.0)


def test_a_sealed_fence_does_not_end_by_itself(node: Connection) -> None:
    fence = fenced(node, 2.0)  # long enough for the seal on a busy machine
    with node.transaction(), node.cursor() as cursor:
        seal_fence(cursor, [LEAF], fence, 1.0)
    time.sleep(2.1)
    with pytest.raises(psycopg.Error) as raised:
        node.execute("INSERT INTO orders VALUES (40)")
    assert refused_with(raised.value) == "TB001"


def test_a_fence_waits_for_who_has_locked_a_row(node: Connection, address: Address) -> None:
    """SELECT FOR UPDATE as a mutex: another must not get it on the new owner meanwhile."""
    with connect(address) as holder:
        holder.execute("BEGIN")
        holder.execute("SELECT FROM orders WHERE id = 2 FOR UPDATE")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            fenced(node)
        holder.execute("COMMIT")
    fenced(node)


def test_only_this_very_fence_is_sealed(node: Connection) -> None:
    fence = fenced(node)
    with node.transaction(), node.cursor() as cursor:
        raise_fence(cursor, [LEAF], Fence("m1", 2, "", 0, 1), 30.0, 1.0)  # a successor's
    with pytest.raises(Refused, match="not the one"), node.transaction(), node.cursor() as cursor:
        seal_fence(cursor, [LEAF], fence, 1.0)


def test_lifting_waits_for_no_reader(node: Connection, address: Address) -> None:
    fenced(node)
    with connect(address) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM orders")
        with node.transaction(), node.cursor() as cursor:
            lift_fence(cursor, [LEAF], 0.1)
        node.execute("INSERT INTO orders VALUES (50)")
        with node.cursor() as cursor:
            assert read_fence(cursor, LEAF) is None
        reader.execute("COMMIT")
    with node.transaction(), node.cursor() as cursor:
        drop_fence(cursor, [LEAF], 1.0)
    assert node.execute("SELECT count(*) FROM pg_trigger WHERE tgname ~ '^!'").fetchone() == (0,)


def test_a_former_owner_says_where_the_tablet_went(node: Connection) -> None:
    with node.transaction(), node.cursor() as cursor:
        mark_moved(cursor, [LEAF], Fence("m1", 1, "", 0, 1, "pg-b", 7), 1.0)
    with pytest.raises(psycopg.Error) as raised:
        node.execute("DELETE FROM orders")
    assert (raised.value.sqlstate, raised.value.diag.message_detail) == ("40001", "TB002 node=pg-b epoch=7")


def test_a_partition_that_is_being_filled_takes_writes_from_replication_only(node: Connection) -> None:
    with node.transaction(), node.cursor() as cursor:
        guard_incoming(cursor, LEAF, WANTED)
    with pytest.raises(psycopg.Error) as raised:
        node.execute("INSERT INTO orders_t1 VALUES (60)")
    assert refused_with(raised.value) == "TB001"
    node.execute("SET session_replication_role = replica; INSERT INTO orders_t1 VALUES (60)")


def test_a_tablet_s_row_has_the_word_of_its_fence(node: Connection) -> None:
    """Clients look at the row only: at every commit it must say what the trigger says."""
    with node.cursor() as cursor:
        write_tablets(cursor, [OwnedTablet(1, 1, OwnState.OWNED, (LEAF,))])

    def agree(step: Callable[[Cursor], object]) -> str | None:
        with node.transaction(), node.cursor() as cursor:
            step(cursor)
        with node.cursor() as cursor:
            fence = read_fence(cursor, LEAF)
        assert node.execute("SELECT until FROM balancer.tablet").fetchone() == (fence.until if fence else None,)
        return fence.until if fence else None

    fence = fenced(node)
    renewed: list[Fence] = []
    renew = agree(lambda cursor: renewed.append(renew_fence(cursor, [LEAF], fence, 60.0, 1.0)))
    assert renew not in (None, fence.until)
    assert agree(lambda cursor: seal_fence(cursor, [LEAF], renewed[0], 1.0)) == SEALED
    assert agree(lambda cursor: lift_fence(cursor, [LEAF], 1.0)) is None
    assert agree(lambda cursor: raise_fence(cursor, [LEAF], WANTED, 30.0, 1.0)) is not None
    assert agree(lambda cursor: mark_moved(cursor, [LEAF], Fence("m1", 1, "", 0, 1, "pg-b", 7), 1.0)) == MOVED


def test_tablets_are_found_by_schema_and_name(node: Connection) -> None:
    elsewhere = Name("archive", LEAF.name)
    with node.transaction(), node.cursor() as cursor:
        write_tablets(
            cursor,
            [
                OwnedTablet(3, 1, OwnState.OWNED, (Name("public", "items_t3"), Name("public", "orders_t3"))),
                OwnedTablet(2, 1, OwnState.OWNED, (elsewhere,)),
                OwnedTablet(1, 1, OwnState.OWNED, (LEAF,)),
            ],
        )
        ask = sql.SQL("SELECT {}")
        assert cursor.execute(ask.format(tablets_of([Name("public", "orders_t3"), LEAF]))).fetchall() == [(1,), (3,)]
        assert cursor.execute(ask.format(tablets_of([elsewhere]))).fetchall() == [(2,)]
        assert cursor.execute(ask.format(tablets_of([]))).fetchall() == []
