"""A block's transaction begins with its first statement, and nothing comes before the proof, by whatever way."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from balancer.client import PoolSettings, Router
from balancer.client.transaction.connections import BlockConnection
from balancer.client.transaction.steps import TransactionRequest
from balancer.errors import Unavailable, UserError
from tests.support.shards import Shards, user_of
from tests.support.standby import wait_until

pytestmark = pytest.mark.always

Link = psycopg.Connection[Any]
COUNT = "SELECT count(*) FROM orders WHERE user_id = %s"


@pytest.fixture
def router(shards: Shards) -> Iterator[Router]:
    """One connection to each node: what is left behind on it meets the next block."""
    with Router.connect(shards.url, PoolSettings(size=1), samples=False) as opened:
        yield opened


def insert(connection: Link, user: int, number: int) -> None:
    connection.execute("INSERT INTO orders VALUES (%s, %s)", (user, number))


def _copied(connection: Link, user: int) -> None:
    with connection.cursor() as cursor, cursor.copy("COPY orders (user_id, n) FROM STDIN") as copy:
        copy.write_row((user, 1))


def _many(connection: Link, user: int) -> None:
    connection.cursor().executemany("INSERT INTO orders VALUES (%s, %s)", [(user, 1)])


def _streamed(connection: Link, user: int) -> None:
    assert list(connection.cursor().stream("INSERT INTO orders VALUES (%s, 1) RETURNING n", (user,))) == [(1,)]


def _piped(connection: Link, user: int) -> None:
    with connection.pipeline():
        insert(connection, user, 1)


def _nested(connection: Link, user: int) -> None:
    with connection.transaction():
        insert(connection, user, 1)


def _prepared(connection: Link, user: int) -> None:
    connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,), prepare=True)


def _raw(connection: Link, user: int) -> None:
    connection.pgconn.exec_(f"INSERT INTO orders VALUES ({user}, 1)".encode())


def _several(connection: Link, user: int) -> None:
    connection.execute(f"INSERT INTO orders VALUES ({user}, 1); SELECT 1".encode())


def _declared(connection: Link, user: int) -> None:
    with connection.cursor("few") as cursor:
        assert cursor.execute(COUNT, (user,)).fetchall() == [(0,)]
    insert(connection, user, 1)


def _made_before(connection: Link, user: int) -> None:
    """Of two cursors the second is used after the first has begun, perhaps elsewhere."""
    first, second = connection.cursor(), connection.cursor(row_factory=dict_row)
    first.execute(COUNT, (user,))
    second.execute("INSERT INTO orders VALUES (%s, 1) RETURNING n", (user,))
    assert second.fetchone() == {"n": 1}


WAYS: dict[str, Callable[[Link, int], None]] = {
    "execute": lambda connection, user: insert(connection, user, 1),
    "copy": _copied,
    "executemany": _many,
    "stream": _streamed,
    "pipeline": _piped,
    "nested": _nested,
    "prepare": _prepared,
    "pgconn": _raw,
    "several": _several,
    "server cursor": _declared,
    "client cursor": lambda c, user: psycopg.ClientCursor(c).execute("INSERT INTO orders VALUES (%s, 1)", (user,)),  # type: ignore[dict-item]
    "made before": _made_before,
    "binary": lambda c, user: c.execute("INSERT INTO orders VALUES (%b, 1)", (user,), binary=True),  # type: ignore[dict-item]
}


def _undone(router: Router, user: int, *ways: Callable[[Link, int], object]) -> None:
    with router.transaction("orders", user) as connection:
        for way in ways:
            way(connection, user)
        assert connection.info.transaction_status == TransactionStatus.INTRANS
        raise ZeroDivisionError


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_whatever_comes_first_is_proven_and_follows_the_tablet(
    shards: Shards, router: Router, way: Callable[[Link, int], None]
) -> None:
    user = user_of(shards, 1)
    with pytest.raises(ZeroDivisionError):
        _undone(router, user, way)
    assert shards.count(user) == 0, "it was in the block's transaction"
    with router.transaction("orders", user) as connection:
        shards.switch(1, "pg-b")  # the block has borrowed a connection to pg-a, and said nothing yet
        way(connection, user)
        assert connection.location == ("pg-b", 1, 2)
    assert shards.node("pg-b").execute("SELECT count(*) FROM orders").fetchone() == (1,)
    for _ in range(2):  # both connections are where they belong, and as they were
        with router.transaction("orders", user) as connection:
            assert connection.execute(COUNT, (user,)).fetchone() == (1,)
    assert router.counters.values()["moved"] >= 1, "the proof was refused"


def test_begin_proof_and_statement_are_one_message(shards: Shards, router: Router, tmp_path: Path) -> None:
    user = user_of(shards, 1)
    for number in range(8):  # past psycopg's threshold for preparing
        with router.transaction("orders", user) as connection:
            insert(connection, user, number)
    with (tmp_path / "trace").open("w+b") as file:
        with router.transaction("orders", user) as connection:
            pgconn = pending(connection)
            pgconn.trace(file.fileno())
            insert(connection, user, 99)
        pgconn.untrace()
        file.seek(0)
        lines = [line.split(b"\t") for line in file.read().splitlines()]
    # Of what the client (F) has said, a server answers to Sync, and to Query.
    asked = [line[3] for line in lines if line[1] == b"F" and line[3] in (b"Sync", b"Query")]
    assert asked == [b"Sync", b"Query"]
    assert [line[3] for line in lines if line[1] == b"F"].count(b"Execute") == 3
    assert shards.count(user) == 9


def pending(connection: Link) -> Any:
    """The driver's connection of a block that has said nothing yet."""
    assert isinstance(connection, BlockConnection)
    assert connection.opening is not None
    assert connection.opening.pgconn.transaction_status == TransactionStatus.IDLE
    return connection.opening.pgconn


@pytest.mark.parametrize("read_only", [False, True])
def test_a_refused_proof_runs_nothing_of_the_statement(shards: Shards, router: Router, read_only: bool) -> None:
    """A sequence would show it: no rollback takes it back."""
    user = user_of(shards, 1)
    node = shards.node("pg-a")
    node.execute("DROP SEQUENCE IF EXISTS traces")
    node.execute("CREATE SEQUENCE traces")
    fence = shards.fence(1)
    shards.seal(1, fence)
    with (
        pytest.raises(Unavailable, match="still being moved"),
        router.transaction("orders", user, patience=0.2, read_only=read_only) as connection,
    ):
        connection.execute("SELECT nextval('traces') + %s", (user,))
    assert node.execute("SELECT is_called FROM traces").fetchone() == (False,)


def test_a_block_that_never_began_runs_nothing_more(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    shards.fence(1)
    block = router.transaction("orders", user, patience=0.1)
    lent = block.__enter__()
    with pytest.raises(Unavailable):
        insert(lent, user, 1)
    for way in (WAYS["execute"], WAYS["pgconn"], WAYS["client cursor"], WAYS["copy"]):
        with pytest.raises(UserError, match="could not begin"):
            way(lent, user)
    with pytest.raises(UserError, match="could not begin"):
        block.__exit__(None, None, None)
    shards.lift(1)
    with router.transaction("orders", user) as connection:
        assert connection.execute(COUNT, (user,)).fetchone() == (0,)


def test_a_connection_that_breaks_before_the_answer_is_replaced(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    with router.transaction("orders", user) as connection:
        process = pending(connection).backend_pid
        shards.node("pg-a").execute("SELECT pg_terminate_backend(%s, 5000)", (process,))
        insert(connection, user, 1)
        assert connection.info.backend_pid != process
    assert shards.count(user) == 1

    def twice(connection: Link, user: int) -> None:
        insert(connection, user, 2)
        shards.node("pg-a").execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
        insert(connection, user, 3)  # what the transaction had done is gone: the application must know

    with pytest.raises(psycopg.OperationalError):
        _undone(router, user, twice)
    assert shards.count(user) == 1


def test_a_connection_that_breaks_in_the_statement_is_the_applications_to_see(shards: Shards, router: Router) -> None:
    """The proof was given, so the statement was run: it is not run again behind the application's back."""
    user = user_of(shards, 1)
    node = shards.node("pg-a")
    node.execute("DROP SEQUENCE IF EXISTS deaths")
    node.execute("CREATE SEQUENCE deaths")
    dying = "INSERT INTO orders SELECT %s, nextval('deaths') FROM (SELECT pg_terminate_backend(pg_backend_pid())) AS d"
    with pytest.raises(psycopg.OperationalError), router.transaction("orders", user) as connection:
        connection.execute(dying, (user,))
    assert node.execute("SELECT last_value FROM deaths").fetchone() == (1,)
    with router.transaction("orders", user) as connection:
        insert(connection, user, 7)
    assert shards.count(user) == 1


def test_an_error_of_the_statement_is_its_own(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    with pytest.raises(psycopg.errors.UndefinedColumn), router.transaction("orders", user) as connection:
        connection.execute("SELECT missing FROM orders WHERE user_id = %s", (user,))
    with router.transaction("orders", user) as connection:
        with pytest.raises(psycopg.ProgrammingError, match="placeholder"):
            connection.execute("SELECT %s, %s", (1,))  # never sent
        insert(connection, user, 1)
    with router.transaction("orders", user) as connection:
        with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
            insert(connection, user, 1)
        insert(connection, user, 2)
    assert shards.count(user) == 2
    assert router.counters.values()["waits"] == 0


def test_proofs_that_were_deallocated_are_prepared_again(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    for number, statement in enumerate(("DISCARD PLANS", "DEALLOCATE ALL", "SELECT 1")):
        with router.transaction("orders", user) as connection:
            insert(connection, user, number)
            connection.execute(statement.encode())
    assert shards.count(user) == 3


def test_patience_begins_with_the_first_statement(shards: Shards, router: Router) -> None:
    def lifted() -> None:
        time.sleep(0.1)
        shards.lift(1)

    user = user_of(shards, 1)
    shards.fence(1)
    with router.transaction("orders", user, patience=0.5) as connection:
        time.sleep(0.6)
        with ThreadPoolExecutor(1) as pool:
            lifting = pool.submit(lifted)
            insert(connection, user, 1)
            lifting.result()
    assert shards.count(user) == 1


def test_without_prepared_statements(shards: Shards) -> None:
    """As behind PgBouncer."""
    user = user_of(shards, 1)
    settings = PoolSettings(size=1, connection={"prepare_threshold": None})
    with Router.connect(shards.url, settings, samples=False) as router:
        for number in range(7):
            with router.transaction("orders", user) as connection:
                insert(connection, user, number)
                found = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
                assert found == (0,)
    assert shards.count(user) == 7


def test_two_threads_that_come_first_at_once(shards: Shards, router: Router) -> None:
    """Whichever is first, the other's statement is in the same transaction."""
    user = user_of(shards, 1)
    both = threading.Barrier(2)

    def work(connection: Link, way: str) -> None:
        both.wait()
        if way == "a":
            insert(connection, user, 1)
        else:
            psycopg.ClientCursor(connection).execute("INSERT INTO orders VALUES (%s, 2)", (user,))

    def together(connection: Link, _: int) -> None:
        for done in [pool.submit(work, connection, way) for way in "ab"]:
            done.result()

    with ThreadPoolExecutor(2) as pool:
        for _ in range(30):
            with pytest.raises(ZeroDivisionError):
                _undone(router, user, together)
    assert shards.count(user) == 0


def test_notices_are_heard_after_a_change_of_nodes(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    heard: list[str] = []
    with router.transaction("orders", user) as connection:
        connection.add_notice_handler(lambda diagnostic: heard.append(diagnostic.message_primary or ""))
        shards.switch(1, "pg-b")
        connection.execute(COUNT, (user,))
        connection.execute("DO $$ BEGIN RAISE NOTICE 'here'; END $$")
    assert heard == ["here"]


def test_a_block_without_a_statement_is_proven_at_its_end(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    shards.fence(1)
    with pytest.raises(Unavailable), router.transaction("orders", user, patience=0.1):
        pass
    shards.lift(1)
    with router.transaction("orders", user):
        pass


@pytest.mark.parametrize("way", ["cancel", "cancel_safe"])
@pytest.mark.parametrize("locked", ["orders", "balancer.tablet"], ids=["statement", "proof"])
def test_a_first_statement_can_be_cancelled_by_another_thread(
    shards: Shards, router: Router, way: str, locked: str
) -> None:
    """The server answers the proof together with it: who cancels must not wait for that."""
    user = user_of(shards, 1)
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = %s"

    def cancelled(connection: Link, process: int) -> None:
        wait_until(lambda: shards.node("pg-a").execute(waits, (process,)).fetchone() == (1,))
        getattr(connection, way)()

    def inserted_meanwhile(connection: Link, _: int) -> None:
        cancelling.append(pool.submit(cancelled, connection, pending(connection).backend_pid))
        insert(connection, user, 1)

    cancelling: list[Future[None]] = []
    with psycopg.connect(shards.dsns["pg-a"]) as locking, ThreadPoolExecutor(1) as pool:
        locking.execute("SET idle_in_transaction_session_timeout = '5s'")  # else a failure would take for ever
        locking.execute(f"LOCK TABLE {locked} IN ACCESS EXCLUSIVE MODE".encode())
        with pytest.raises(psycopg.errors.QueryCanceled):
            _undone(router, user, inserted_meanwhile)
        cancelling[0].result()
    with router.transaction("orders", user) as connection:
        getattr(connection, way)()  # nothing is running
        insert(connection, user, 2)
    assert shards.count(user) == 1


def test_a_connection_that_was_changed_for_another_sends_no_messages_of_its_block(
    shards: Shards, router: Router
) -> None:
    user = user_of(shards, 1)
    with router.transaction("orders", user) as connection:
        shards.switch(1, "pg-b")
        connection.execute(COUNT, (user,))
    shards.switch(1, "pg-a")
    with router.atomic() as tx:  # it has the connection to pg-a that the block gave back
        lent = tx.on("orders", user)
        assert tx.nodes == ("pg-a",)
        with pytest.raises(UserError, match="messages are sent inside"):
            lent.send("orders", user, "any")


def _again(connection: Link, user: int) -> None:
    insert(connection, user, 1)


AFTERWARDS: dict[str, Callable[[Link, int], None]] = {
    "a statement": _again,
    "several": _many,
    "COPY": _copied,
    "a stream": _streamed,
    "a nested block": _nested,
    "a prepared one": _prepared,
    "a pipeline": _piped,
}


@pytest.mark.parametrize("ended", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("how", list(AFTERWARDS))
def test_nothing_runs_behind_an_end_in_the_text_of_a_statement(
    shards: Shards, router: Router, how: str, ended: str
) -> None:
    """It would commit by itself, and without any proof."""
    user = user_of(shards, 1)

    def ended_inside() -> None:
        with router.transaction("orders", user) as connection:
            connection.execute(COUNT, (user,))
            connection.execute(ended.encode())
            AFTERWARDS[how](connection, user)

    with pytest.raises(UserError, match="the proven transaction is over"):
        ended_inside()
    with router.transaction("orders", user) as connection:
        assert connection.execute(COUNT, (user,)).fetchone() == (0,)


@pytest.mark.parametrize("how", list(AFTERWARDS))
def test_nothing_runs_behind_a_beginning_that_was_cancelled(
    shards: Shards, router: Router, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A cancel may meet BEGIN itself: there is no transaction then, and there was no proof."""
    user = user_of(shards, 1)
    slow = TransactionRequest(0.0).proof_apart._replace(begin=b"SELECT pg_sleep(60)")
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"

    def cancelled() -> None:
        with router.transaction("orders", user) as connection:
            with monkeypatch.context() as patched, ThreadPoolExecutor(1) as pool:
                patched.setattr(TransactionRequest, "proof_apart", slow)
                sent = pool.submit(insert, connection, user, 7)
                wait_until(lambda: shards.node("pg-a").execute(asleep).fetchone() == (1,))
                connection.cancel()
                with pytest.raises(psycopg.errors.QueryCanceled):
                    sent.result(30)
            AFTERWARDS[how](connection, user)

    with pytest.raises(UserError, match="the proven transaction is over"):
        cancelled()
    with router.transaction("orders", user) as connection:
        assert connection.execute(COUNT, (user,)).fetchone() == (0,)
