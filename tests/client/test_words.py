"""What the library says by itself: blocks that are open for too long, and where a key is."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy import text

from balancer.client import AsyncRouter, Router, RowId
from balancer.client.keys.routes import Routes
from balancer.client.sqlalchemy import run, session
from balancer.errors import UserError
from tests.support.shards import Shards, user_of


class Listening(logging.Handler):
    """Keeps what is logged, and says when something was."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = threading.Event()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self.heard.set()


@pytest.fixture
def listening() -> Iterator[Listening]:
    handler = Listening()
    logger = logging.getLogger("balancer.client")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@contextmanager
def impatient(shards: Shards) -> Iterator[Router]:
    with Router.connect(shards.url, samples=False, warn_after=0.05) as router:
        yield router


def keep_open(router: Router, user: int, listening: Listening) -> None:
    """Open until it has been named, and on until another one has been, too."""
    with router.transaction("orders", user) as connection:
        connection.execute("SELECT 1")
        assert listening.heard.wait(20)
        listening.heard.clear()
        another(router, user, listening)


def another(router: Router, user: int, listening: Listening) -> None:
    with router.transaction("orders", user) as connection:
        connection.execute("SELECT 1")
        assert listening.heard.wait(20)


class TestABlockThatIsOpenForTooLong:
    def test_is_named_once_with_the_traceback_of_its_opening(self, shards: Shards, listening: Listening) -> None:
        user = user_of(shards, 1)
        with impatient(shards) as router:
            keep_open(router, user, listening)
        first, second = listening.texts[:2]
        assert "a block for table orders has been open for" in first
        assert "tablet 1 on node pg-a cannot be moved" in first
        lines = first.splitlines()
        assert 'with router.transaction("orders", user) as connection:' in lines[-1]
        assert "in keep_open" in lines[-2]
        assert any("in test_is_named_once" in line for line in lines)
        assert not any("contextlib" in line or "balancer/client" in line for line in lines)
        assert "in another" in second.splitlines()[-2]
        assert len(listening.texts) == 2, "each place once"

    def test_a_session_counts_from_its_transactions_beginning(self, shards: Shards, listening: Listening) -> None:
        with impatient(shards) as router, session(router, "orders", 1) as orders:
            orders.execute(text("SELECT 1"))
            assert listening.heard.wait(20)
        assert "with impatient(shards) as router, session(" in listening.texts[0]

    def test_a_session_without_a_transaction_holds_up_nobody(self, shards: Shards, listening: Listening) -> None:
        with impatient(shards) as router, session(router, "orders", 1) as orders:
            orders.execute(text("SELECT 1"))
            orders.commit()
            listening.heard.clear()
            listening.texts.clear()
            with router.transaction("orders", 2) as connection:  # somebody else is named meanwhile
                connection.execute("SELECT 1")
                assert listening.heard.wait(20)
        assert not any("session(router" in said for said in listening.texts)

    def test_run_is_named_by_its_caller(self, shards: Shards, listening: Listening) -> None:
        with impatient(shards) as router:
            router.run("orders", 1, lambda connection: connection.execute("SELECT 1") and listening.heard.wait(20))
            listening.heard.clear()
            run(router, "orders", 1, lambda orders: (orders.execute(text("SELECT 1")), listening.heard.wait(20)))
        assert "router.run(" in listening.texts[0].splitlines()[-1]
        assert "run(router," in listening.texts[1].splitlines()[-1]

    def test_with_asyncio(self, shards: Shards, listening: Listening) -> None:
        async def work() -> None:
            async with (
                await AsyncRouter.connect(shards.url, samples=False, warn_after=0.05) as router,
                router.transaction("orders", 1),
            ):
                await asyncio.to_thread(listening.heard.wait, 20)

        asyncio.run(work())
        assert "in work" in listening.texts[0]

    def test_one_that_is_short_is_not(self, shards: Shards, router: Router, listening: Listening) -> None:
        with router.transaction("orders", 1):
            router._blocks.look(0)
        assert listening.texts == []
        assert router._blocks._open == {}


class TestExplain:
    def test_says_where_a_key_is_and_why(self, shards: Shards, router: Router) -> None:
        user = user_of(shards, 2)
        said = router.explain("orders", user)
        assert (said.node, said.tablet, said.epoch) == router.locate("orders", user)
        assert str(said).startswith(f"table orders: key {user} is of remainder 1 of 4, tablet 2, which is on node pg-b")
        assert said.migration == ""

    def test_says_what_is_being_done(self, shards: Shards) -> None:
        user, seen = user_of(shards, 1), []

        class Watcher:
            def __getattr__(self, _: str) -> object:
                return lambda *_, **__: seen.append(str(router.explain("orders", user)))

        with Router.connect(shards.url, samples=False) as router, shards.leading(Watcher()) as move:  # type: ignore[arg-type]
            move(1, "pg-b")
        assert any("A move to node pg-b is under way (" in said for said in seen)

    def test_of_every_layout(self, routes: Routes) -> None:
        assert "lies in the range of tablet" in str(routes.explain("events", 5))
        assert "id 5 is of remainder" in str(routes.explain("orders", RowId(5)))

    def test_what_does_not_fit_is_refused(self, router: Router) -> None:
        with pytest.raises(UserError, match="does not fit"):
            router.explain("orders", "x\x1b[31m")
        with pytest.raises(UserError, match="no table"):
            router.explain("nothing", 1)


class TestAStatementThatFoundNothing:
    """Its key is on pg-b, and the block is for a key on pg-a."""

    @pytest.fixture
    def away(self, shards: Shards) -> int:
        tablet = next(tablet.id for tablet in shards.tablets() if tablet.node == "pg-b")
        return user_of(shards, tablet)

    def test_is_said_once_for_each_place(self, shards: Shards, router: Router, listening: Listening, away: int) -> None:
        user = user_of(shards, 1)
        for _ in range(2):
            with router.transaction("orders", user) as connection:
                connection.execute("UPDATE orders SET note = '' WHERE user_id = %s", (away,))
                connection.execute("SELECT n FROM orders AS o WHERE o.user_id = %(user)s", {"user": away})
        assert len(listening.texts) == 2, listening.texts
        assert (
            "found no row, and names a key that is on node pg-b: this block is for tablet 1 on node pg-a"
            in (listening.texts[0])
        )
        assert "test_words.py, line" in listening.texts[0]
        assert str(away) not in listening.texts[0].partition("test_words.py")[0], "keys are not logged"

    def test_is_said_with_asyncio_and_in_sessions(
        self, shards: Shards, router: Router, listening: Listening, away: int
    ) -> None:
        user = user_of(shards, 1)

        async def work() -> None:
            async with (
                await AsyncRouter.connect(shards.url, samples=False) as other,
                other.transaction("orders", user) as connection,
            ):
                await connection.execute("DELETE FROM orders WHERE user_id IN (%s)", (away,))

        asyncio.run(work())
        with session(router, "orders", user) as orders:
            orders.execute(text("SELECT n FROM orders WHERE user_id = :user"), {"user": away})
        assert len(listening.texts) == 2, listening.texts
        assert all("test_words.py, line" in said for said in listening.texts)

    def test_is_not_said_of_what_may_well_be_empty(
        self, shards: Shards, router: Router, listening: Listening, away: int
    ) -> None:
        user = user_of(shards, 1)
        with router.transaction("orders", user) as connection:
            connection.execute("CREATE TEMPORARY TABLE countries (user_id bigint)")
            connection.execute("SELECT n FROM orders WHERE user_id = %s", (user,))
            connection.execute("SELECT n FROM orders WHERE n = %s", (away,))
            connection.execute("SELECT 1 FROM countries WHERE user_id = %s", (away,))
            connection.execute("SELECT 1 FROM orders o JOIN countries c ON true WHERE c.user_id = %s", (away,))
            connection.execute("SELECT n FROM orders WHERE user_id = %s - 1", (away,))
            connection.execute("SELECT n FROM orders WHERE user_id <> %s", (away,))
        assert listening.texts == []

    def test_a_row_without_a_partition_is_told_whose_it_is(self, shards: Shards, router: Router, away: int) -> None:
        user = user_of(shards, 1)
        with (
            pytest.raises(psycopg.errors.CheckViolation) as caught,
            router.transaction("orders", user) as connection,
        ):
            connection.execute("INSERT INTO orders VALUES (%s, 1)", (away,))
        (note,) = caught.value.__notes__
        assert note.startswith(f"key {away} is on pg-b, this block is for key {user} (tablet 1 on pg-a)")
