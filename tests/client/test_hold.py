"""`balancer.hold` on a node: who passes, who is told to wait, who is sent away; and whom the mover waits for."""

from collections.abc import Iterator

import psycopg
import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.nodes.schema import OwnedTablet, OwnState
from tests.support.shards import Shards, databases, leaves, record, user_of

MODES = ("READ COMMITTED", "REPEATABLE READ")
"""SERIALIZABLE has one snapshot, as the second has, and goes the same way."""


@pytest.fixture(scope="module")
def dsns(any_postgres: PostgresServer) -> Iterator[list[str]]:
    """Each version in turn."""
    with databases(any_postgres) as made:
        yield made


@pytest.fixture
def client(shards: Shards) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A session of an application, which has no rights on partitions or on our schema's tables."""
    node = shards.node("pg-a")
    node.execute("DROP ROLE IF EXISTS app")
    node.execute("CREATE ROLE app LOGIN PASSWORD 'app'")
    node.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON orders, items TO app")
    try:
        with psycopg.connect(shards.dsns["pg-a"], user="app", password="app", autocommit=True) as opened:
            yield opened
    finally:
        node.execute("DROP OWNED BY app")
        node.execute("DROP ROLE app")


Client = psycopg.Connection[tuple[object, ...]]


def begin(client: Client, tablet: int, epoch: int = 1, *, mode: str = "READ COMMITTED", writing: bool = True) -> None:
    try:
        client.execute(f"BEGIN ISOLATION LEVEL {mode}; SELECT balancer.hold({tablet}, {epoch}, {writing})".encode())
    except psycopg.Error:
        client.execute("ROLLBACK")
        raise


def refused(client: Client, state: str, tablet: int, epoch: int = 1, **how: object) -> str:
    with pytest.raises(psycopg.Error) as caught:
        begin(client, tablet, epoch, **how)  # type: ignore[arg-type]
    assert caught.value.sqlstate == state, caught.value
    return caught.value.diag.message_detail or ""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("writing", [True, False])
def test_the_owner_is_silent(shards: Shards, client: Client, mode: str, writing: bool) -> None:
    begin(client, 1, mode=mode, writing=writing)
    client.execute("COMMIT")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("writing", [True, False])
def test_others_are_told_that_it_is_not_here(shards: Shards, client: Client, mode: str, writing: bool) -> None:
    assert refused(client, "TB002", 1, 2, mode=mode, writing=writing) == "node= epoch=1"
    assert refused(client, "TB002", 2, mode=mode, writing=writing) == "node= epoch="
    record(shards.node("pg-a"), OwnedTablet(1, 2, OwnState.MOVED, leaves(1), moved_to="pg-b"))
    assert refused(client, "TB002", 1, mode=mode, writing=writing) == "node=pg-b epoch=2"
    record(shards.node("pg-a"), OwnedTablet(1, 2, OwnState.INCOMING, leaves(1), "m1"))
    assert refused(client, "TB001", 1, 2, mode=mode, writing=writing) == "migration=m1"


@pytest.mark.parametrize("mode", MODES)
def test_a_fence_keeps_writers_out_until_its_deadline_and_readers_from_its_seal_on(
    shards: Shards, client: Client, mode: str
) -> None:
    fence = shards.fence(1)
    refused(client, "TB001", 1, mode=mode)
    if mode != "READ COMMITTED":
        begin(client, 1, mode=mode, writing=False)
        client.execute("COMMIT")
    shards.seal(1, fence)
    refused(client, "TB001", 1, mode=mode)
    refused(client, "TB001", 1, mode=mode, writing=False)


def test_an_expired_fence_lets_writers_through(shards: Shards, client: Client) -> None:
    shards.fence(1, seconds=-1.0)
    begin(client, 1)
    client.execute("COMMIT")


@pytest.mark.parametrize("mode", MODES)
def test_a_fence_waits_for_a_transaction_that_has_not_written_yet(shards: Shards, client: Client, mode: str) -> None:
    begin(client, 1, mode=mode)
    node = shards.node("pg-a")
    node.execute("SET lock_timeout = '50ms'")
    lock = f"BEGIN; LOCK TABLE ONLY {leaves(1)[1]} IN SHARE ROW EXCLUSIVE MODE"
    with pytest.raises(psycopg.errors.LockNotAvailable):
        node.execute(lock)
    node.execute("ROLLBACK")
    client.execute("COMMIT")
    shards.fence(1)


@pytest.mark.parametrize("mode", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_reader_sees_its_rows_to_the_end_though_they_move_away(shards: Shards, client: Client, mode: str) -> None:
    """The switch does not wait for the reader, and the reader loses nothing: only the drop waits."""
    user = user_of(shards, 1)
    shards.node("pg-a").execute("INSERT INTO orders VALUES (%s, 1)", (user,))
    begin(client, 1, mode=mode, writing=False)
    fence = shards.fence(1)
    shards.copy(1, "pg-b")
    shards.seal(1, fence)
    moved = shards.commit(1, "pg-b")
    shards.open(moved)
    shards.node("pg-b").execute("INSERT INTO orders VALUES (%s, 2)", (user,))
    record(shards.node("pg-a"), OwnedTablet(1, 2, OwnState.MOVED, leaves(1), moved_to="pg-b"))
    node = shards.node("pg-a")
    node.execute("SET lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        node.execute(f"ALTER TABLE orders DETACH PARTITION {leaves(1)[0]} CONCURRENTLY")
    assert client.execute("SELECT n FROM orders WHERE user_id = %s", (user,)).fetchall() == [(1,)]
    client.execute("COMMIT")
    node.execute(f"ALTER TABLE orders DETACH PARTITION {leaves(1)[0]} FINALIZE")
    refused(client, "TB002", 1, mode=mode, writing=False)


@pytest.mark.parametrize("mode", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("event", ["fence", "detach"])
def test_a_writer_with_an_old_snapshot_is_not_blind(shards: Shards, client: Client, mode: str, event: str) -> None:
    client.execute(f"BEGIN ISOLATION LEVEL {mode}".encode())
    client.execute("SELECT 1")  # the snapshot is of this moment
    if event == "fence":
        shards.fence(1)
    else:
        shards.node("pg-a").execute(f"ALTER TABLE items DETACH PARTITION {leaves(1)[1]} CONCURRENTLY")
    with pytest.raises(psycopg.Error) as caught:
        client.execute("SELECT balancer.hold(1, 1, true)")
    assert caught.value.sqlstate == ("TB001" if event == "fence" else "TB002")
    client.execute("ROLLBACK")
