"""SQLAlchemy's sessions on the owner of a key: their transactions are proven, whatever the session does."""

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import psycopg
import pytest
from sqlalchemy import BigInteger, Engine, Text, create_engine, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import StaticPool

from balancer.client import AsyncRouter, Isolation, PoolSettings, Router
from balancer.client.sqlalchemy import configure, run, session
from balancer.errors import OutcomeUnknown, Unavailable, UserError
from tests.support.shards import Shards, user_of


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    user_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    n: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    note: Mapped[str] = mapped_column(Text, default="")


class Item(Base):
    __tablename__ = "items"
    user_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    n: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    note: Mapped[str] = mapped_column(Text, default="")


def numbers(shards: Shards, user: int) -> list[int]:
    rows = [row for node in shards.dsns for row in shards.node(node).execute(_NUMBERS, (user,)).fetchall()]
    return sorted(n for (n,) in rows)


_NUMBERS = "SELECT n FROM orders WHERE user_id = %s"


class TestABlock:
    def test_is_committed_at_its_end(self, shards: Shards, router: Router) -> None:
        for user in (user_of(shards, 1), user_of(shards, 2)):
            with session(router, "orders", user) as orders:
                orders.add(Order(user_id=user, n=1))
                assert orders.scalars(select(Order.n)).all() == [1], "autoflush"
            assert numbers(shards, user) == [1]

    def test_is_rolled_back_by_an_exception(self, shards: Shards, router: Router) -> None:
        user = user_of(shards, 1)

        def work() -> None:
            with session(router, "orders", user) as orders:
                orders.add(Order(user_id=user, n=1))
                orders.flush()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            work()
        assert numbers(shards, user) == []

    def test_goes_on_after_commit_and_rollback_each_time_with_a_proof(self, shards: Shards, router: Router) -> None:
        user = user_of(shards, 1)
        with session(router, "orders", user) as orders:
            orders.add(Order(user_id=user, n=1))
            orders.commit()
            assert held(orders) == 1
            orders.add(Order(user_id=user, n=2))
            orders.flush()
            orders.rollback()
            assert held(orders) == 1
            orders.add(Order(user_id=user, n=3))
        assert numbers(shards, user) == [1, 3]

    def test_has_begin_and_savepoints(self, shards: Shards, router: Router) -> None:
        user = user_of(shards, 1)
        with session(router, "orders", user) as orders:
            with orders.begin():
                orders.add(Order(user_id=user, n=1))
                with pytest.raises(IntegrityError), orders.begin_nested():
                    orders.execute(text("INSERT INTO orders VALUES (:user, 1), (:user, 1)"), {"user": user})
            with orders.begin():
                with orders.begin_nested():
                    orders.add(Order(user_id=user, n=2))
                assert held(orders) == 1
        assert numbers(shards, user) == [1, 2]

    def test_inside_another_has_a_transaction_of_its_own(self, shards: Shards, router: Router) -> None:
        one, other = user_of(shards, 1), user_of(shards, 2)

        def work() -> None:
            with session(router, "orders", one) as outer:
                outer.add(Order(user_id=one, n=1))
                outer.flush()
                with session(router, "orders", other) as inner:
                    inner.add(Order(user_id=other, n=1))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            work()
        assert (numbers(shards, one), numbers(shards, other)) == ([], [1])

    def test_that_reads_only_refuses_to_write(self, shards: Shards, router: Router) -> None:
        user = user_of(shards, 1)
        with (
            pytest.raises(DBAPIError, match="read-only transaction"),
            session(router, "orders", user, read_only=True) as orders,
        ):
            orders.add(Order(user_id=user, n=1))

    def test_has_the_isolation_that_was_asked_for(self, shards: Shards, router: Router) -> None:
        with session(router, "orders", 1, isolation=Isolation.SERIALIZABLE) as orders:
            assert orders.scalar(text("SHOW transaction_isolation")) == "serializable"

    def test_borrows_the_same_few_connections(self, shards: Shards, router: Router) -> None:
        user = user_of(shards, 1)
        backends = set()
        for _ in range(5):
            with session(router, "orders", user) as orders:
                backends.add(orders.scalar(text("SELECT pg_backend_pid()")))
        assert len(backends) == 1


def held(orders: Session) -> object:
    """How many tablets the transaction holds."""
    return orders.scalar(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"))


class TestWhatCannotBeProven:
    def test_a_creator_cannot_end_the_routers_block(self, shards: Shards, router: Router) -> None:
        """The naive way: it committed a row that the block then wanted back."""
        user = user_of(shards, 1)

        def work() -> None:
            with router.transaction("orders", user) as mine:
                engine = create_engine("postgresql+psycopg://", creator=lambda: mine, poolclass=StaticPool)
                with Session(engine) as orders:
                    orders.add(Order(user_id=user, n=1))
                    orders.commit()

        with pytest.raises(UserError, match="inside a block"):
            work()
        assert numbers(shards, user) == []

    @pytest.mark.parametrize("word", ["commit", "rollback"])
    def test_nor_can_the_driver(self, shards: Shards, router: Router, word: str) -> None:
        user = user_of(shards, 1)

        def work() -> None:
            with router.transaction("orders", user) as connection:
                connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))
                getattr(connection, word)()

        with pytest.raises(UserError, match=f"{word}\\(\\) inside a block"):
            work()
        assert numbers(shards, user) == []

    def test_an_engine_of_a_node_runs_nothing_by_itself(self, shards: Shards, router: Router) -> None:
        with session(router, "orders", 1) as orders:
            orders.execute(text("SELECT 1"))
            engine = orders.get_bind().engine
        assert isinstance(engine, Engine)
        with engine.connect() as connection, pytest.raises(UserError, match="in no transaction"):
            connection.begin()
        with pytest.raises(UserError, match="in no transaction"), engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    @pytest.mark.parametrize("ended", ["COMMIT", "COMMIT AND CHAIN"])
    def test_a_commit_in_a_statements_text_ends_it(self, shards: Shards, router: Router, ended: str) -> None:
        user = user_of(shards, 1)

        def work() -> None:
            with session(router, "orders", user) as orders:
                with suppress(UserError):
                    orders.execute(text(ended))
                orders.add(Order(user_id=user, n=1))
                orders.flush()

        with pytest.raises(UserError, match="in no transaction"):
            work()
        assert numbers(shards, user) == []

    def test_a_lost_error_is_not_committed(self, shards: Shards, router: Router) -> None:
        user = user_of(shards, 1)

        def work() -> None:
            with session(router, "orders", user) as orders:
                orders.execute(text("INSERT INTO orders VALUES (:user, 1)"), {"user": user})
                with pytest.raises(DBAPIError):
                    orders.execute(text("SELECT 1 / 0"))

        with pytest.raises(UserError, match="nothing is committed"):
            work()
        assert numbers(shards, user) == []

    def test_autocommit_is_refused(self, router: Router) -> None:
        with pytest.raises(UserError, match="give `isolation`"), session(router, "orders", 1) as orders:
            orders.connection(execution_options={"isolation_level": "AUTOCOMMIT"})

    def test_a_connection_cannot_be_used_after_its_transaction(self, shards: Shards, router: Router) -> None:
        with session(router, "orders", 1) as orders:
            connection = orders.connection()
            connection.commit()
            with pytest.raises(UserError, match="in no transaction"):
                connection.execute(text("SELECT 1"))
            orders.expunge_all()
            orders.invalidate()

    def test_two_phases_are_refused(self, router: Router) -> None:
        with (
            pytest.raises(UserError, match=r"router\.atomic"),
            session(router, "orders", 1, twophase=True) as orders,
        ):
            orders.execute(text("SELECT 1"))

    def test_engines_are_configured_before_the_first_session(self, router: Router) -> None:
        configure(router, echo=False, pool_recycle=600)
        with session(router, "orders", 1) as orders:
            orders.execute(text("SELECT 1"))
        with pytest.raises(UserError, match="before its first session"):
            configure(router, echo=True)


class TestMoves:
    def test_a_session_waits_for_a_fence_and_follows_the_tablet(self, shards: Shards, router: Router) -> None:
        user = user_of(shards, 1)
        with session(router, "orders", user) as orders:
            orders.add(Order(user_id=user, n=1))
            orders.commit()
            shards.switch(1, "pg-b")
            orders.add(Order(user_id=user, n=2))
            orders.commit()
            assert orders.scalars(select(Order.n).order_by(Order.n)).all() == [1, 2]
        assert shards.node("pg-b").execute(_NUMBERS, (user,)).fetchall() == [(1,), (2,)]

    def test_a_session_holds_its_tablet(self, shards: Shards, router: Router) -> None:
        user = user_of(shards, 1)
        with session(router, "orders", user) as orders:
            orders.execute(text("SELECT 1"))
            with pytest.raises(psycopg.errors.LockNotAvailable):
                shards.fence(1, lock_timeout=0.05)
            orders.commit()
            shards.fence(1)
            shards.lift(1)

    def test_patience_ends_and_nothing_was_done(self, shards: Shards, router: Router) -> None:
        user = user_of(shards, 1)
        shards.fence(1, seconds=30)
        with (
            pytest.raises(Unavailable, match="still being moved"),
            session(router, "orders", user, patience=0.1) as orders,
        ):
            orders.add(Order(user_id=user, n=1))
        assert numbers(shards, user) == []

    def test_a_server_process_that_is_gone_is_replaced(self, shards: Shards, router: Router) -> None:
        user = user_of(shards, 1)
        with session(router, "orders", user) as orders:
            backend = orders.scalar(text("SELECT pg_backend_pid()"))
        shards.node("pg-a").execute("SELECT pg_terminate_backend(%s, 1000)", (backend,))
        with session(router, "orders", user) as orders:
            orders.add(Order(user_id=user, n=1))
        assert numbers(shards, user) == [1]

    def test_a_connection_lost_at_commit_leaves_the_outcome_unknown(self, shards: Shards, router: Router) -> None:
        user = user_of(shards, 1)

        def work() -> None:
            with session(router, "orders", user) as orders:
                orders.add(Order(user_id=user, n=1))
                orders.flush()
                backend = orders.scalar(text("SELECT pg_backend_pid()"))
                shards.node("pg-a").execute("SELECT pg_terminate_backend(%s, 1000)", (backend,))

        with pytest.raises(OutcomeUnknown, match="node pg-a broke during COMMIT"):
            work()

    def test_threads_and_tasks_write_while_real_moves_go_on(self, shards: Shards) -> None:
        writing = Writing()
        with Router.connect(shards.url, PoolSettings(size=4), samples=False) as router, shards.leading() as move:
            threads = [threading.Thread(target=writing.block, args=(router, number)) for number in range(4)]
            threads.append(threading.Thread(target=writing.loop, args=(shards.url,)))
            for thread in threads:
                thread.start()
            for tablet in shards.tablets()[:2]:
                assert move(tablet.id, "pg-b" if tablet.node == "pg-a" else "pg-a").state == "done"
            writing.stop.set()
            for thread in threads:
                thread.join()
        assert writing.errors == []
        for root in ("orders", "items"):
            rows = [row for node in shards.dsns for row in shards.node(node).execute(f"SELECT user_id, n FROM {root}")]
            assert sorted(rows) == sorted(writing.acknowledged)


class Writing:
    """Threads and tasks that write until they are told to stop; what was acknowledged, and every error."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.acknowledged: list[tuple[int, int]] = []
        self.errors: list[BaseException] = []
        self._seed = random.SystemRandom().randrange(1_000_000)
        print(f"seed {self._seed}")

    def _rows(self, number: int) -> Iterator[tuple[int, int]]:
        chance = random.Random(self._seed + number)
        for n in count(number * 100_000):
            if self.stop.is_set():
                return
            yield chance.randrange(64), n

    def block(self, router: Router, number: int) -> None:
        try:
            for user, n in self._rows(number):
                with session(router, "orders", user) as orders:
                    orders.add_all([Order(user_id=user, n=n), Item(user_id=user, n=n)])
                self.acknowledged.append((user, n))
                time.sleep(0.005)
        except BaseException as error:
            self.errors.append(error)

    async def wait(self, router: AsyncRouter, number: int) -> None:
        for user, n in self._rows(number):
            async with session(router, "orders", user) as orders:
                orders.add_all([Order(user_id=user, n=n), Item(user_id=user, n=n)])
            self.acknowledged.append((user, n))
            await asyncio.sleep(0.005)

    def loop(self, url: str) -> None:
        async def tasks() -> None:
            async with await AsyncRouter.connect(url, PoolSettings(size=4), samples=False) as router:
                await asyncio.gather(*(self.wait(router, 10 + number) for number in range(4)))

        try:
            asyncio.run(tasks())
        except BaseException as error:
            self.errors.append(error)


class TestRun:
    def test_what_is_to_be_tried_again_is(self, shards: Shards, router: Router) -> None:
        user, calls = user_of(shards, 1), 0
        with session(router, "orders", user) as orders:
            orders.add(Order(user_id=user, n=1))

        def append(orders: Session) -> int:
            nonlocal calls
            calls += 1
            row = orders.get_one(Order, (user, 1))
            if calls == 1:  # somebody else is faster
                shards.node("pg-a").execute("UPDATE orders SET note = 'x' WHERE user_id = %s", (user,))
            row.note += "+"
            return calls

        assert run(router, "orders", user, append, isolation=Isolation.REPEATABLE_READ) == 2
        with session(router, "orders", user) as orders:
            assert orders.get_one(Order, (user, 1)).note == "x+"

    def test_what_is_the_applications_own_error_is_raised_as_it_is(self, shards: Shards, router: Router) -> None:
        def twice(orders: Session) -> None:
            orders.execute(text("INSERT INTO orders VALUES (1, 1), (1, 1)"))

        with pytest.raises(IntegrityError):
            run(router, "orders", 1, twice)

    def test_a_second_transaction_is_refused(self, shards: Shards, router: Router) -> None:
        user = user_of(shards, 1)

        def two(orders: Session) -> None:
            orders.add(Order(user_id=user, n=1))
            orders.commit()
            orders.add(Order(user_id=user, n=2))

        with pytest.raises(UserError, match="has one transaction"):
            run(router, "orders", user, two)

    def test_with_asyncio(self, shards: Shards) -> None:
        user, calls = user_of(shards, 1), 0

        async def append(orders: AsyncSession) -> None:
            nonlocal calls
            calls += 1
            row = await orders.get_one(Order, (user, 1))
            if calls == 1:
                shards.node("pg-a").execute("UPDATE orders SET note = 'x' WHERE user_id = %s", (user,))
            row.note += "+"

        async def work() -> str:
            async with await AsyncRouter.connect(shards.url, samples=False) as router:
                async with session(router, "orders", user) as orders:
                    orders.add(Order(user_id=user, n=1))
                await run(router, "orders", user, append, isolation=Isolation.REPEATABLE_READ)
                async with session(router, "orders", user, read_only=True) as orders:
                    return (await orders.get_one(Order, (user, 1))).note

        assert asyncio.run(work()) == "x+"


class TestAsyncio:
    def test_waiting_does_not_hold_up_the_loop_and_can_be_cancelled(self, shards: Shards) -> None:
        user = user_of(shards, 1)

        async def write(router: AsyncRouter) -> None:
            async with session(router, "orders", user) as orders:
                orders.add(Order(user_id=user, n=1))

        async def work() -> None:
            async with await AsyncRouter.connect(shards.url, PoolSettings(size=1), samples=False) as router:
                shards.fence(1, seconds=30)
                waiting = asyncio.create_task(write(router))
                for _ in range(20):
                    await asyncio.wait_for(asyncio.sleep(0.005), 1)
                assert not waiting.done()
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                shards.lift(1)
                await write(router)  # the pool has its one connection

        asyncio.run(work())
        assert numbers(shards, user) == [1]

    def test_commit_rollback_and_savepoints(self, shards: Shards) -> None:
        user = user_of(shards, 1)

        async def work() -> None:
            async with await AsyncRouter.connect(shards.url, samples=False) as router:
                async with session(router, "orders", user) as orders:
                    orders.add(Order(user_id=user, n=1))
                    await orders.commit()
                    async with orders.begin_nested():
                        orders.add(Order(user_id=user, n=2))
                    await orders.rollback()
                    async with orders.begin():
                        orders.add(Order(user_id=user, n=3))

                async def work(ended: str) -> None:
                    async with session(router, "orders", user) as orders:
                        await orders.execute(text(ended))
                        await orders.execute(text("SELECT 1"))

                for ended in ("COMMIT", "COMMIT AND CHAIN"):
                    with pytest.raises(UserError, match="in no transaction"):
                        await work(ended)

        asyncio.run(work())
        assert numbers(shards, user) == [1, 3]


def test_an_update_through_the_orm_finds_its_row_wherever_it_is(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    with session(router, "orders", user) as orders:
        orders.add(Order(user_id=user, n=1))
    shards.switch(1, "pg-b")
    with session(router, "orders", user) as orders:
        changed = orders.execute(update(Order).where(Order.user_id == user).values(note="here"))
        assert getattr(changed, "rowcount", 0) == 1
