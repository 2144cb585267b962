"""`run` with `pipelined`: fewer messages, and not one promise less."""

import threading
from typing import Any

import psycopg
import pytest

from balancer.client import Isolation, PoolSettings, Router
from balancer.client.transaction.failures import Attempts
from balancer.errors import OutcomeUnknown, Unavailable, UserError
from tests.support.shards import Shards, user_of

Link = psycopg.Connection[Any]


def insert(user: int, n: int) -> Any:
    return lambda link: link.execute("INSERT INTO orders VALUES (%s, %s)", (user, n)) and None


def rows(shards: Shards, user: int) -> list[int]:
    found = [row for node in shards.dsns for row in shards.node(node).execute(_ROWS, (user,)).fetchall()]
    return sorted(n for (n,) in found)


_ROWS = "SELECT n FROM orders WHERE user_id = %s"


def test_writes_and_reads(shards: Shards, router: Router) -> None:
    for user in (1, 2, 3, 4):
        for n in range(8):  # psycopg prepares what it sees often
            router.run("orders", user, insert(user, n), pipelined=True)
        found = router.run(
            "orders",
            user,
            lambda link: link.execute("SELECT count(*) FROM orders").fetchone(),
            read_only=True,
            pipelined=True,
        )
        assert found is not None
        assert found[0] >= 8
        assert rows(shards, user) == list(range(8))


def test_a_refused_proof_keeps_the_statements_behind_it_from_being_run(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    shards.fence(1, seconds=30)
    before = shards.node("pg-a").execute("SELECT last_value, is_called FROM balancer.breaches").fetchone()
    with pytest.raises(psycopg.errors.SerializationFailure):
        router.run("orders", user, insert(user, 1), pipelined=True, patience=0.2)
    # a sequence knows no rollback: not even a part of it was run
    shards.node("pg-a").execute("CREATE SEQUENCE IF NOT EXISTS ran")
    with pytest.raises(psycopg.errors.SerializationFailure):
        router.run(
            "orders", user, lambda link: link.execute("SELECT nextval('ran')") and None, pipelined=True, patience=0.2
        )
    assert shards.node("pg-a").execute("SELECT is_called FROM ran").fetchone() == (False,)
    assert shards.node("pg-a").execute("SELECT last_value, is_called FROM balancer.breaches").fetchone() == before
    shards.node("pg-a").execute("DROP SEQUENCE ran")
    shards.lift(1)
    router.run("orders", user, insert(user, 2), pipelined=True)
    assert rows(shards, user) == [2]


def test_it_follows_the_tablet(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    router.run("orders", user, insert(user, 1), pipelined=True)
    shards.switch(1, "pg-b")
    router.run("orders", user, insert(user, 2), pipelined=True)
    assert shards.node("pg-b").execute(_ROWS + " ORDER BY n", (user,)).fetchall() == [(1,), (2,)]


def test_errors_roll_back(shards: Shards, router: Router) -> None:
    def fails(link: Link) -> None:
        link.execute("INSERT INTO orders VALUES (1, 1)")
        raise ZeroDivisionError

    def swallowed(link: Link) -> None:
        link.execute("INSERT INTO orders VALUES (1, 2)")
        with pytest.raises(psycopg.errors.DivisionByZero):
            link.execute("SELECT 1 / 0").fetchone()

    def ended(link: Link) -> None:
        link.commit()

    with pytest.raises(ZeroDivisionError):
        router.run("orders", 1, fails, pipelined=True)
    with pytest.raises(psycopg.errors.UniqueViolation):
        router.run(
            "orders", 1, lambda link: link.execute("INSERT INTO orders VALUES (1, 9), (1, 9)") and None, pipelined=True
        )
    with pytest.raises(UserError, match="nothing is committed"):
        router.run("orders", 1, swallowed, pipelined=True, patience=0.2)
    with pytest.raises(UserError, match="inside a block"):
        router.run("orders", 1, ended, pipelined=True)
    assert rows(shards, 1) == []


def test_a_nested_block_is_a_savepoint_and_commits_nothing(shards: Shards, router: Router) -> None:
    """psycopg waits for a BEGIN that is on its way before it asks for the state of the transaction: we rely on that."""

    def nested(link: Link) -> None:
        with link.transaction():
            link.execute("INSERT INTO orders VALUES (1, 1)")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        router.run("orders", 1, nested, pipelined=True)
    assert rows(shards, 1) == []


def test_a_connection_lost_with_the_commit_leaves_the_outcome_unknown(shards: Shards, router: Router) -> None:
    user, calls = user_of(shards, 1), 0

    def loses(link: Link) -> None:
        nonlocal calls
        calls += 1
        link.execute("INSERT INTO orders VALUES (%s, 1)", (user,))
        (backend,) = link.execute("SELECT pg_backend_pid()").fetchone() or (0,)
        shards.node("pg-a").execute("SELECT pg_terminate_backend(%s, 1000)", (backend,))

    with pytest.raises(OutcomeUnknown, match="broke during COMMIT"):
        router.run("orders", user, loses, pipelined=True)
    assert calls == 1, "it may have been done: it is not done again"


def test_isolation_and_patience(shards: Shards, router: Router) -> None:
    level = router.run(
        "orders",
        1,
        lambda link: link.execute("SHOW transaction_isolation").fetchone(),
        isolation=Isolation.SERIALIZABLE,
        pipelined=True,
    )
    assert level == ("serializable",)
    with (
        Router.connect(shards.url, PoolSettings(size=1), samples=False) as small,
        small.transaction("orders", 1),
        pytest.raises((psycopg.OperationalError, Unavailable)),
    ):
        small.run("orders", 1, insert(1, 1), pipelined=True, patience=0.2)


def test_threads_write_while_a_tablet_really_moves(shards: Shards) -> None:
    user, stop = user_of(shards, 1), threading.Event()
    acknowledged: list[int] = []
    errors: list[BaseException] = []

    def write(router: Router, number: int) -> None:
        n = number * 1_000_000
        try:
            while not stop.wait(0.003):
                n += 1
                router.run("orders", user, insert(user, n), pipelined=True)
                acknowledged.append(n)
        except BaseException as error:
            errors.append(error)

    with Router.connect(shards.url, samples=False) as router, shards.leading() as move:
        threads = [threading.Thread(target=write, args=(router, number)) for number in range(3)]
        for thread in threads:
            thread.start()
        for target in ("pg-b", "pg-a"):
            assert move(1, target).state == "done"
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert rows(shards, user) == sorted(acknowledged)


def test_whoever_sleeps_past_the_deadline_is_told_why_and_not_that_it_is_late() -> None:
    now = [0.0]
    attempts = Attempts(1.0, lambda: now[0])
    assert attempts.left() == 1.0
    refused = psycopg.errors.SerializationFailure("fenced")
    attempts.pause_after(refused)
    now[0] = 1.5
    with pytest.raises(psycopg.errors.SerializationFailure, match="fenced"):
        attempts.left()
