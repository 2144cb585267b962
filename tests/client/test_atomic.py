"""Transactions over several keys: all or nothing, whoever dies when."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from balancer.client import AsyncRouter, Atomic, PoolSettings, Router
from balancer.embedded.postgres import PostgresServer
from balancer.errors import OutcomeUnknown, Refused, Unavailable, UserError
from balancer.naming import parse_prepared
from balancer.nodes.schema.decisions import decided, prepared_parts
from tests.support.atomic_victim import Standing
from tests.support.fleet import until
from tests.support.shards import Shards, databases, new_shards, user_of


@pytest.fixture
def pair(shards: Shards) -> tuple[int, int]:
    """Two users of two nodes."""
    first = user_of(shards, 1)
    other = next(tablet.id for tablet in shards.tablets() if tablet.node != shards.tablet(1).node)
    return first, user_of(shards, other)


def put(tx: Atomic, *users: int, n: int = 1) -> None:
    for user in users:
        tx.on("orders", user).execute("INSERT INTO orders VALUES (%s, %s)", (user, n))


def left_prepared(shards: Shards) -> list[str]:
    return [part.gid for node in shards.dsns for part in prepared_parts(shards.node(node))]


def test_both_halves_are_committed_or_neither(shards: Shards, router: Router, pair: tuple[int, int]) -> None:
    with router.atomic() as tx:
        put(tx, *pair)
        assert len(tx.nodes) == 2
    assert [shards.count(user) for user in pair] == [1, 1]

    def fail() -> None:
        with router.atomic() as tx:
            put(tx, *pair, n=2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [shards.count(user) for user in pair] == [1, 1]
    assert left_prepared(shards) == []


def test_keys_of_one_node_are_one_ordinary_transaction(shards: Shards, router: Router) -> None:
    mine = [tablet.id for tablet in shards.tablets() if tablet.node == shards.tablet(1).node]
    users = [user_of(shards, number) for number in mine]
    assert len(users) > 1
    with router.atomic() as tx:
        put(tx, *users)
        assert len({tx.on("orders", user).info.backend_pid for user in users}) == 1
    home = shards.node(shards.tablet(1).node)
    assert home.execute("SELECT count(*) FROM balancer.decision").fetchone() == (0,)
    assert shards.count() == len(users)


def undo_by_block(connection: psycopg.Connection[object], work: Callable[[], object]) -> None:
    with connection.transaction(force_rollback=True):
        work()


def undo_by_text(connection: psycopg.Connection[object], work: Callable[[], object]) -> None:
    connection.execute("SAVEPOINT mine")
    work()
    connection.execute("ROLLBACK TO mine")


def undo_by_another_cursor(connection: psycopg.Connection[object], work: Callable[[], object]) -> None:
    """A class that tells us nothing."""
    with psycopg.ClientCursor(connection) as cursor:
        cursor.execute("SAVEPOINT mine")
        work()
        cursor.execute("ROLLBACK TO mine")


def undo_by_a_function(connection: psycopg.Connection[object], work: Callable[[], object]) -> None:
    """Below psycopg: nothing of ours sees it."""
    connection.execute("SAVEPOINT mine")
    work()
    connection.pgconn.exec_(b"ROLLBACK TO mine")


@pytest.mark.parametrize("undo", [undo_by_block, undo_by_text, undo_by_another_cursor, undo_by_a_function])
@pytest.mark.parametrize("again", [True, False], ids=["asked for again", "kept"])
def test_a_proof_that_a_savepoint_took_back_is_given_again(
    shards: Shards, router: Router, undo: Callable[..., None], again: bool
) -> None:
    """The lock goes with it, and then the tablet may: a reader would be told that there are no rows."""
    if again and undo is undo_by_a_function:
        return  # only the commit looks again
    first, second = [tablet.id for tablet in shards.tablets() if tablet.node == shards.tablet(1).node][:2]
    user, other = user_of(shards, first), user_of(shards, second)
    target = next(node for node in shards.dsns if node != shards.tablet(1).node)
    with router.transaction("orders", other) as connection:
        connection.execute("INSERT INTO orders VALUES (%s, 1)", (other,))

    def block() -> None:
        with router.atomic() as tx:
            connection = tx.on("orders", user)
            undo(connection, lambda: tx.on("orders", other))
            if again:
                tx.on("orders", other)
                held = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'"
                assert connection.execute(held).fetchone() == (2,)
                return
            shards.switch(second, target)
            connection.execute("DELETE FROM orders WHERE user_id = %s", (other,))  # nothing: it is not here any more

    if again:
        block()
    else:
        with pytest.raises(psycopg.errors.SerializationFailure, match=r"tablet \d+"):
            block()
    assert shards.count(other) == 1


def test_what_only_the_commit_refuses_takes_the_other_half_back(
    shards: Shards, router: Router, pair: tuple[int, int]
) -> None:
    """A deferred constraint fails when the participant is prepared, or when the home commits."""
    for number, user in enumerate(pair):
        node = router.locate("orders", user).node
        shards.node(node).execute("CREATE TABLE IF NOT EXISTS late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")

        def spoil(at: str = node, first: int = pair[1 - number], last: int = user) -> None:
            with router.atomic() as tx:
                put(tx, *pair)
                del first
                tx.on("orders", last).execute("INSERT INTO late VALUES (1), (1)")
                assert at in tx.nodes

        with pytest.raises(psycopg.errors.UniqueViolation):
            spoil()
        shards.node(node).execute("DROP TABLE late")
    assert shards.count() == 0
    assert left_prepared(shards) == []


def test_a_decision_is_forgotten_with_the_next_transaction(
    shards: Shards, router: Router, pair: tuple[int, int]
) -> None:
    home = shards.node(router.locate("orders", pair[0]).node)
    for n in range(3):
        with router.atomic() as tx:
            put(tx, *pair, n=n)
        assert home.execute("SELECT count(*) FROM balancer.decision").fetchone() == (1,)


def test_a_swallowed_error_commits_nothing(shards: Shards, router: Router, pair: tuple[int, int]) -> None:
    def swallow() -> None:
        with router.atomic() as tx:
            put(tx, *pair)
            with pytest.raises(psycopg.errors.UndefinedTable):
                tx.on("orders", pair[1]).execute("SELECT * FROM nowhere")

    with pytest.raises(UserError, match="nothing is committed"):
        swallow()
    assert shards.count() == 0
    assert left_prepared(shards) == []


@pytest.mark.parametrize("text", ["COMMIT", "COMMIT AND CHAIN"])
def test_a_part_that_a_statement_has_ended_takes_nothing_more(
    shards: Shards, router: Router, pair: tuple[int, int], text: str
) -> None:
    """What followed would be committed whatever becomes of the others, and without any proof."""

    def block() -> None:
        with router.atomic() as tx:
            put(tx, pair[0])
            with suppress(UserError):
                tx.on("orders", pair[1]).execute(text.encode())
            with suppress(UserError):
                put(tx, pair[1])

    with pytest.raises(UserError, match="leave COMMIT and ROLLBACK to the router"):
        block()
    assert [shards.count(user) for user in pair] == [0, 0]
    with router.atomic() as tx:
        put(tx, *pair)
    assert [shards.count(user) for user in pair] == [1, 1]


def test_a_deadlock_between_nodes_ends_and_both_get_through(
    shards: Shards, router: Router, pair: tuple[int, int]
) -> None:
    with router.atomic() as tx:
        put(tx, *pair)
    meeting = threading.Barrier(2, timeout=20)
    failures: list[BaseException] = []

    def cross(first: int, second: int) -> None:
        tries = 0

        def work(tx: Atomic) -> None:
            nonlocal tries
            tries += 1
            tx.on("orders", first).execute("UPDATE orders SET note = note || 'x' WHERE user_id = %s", (first,))
            if tries == 1:
                meeting.wait()
            tx.on("orders", second).execute("UPDATE orders SET note = note || 'x' WHERE user_id = %s", (second,))

        try:
            router.run_atomic(work, lock_timeout=0.3, patience=30)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=cross, args=users) for users in (pair, pair[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    notes = [
        shards.node(router.locate("orders", user).node)
        .execute("SELECT note FROM orders WHERE user_id = %s", (user,))
        .fetchall()
        for user in pair
    ]
    assert notes == [[("xx",)], [("xx",)]]


def test_a_tablet_is_not_switched_under_a_prepared_part(shards: Shards, router: Router, pair: tuple[int, int]) -> None:
    number = router.locate("orders", pair[1]).tablet
    standing = Standing(router, "PREPARE TRANSACTION", pair)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        shards.fence(number, lock_timeout=0.2)
    standing.go_on()
    shards.fence(number)
    shards.lift(number)


def test_a_key_whose_tablet_moves_meanwhile_is_followed(shards: Shards, router: Router, pair: tuple[int, int]) -> None:
    number, home = router.locate("orders", pair[1]).tablet, router.locate("orders", pair[0]).node
    with router.atomic() as tx:
        put(tx, pair[0])
        shards.switch(number, home)
        put(tx, pair[1])
        assert tx.nodes == (home,)
    assert [shards.count(user) for user in pair] == [1, 1]


@pytest.mark.parametrize("commits", [True, False])
def test_a_lost_answer_to_the_commit_is_found_out(
    shards: Shards, router: Router, pair: tuple[int, int], commits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection to the home breaks right after, or right before, the home has committed."""
    perform = Router._perform

    def lose(self: Router, request: object) -> object:
        if b"balancer.decide(" not in repr(request).encode():
            return perform(self, request)  # type: ignore[arg-type]
        if commits:
            perform(self, request)  # type: ignore[arg-type]
        request.loan.connection.close()  # type: ignore[attr-defined]
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(Router, "_perform", lose)

    def work() -> None:
        with router.atomic() as tx:
            put(tx, *pair)

    if commits:
        work()
    else:
        with pytest.raises(Unavailable, match="nothing was committed"):
            work()
    assert [shards.count(user) for user in pair] == ([1, 1] if commits else [0, 0])
    assert left_prepared(shards) == []


def test_where_the_home_cannot_be_asked_the_outcome_is_unknown(
    shards: Shards, router: Router, pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    perform = Router._perform

    def lose(self: Router, request: object) -> object:
        text = repr(request).encode()
        if b"balancer.decide(" in text or b"balancer.abandon(" in text:
            request.loan.connection.close()  # type: ignore[attr-defined]
            raise psycopg.OperationalError("the connection is lost")
        return perform(self, request)  # type: ignore[arg-type]

    monkeypatch.setattr(Router, "_perform", lose)
    with pytest.raises(OutcomeUnknown, match="the leader will end"), router.atomic() as tx:
        put(tx, *pair)
    (gid,) = left_prepared(shards)
    named = parse_prepared(gid)
    assert named is not None
    assert named.home == router.locate("orders", pair[0]).node
    assert decided(shards.node(named.home), named.transaction) is None
    shards.node(named.node).execute(f"ROLLBACK PREPARED '{gid}'")


def test_a_home_that_was_given_up_cannot_commit_any_more(shards: Shards, router: Router, pair: tuple[int, int]) -> None:
    standing = Standing(router, "PREPARE TRANSACTION", pair)
    home = shards.node(standing.steps.nodes[0])
    home.execute("INSERT INTO balancer.decision (id, commits) VALUES (%s, false)", (standing.steps.transaction,))
    with pytest.raises(psycopg.errors.SerializationFailure, match="given it up"):
        standing.go_on()
    assert shards.count() == 0
    assert left_prepared(shards) == []


def test_a_server_without_prepared_transactions_is_refused_in_one_sentence(
    shards: Shards, router: Router, pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What such a server answers: another one would have to be started for it."""
    perform = Router._perform

    def refuse(self: Router, request: object) -> object:
        if b"PREPARE TRANSACTION" in repr(request).encode():
            return [psycopg.errors.ObjectNotInPrerequisiteState("prepared transactions are disabled")]
        return perform(self, request)  # type: ignore[arg-type]

    monkeypatch.setattr(Router, "_perform", refuse)
    with pytest.raises(Refused, match="set max_prepared_transactions there"), router.atomic() as tx:
        put(tx, *pair)
    assert shards.count() == 0


def test_asyncio(shards: Shards, pair: tuple[int, int]) -> None:
    async def insert(router: AsyncRouter, n: int, divisor: int) -> None:
        async with router.atomic() as tx:
            for user in pair:
                connection = await tx.on("orders", user)
                await connection.execute("INSERT INTO orders VALUES (%s, %s)", (user, n))
            assert 1 // divisor

    async def both() -> None:
        async with await AsyncRouter.connect(shards.url, PoolSettings(size=4), samples=False) as router:
            await insert(router, 1, divisor=1)
            with pytest.raises(ZeroDivisionError):
                await insert(router, 2, divisor=0)

    asyncio.run(both())
    assert [shards.count(user) for user in pair] == [1, 1]
    assert left_prepared(shards) == []


def test_a_participant_that_cannot_be_prepared_takes_the_prepared_ones_back(
    tmp_path: Path, postgres18: PostgresServer
) -> None:
    with databases(postgres18, 3) as dsns, new_shards(tmp_path, dsns) as shards:
        users = [user_of(shards, number) for number in (1, 2, 3)]
        spoilt = shards.node(shards.tablet(2).node)
        spoilt.execute("CREATE TABLE late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")

        def work(router: Router) -> None:
            with router.atomic() as tx:
                put(tx, *users)
                tx.on("orders", users[1]).execute("INSERT INTO late VALUES (1), (1)")

        with Router.connect(shards.url, samples=False) as router:
            with pytest.raises(psycopg.errors.UniqueViolation):
                work(router)
            assert left_prepared(shards) == []
            assert shards.count() == 0


def test_a_tablet_that_arrives_while_the_block_is_open_is_seen_by_the_next_statement(any_shards: Shards) -> None:
    """The block has used the root by then, and PostgreSQL does not look again at what it knows of a relation that the
    transaction has locked: a prepared statement, as psycopg makes them by itself, would find no row, without a word."""
    shards, here = any_shards, user_of(any_shards, 2)
    with Router.connect(shards.url, PoolSettings(size=2), samples=False) as router:
        for tablet, words in ((1, "UPDATE orders SET n = n"), (3, "SELECT n FROM orders")):
            statement, coming = f"{words} WHERE user_id = %s", user_of(shards, tablet)
            for user in (here, coming):
                with router.transaction("orders", user) as connection:
                    connection.execute("INSERT INTO orders VALUES (%s, 1) ON CONFLICT DO NOTHING", (user,))
            with router.atomic() as tx:
                for _ in range(3):
                    assert tx.on("orders", here).execute(statement, (here,), prepare=True).rowcount == 1
                shards.switch(tablet, "pg-b")
                until(lambda coming=coming: router.locate("orders", coming).node == "pg-b", 10, "the router to know")  # type: ignore[misc]
                assert tx.on("orders", coming).execute(statement, (coming,), prepare=True).rowcount == 1, words
                assert tx.nodes == ("pg-b",)


@pytest.fixture
def any_shards(tmp_path: Path, any_postgres: PostgresServer) -> Iterator[Shards]:
    with databases(any_postgres) as dsns, new_shards(tmp_path, dsns) as made:
        yield made
