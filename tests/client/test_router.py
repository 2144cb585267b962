"""The blocking router: transactions on the right node, whatever happens to the tablet meanwhile."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from balancer.client import Isolation, Router
from balancer.directory.model import Put, Transaction
from balancer.errors import OutcomeUnknown, Refused, Unavailable, UserError
from tests.support.backends import lose_while_busy, wait_until_gone
from tests.support.nemeses import until, waits_for_lock
from tests.support.shards import Shards, user_of


def later(seconds: float, action: Callable[[], object]) -> threading.Thread:
    """Does something in a thread of its own, a little later."""

    def run() -> None:
        time.sleep(seconds)
        action()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def insert(router: Router, user: int, n: int, **options: float) -> int:
    """Adds a row; returns the node's process, to tell nodes and connections apart."""
    with router.transaction("orders", user, **options) as connection:  # type: ignore[arg-type]
        connection.execute("INSERT INTO orders VALUES (%s, %s)", (user, n))
        return connection.info.backend_pid


def test_a_transaction_is_on_the_node_of_its_key(shards: Shards, router: Router) -> None:
    for number in (1, 2, 3, 4):
        user = user_of(shards, number)
        insert(router, user, 1)
        found = router.locate("orders", user)
        assert (found.tablet, found.epoch) == (number, 1)
        assert shards.node(found.node).execute("SELECT n FROM orders WHERE user_id = %s", (user,)).fetchall() == [(1,)]
        with router.transaction("orders", user, read_only=True) as connection:
            assert connection.execute("SELECT n FROM orders WHERE user_id = %s", (user,)).fetchall() == [(1,)]


def test_an_error_in_the_block_rolls_back_and_is_the_one_that_is_seen(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)

    def fail() -> None:
        with router.transaction("orders", user) as connection:
            connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with pytest.raises(psycopg.errors.UndefinedTable), router.transaction("orders", user) as connection:
        connection.execute("SELECT * FROM nowhere")
    assert shards.count() == 0


def test_a_block_may_have_savepoints(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    with router.transaction("orders", user) as connection:
        connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))
        with connection.transaction(force_rollback=True):
            connection.execute("INSERT INTO orders VALUES (%s, 2)", (user,))
    assert shards.count(user) == 1


def test_a_swallowed_error_is_not_taken_for_a_commit(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)

    def swallow() -> None:
        with router.transaction("orders", user) as connection:
            connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))
            with pytest.raises(psycopg.errors.UndefinedTable):
                connection.execute("SELECT * FROM nowhere")

    with pytest.raises(UserError, match="nothing is committed"):
        swallow()
    assert shards.count() == 0


def test_ending_the_transaction_inside_is_refused(shards: Shards, router: Router) -> None:
    with (
        pytest.raises(UserError, match="leave COMMIT and ROLLBACK to the router"),
        router.transaction("orders", 1) as connection,
    ):
        connection.execute("COMMIT")


@pytest.mark.parametrize("text", ["COMMIT AND CHAIN", "ROLLBACK AND CHAIN", "SELECT 1; COMMIT; BEGIN", "ABORT; BEGIN"])
def test_what_follows_a_transaction_that_was_ended_and_begun_again_is_refused(
    shards: Shards, router: Router, text: str
) -> None:
    """It is in a transaction, but in none that has proven anything: the tablet may be on its way."""
    user = user_of(shards, 1)
    before = shards.count(user)

    def block() -> None:
        with router.transaction("orders", user) as connection:
            with pytest.raises(UserError, match="leave COMMIT and ROLLBACK to the router"):
                connection.execute(text)
            with pytest.raises(UserError, match="leave COMMIT and ROLLBACK to the router"):
                connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))

    with pytest.raises(UserError, match="leave COMMIT and ROLLBACK to the router"):
        block()
    assert shards.count(user) == before
    with router.transaction("orders", user) as connection:  # the connection is as good as any
        connection.execute("SAVEPOINT chain")
        connection.execute("ROLLBACK TO chain")
        connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))
    assert shards.count(user) == before + 1


@pytest.mark.parametrize("text", ["COMMIT", "/* so */ commit and chain", "ROLLBACK", "END"])
def test_a_pipelined_transaction_is_not_ended_inside_either(shards: Shards, router: Router, text: str) -> None:
    """Nothing is waited for: what stands behind it would be on its way."""
    user = user_of(shards, 1)

    def work(connection: psycopg.Connection[Any]) -> None:
        connection.execute("SAVEPOINT one")
        connection.execute("ROLLBACK TO one")
        with pytest.raises(UserError, match="leave COMMIT and ROLLBACK to the router"):
            connection.execute(text)
        connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))

    router.run("orders", user, work, pipelined=True)
    assert shards.count(user) == 1


def test_a_connection_that_was_kept_is_of_no_use_after_its_block(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    with router.transaction("orders", user) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT 1")
    for late in (cursor, connection, psycopg.ClientCursor(connection)):
        with pytest.raises(UserError, match="its block has ended"):
            late.execute("INSERT INTO orders VALUES (%s, 1)", (user,))
    assert shards.count(user) == 0
    with router.transaction("orders", user) as connection:
        connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))


@pytest.mark.parametrize("isolation", Isolation)
def test_a_fence_is_waited_out(shards: Shards, router: Router, isolation: Isolation) -> None:
    user = user_of(shards, 1)
    shards.fence(1)
    began = time.monotonic()
    lifting = later(0.3, lambda: shards.lift(1))
    with router.transaction("orders", user, isolation=isolation) as connection:
        connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))
    assert 0.2 < time.monotonic() - began < 5
    lifting.join()
    assert shards.count(user) == 1


@pytest.mark.parametrize("read_only", [False, True])
def test_a_move_is_followed(shards: Shards, router: Router, read_only: bool) -> None:
    user = user_of(shards, 1)
    insert(router, user, 1)
    shards.switch(1, "pg-b")
    with router.transaction("orders", user, read_only=read_only) as connection:
        assert connection.execute("SELECT n FROM orders WHERE user_id = %s", (user,)).fetchall() == [(1,)]
    assert router.locate("orders", user) == ("pg-b", 1, 2)


def test_between_the_commit_and_the_opening_a_transaction_waits_at_the_new_owner(
    shards: Shards, router: Router
) -> None:
    user = user_of(shards, 1)
    fence = shards.fence(1)
    shards.copy(1, "pg-b")
    shards.seal(1, fence)
    moved = shards.commit(1, "pg-b")
    opening = later(0.3, lambda: shards.open(moved))
    insert(router, user, 1)
    opening.join()
    assert shards.node("pg-b").execute("SELECT count(*) FROM orders").fetchone() == (1,)


def test_a_switch_waits_for_an_open_block_and_fails_nothing(shards: Shards, router: Router) -> None:
    """The fence comes while a block is open that has not written yet: the block goes on to its end."""
    user = user_of(shards, 1)
    with router.transaction("orders", user) as connection, psycopg.connect(shards.dsns["pg-a"]) as observer:
        connection.execute("SELECT 1")
        switching = later(0, lambda: shards.switch(1, "pg-b"))
        until(lambda: waits_for_lock(observer), "the fence's wait for the block")
        connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))
        assert connection.execute("SELECT count(*) FROM orders WHERE user_id = %s", (user,)).fetchone() == (1,)
    switching.join()
    insert(router, user, 2)
    assert shards.node("pg-b").execute("SELECT array_agg(n ORDER BY n) FROM orders").fetchone() == ([1, 2],)


def test_at_the_deadline_it_is_given_up_in_one_sentence(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    shards.fence(1)
    with pytest.raises(Unavailable, match="tablet 1 on node pg-a is still being moved"):
        insert(router, user, 1, patience=0.2)
    shards.lift(1)
    insert(router, user, 1)
    assert shards.count(user) == 1


def test_a_dead_connection_is_replaced_before_the_block(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    pid = insert(router, user, 1)
    shards.node("pg-a").execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    assert insert(router, user, 2) != pid
    assert shards.count(user) == 2


def test_a_connection_lost_in_the_block_is_the_applications_to_see(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)

    def lose() -> None:
        with router.transaction("orders", user) as connection:
            connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))
            shards.node("pg-a").execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))

    with pytest.raises(OutcomeUnknown, match="pg-a broke during COMMIT"):
        lose()
    insert(router, user, 2)
    assert shards.count(user) == 1


def test_locks_go_soon_after_the_application_is_gone(shards: Shards, router: Router) -> None:
    def vanish() -> None:
        with router.transaction("orders", user_of(shards, 1)) as connection:
            wait_until_gone(shards.node("pg-a"), lose_while_busy(connection))

    with pytest.raises(OutcomeUnknown):
        vanish()


def test_run_repeats_a_function_whose_connection_was_lost(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    calls = 0

    def add(connection: psycopg.Connection[object]) -> int:
        nonlocal calls
        calls += 1
        connection.execute("INSERT INTO orders VALUES (%s, %s)", (user, calls))
        if calls == 1:
            shards.node("pg-a").execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
            connection.execute("SELECT 1")
        return calls

    assert router.run("orders", user, add) == 2
    assert shards.count(user) == 1


def test_run_repeats_serialization_failures(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    insert(router, user, 0)

    def increment(connection: psycopg.Connection[tuple[int]]) -> None:
        row = connection.execute("SELECT n FROM orders WHERE user_id = %s", (user,)).fetchone()
        assert row is not None
        connection.execute("UPDATE orders SET n = %s WHERE user_id = %s", (row[0] + 1, user))

    def work() -> None:
        for _ in range(10):
            router.run("orders", user, increment, isolation=Isolation.REPEATABLE_READ)

    threads = [later(0, work) for _ in range(4)]
    for thread in threads:
        thread.join()
    assert shards.node("pg-a").execute("SELECT n FROM orders WHERE user_id = %s", (user,)).fetchone() == (40,)


def test_run_does_not_repeat_the_applications_own_errors(shards: Shards, router: Router) -> None:
    calls = []

    def wrong(connection: psycopg.Connection[object]) -> None:
        calls.append(1)
        connection.execute("SELECT * FROM nowhere")

    with pytest.raises(psycopg.errors.UndefinedTable):
        router.run("orders", 1, wrong)
    assert len(calls) == 1


def test_a_node_that_changes_its_address_is_found_again(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    insert(router, user, 1)
    snapshot = shards.directory.snapshot()
    elsewhere = replace(snapshot.nodes["pg-a"], dsn=shards.dsns["pg-a"] + "?options=-c%20test.place%3Delsewhere")
    shards.directory.commit(Transaction((Put(elsewhere),), snapshot.version, "failover", "test"))
    until(lambda: router.snapshot.version > snapshot.version, "the news")
    with router.transaction("orders", user) as connection:
        assert connection.execute("SELECT current_setting('test.place')").fetchone() == ("elsewhere",)


def test_a_node_without_our_schema_is_named(shards: Shards, router: Router) -> None:
    shards.node("pg-a").execute("DROP SCHEMA balancer CASCADE")
    with pytest.raises(Refused, match="node pg-a lacks the balancer's schema"):
        insert(router, user_of(shards, 1), 1)


def test_a_closed_router_says_so(shards: Shards, router: Router) -> None:
    router.close()
    router.close()
    with pytest.raises(UserError, match="closed"):
        insert(router, 1, 1)
