"""`balancer.hold` on a node: who passes, who is told to wait, who is sent away; and whom the mover waits for."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.naming import Name
from balancer.nodes.schema.install import OwnedTablet, OwnState, write_tablets
from balancer.nodes.schema.proof import lock_everybody_out
from balancer.nodes.tablets.fence import Fence, mark_moved
from balancer.nodes.tablets.partition import detach, detach_locked
from tests.support.refusals import refused_with
from tests.support.shards import Shards, databases, leaves, record, user_of

pytestmark = pytest.mark.always

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
        client.execute(f"BEGIN ISOLATION LEVEL {mode}; CALL balancer.hold({tablet}, {epoch}, {writing})".encode())
    except psycopg.Error:
        client.execute("ROLLBACK")
        raise


def refused(client: Client, state: str, tablet: int, epoch: int = 1, **how: object) -> str:
    with pytest.raises(psycopg.Error) as caught:
        begin(client, tablet, epoch, **how)  # type: ignore[arg-type]
    assert refused_with(caught.value) == state, caught.value
    return (caught.value.diag.message_detail or "").partition(" ")[2]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("writing", [True, False])
def test_the_owner_is_silent(shards: Shards, client: Client, mode: str, writing: bool) -> None:
    begin(client, 1, mode=mode, writing=writing)
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()"
    assert client.execute(held).fetchone() == (1,), "and holds the tablet until the transaction ends"
    client.execute("COMMIT")
    assert client.execute(held).fetchone() == (0,)


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
    user = user_of(shards, 1)
    shards.fence(1, seconds=-1.0)
    begin(client, 1)
    client.execute("INSERT INTO orders VALUES (%s, 1)", (user,))
    client.execute("COMMIT")
    assert client.execute("SELECT n FROM orders WHERE user_id = %s", (user,)).fetchall() == [(1,)]


@pytest.mark.parametrize("mode", MODES)
def test_a_fence_waits_for_a_transaction_that_has_not_written_yet(shards: Shards, client: Client, mode: str) -> None:
    begin(client, 1, mode=mode)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        shards.fence(1, lock_timeout=0.05)
    client.execute("COMMIT")
    shards.fence(1)


@pytest.mark.parametrize("writing", [True, False])
def test_a_swap_waits_for_everybody_and_is_not_in_the_way_of_those_it_waits_for(
    shards: Shards, client: Client, writing: bool
) -> None:
    user = user_of(shards, 1)
    shards.node("pg-a").execute("INSERT INTO orders VALUES (%s, 1)", (user,))
    begin(client, 1, mode="REPEATABLE READ", writing=writing)
    with ThreadPoolExecutor(1) as pool:
        swapping = pool.submit(_lock_for_a_swap, shards, 5.0)
        _await_waiter(client)
        assert client.execute("SELECT n FROM orders WHERE user_id = %s", (user,)).fetchall() == [(1,)]
        client.execute("COMMIT")
        swapping.result()


def _lock_for_a_swap(shards: Shards, lock_timeout: float) -> None:
    with shards.node("pg-a").transaction(), shards.node("pg-a").cursor() as cursor:
        roots = [Name("public", "orders"), Name("public", "items")]
        lock_everybody_out(cursor, roots, leaves(1), (), lambda: lock_timeout)


def _await_waiter(client: Client) -> None:
    while not client.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchall():
        time.sleep(0.005)


@pytest.mark.parametrize("mode", MODES)
def test_nobody_passes_a_mover_that_waits(shards: Shards, client: Client, mode: str) -> None:
    """Else a stream of short transactions would keep it waiting for ever."""
    begin(client, 1)
    with psycopg.connect(shards.dsns["pg-a"], autocommit=True) as other, ThreadPoolExecutor(2) as pool:
        fencing = pool.submit(shards.fence, 1)
        _await_waiter(client)
        second = pool.submit(refused, other, "TB001", 1, mode=mode)
        while client.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() != (2,):
            time.sleep(0.005)
        client.execute("COMMIT")
        fencing.result()
        second.result()


def test_a_mover_that_gives_up_leaves_no_trace(shards: Shards, client: Client) -> None:
    begin(client, 1)
    with psycopg.connect(shards.dsns["pg-a"], autocommit=True) as other, ThreadPoolExecutor(2) as pool:
        fencing = pool.submit(shards.fence, 1, lock_timeout=0.3)
        _await_waiter(client)
        pool.submit(begin, other, 1).result()
        assert isinstance(fencing.exception(), psycopg.errors.LockNotAvailable)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("writing", [True, False])
def test_a_step_that_was_rolled_back_changes_nothing(shards: Shards, client: Client, mode: str, writing: bool) -> None:
    node = shards.node("pg-a")
    with node.transaction(force_rollback=True):
        node.execute("UPDATE balancer.tablet SET state = 'fenced', until = 'sealed' WHERE id = 1")
    assert node.execute("SELECT xmax <> 0 FROM balancer.tablet WHERE id = 1").fetchone() == (True,)
    begin(client, 1, mode=mode, writing=writing)
    client.execute("COMMIT")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("writing", [True, False])
def test_a_tablet_that_came_back_is_held_as_any_other(shards: Shards, client: Client, mode: str, writing: bool) -> None:
    shards.switch(1, "pg-b")
    shards.switch(1, "pg-a")
    assert shards.node("pg-a").execute("SELECT until FROM balancer.tablet WHERE id = 1").fetchone() == (None,)
    begin(client, 1, 3, mode=mode, writing=writing)
    client.execute("COMMIT")


@pytest.mark.parametrize("mode", MODES)
def test_who_asks_while_a_detachment_waits_is_told_at_once(shards: Shards, client: Client, mode: str) -> None:
    begin(client, 1, mode="REPEATABLE READ", writing=False)
    shards.seal(1, shards.fence(1))
    record(shards.node("pg-a"), OwnedTablet(1, 2, OwnState.MOVED, leaves(1), moved_to="pg-b"))
    with psycopg.connect(shards.dsns["pg-a"], autocommit=True) as other, ThreadPoolExecutor(1) as pool:
        detaching = pool.submit(detach, shards.node("pg-a"), Name("public", "orders"), leaves(1)[0])
        _await_waiter(client)
        other.execute("SET statement_timeout = '500ms'")  # half of what a hold would wait
        refused(other, "TB002", 1, mode=mode, writing=False)
        client.execute("COMMIT")
        detaching.result()


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
    root, leaf = Name("public", "orders"), leaves(1)[0]
    with pytest.raises(psycopg.errors.LockNotAvailable):
        detach(node, root, leaf)
    assert client.execute("SELECT n FROM orders WHERE user_id = %s", (user,)).fetchall() == [(1,)]
    client.execute("COMMIT")
    detach(node, root, leaf)
    refused(client, "TB002", 1, mode=mode, writing=False)


@pytest.mark.parametrize("mode", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("event", ["fence", "detach", "swap"])
def test_a_writer_with_an_old_snapshot_is_not_blind(shards: Shards, client: Client, mode: str, event: str) -> None:
    client.execute(f"BEGIN ISOLATION LEVEL {mode}".encode())
    client.execute("SELECT 1")  # the snapshot is of this moment
    if event == "fence":
        shards.fence(1)
    elif event == "swap":
        _swap_out(shards)
    else:
        shards.node("pg-a").execute(f"ALTER TABLE items DETACH PARTITION {leaves(1)[1]} CONCURRENTLY")
        record(shards.node("pg-a"), OwnedTablet(1, 1, OwnState.MOVED, leaves(1), moved_to="pg-b"))
    with pytest.raises(psycopg.Error) as caught:
        client.execute("CALL balancer.hold(1, 1, true)")
    assert refused_with(caught.value) == ("TB001" if event == "fence" else "TB002")
    client.execute("ROLLBACK")


@pytest.mark.parametrize("mode", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_reader_whose_rows_were_swapped_since_its_snapshot_is_sent_away(
    shards: Shards, client: Client, mode: str
) -> None:
    """The new partitions were filled after its snapshot: it would find them empty."""
    client.execute(f"BEGIN ISOLATION LEVEL {mode}".encode())
    client.execute("SELECT 1")
    _swap_out(shards)
    with pytest.raises(psycopg.Error) as caught:
        client.execute("CALL balancer.hold(1, 1, false)")
    assert refused_with(caught.value) == "TB002"
    client.execute("ROLLBACK")


def _swap_out(shards: Shards) -> None:
    """What a swap does to the old partitions."""
    node = shards.node("pg-a")
    roots = [Name("public", "orders"), Name("public", "items")]
    with node.transaction(), node.cursor() as cursor:
        lock_everybody_out(cursor, roots, leaves(1), (), lambda: 2.0)
        for root, leaf in zip(roots, leaves(1), strict=True):
            detach_locked(cursor, root, leaf)
        mark_moved(cursor, leaves(1), Fence("mtest", 1, "", 0, 1, "pg-a", 1), 2.0)
        write_tablets(cursor, [OwnedTablet(1, 1, OwnState.OWNED, leaves(1), "mtest")])
