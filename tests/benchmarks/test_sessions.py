"""What a proven session costs beside a plain one of SQLAlchemy's, on one node."""

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Text, create_engine, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from balancer.client import AsyncRouter, PoolSettings, Router
from balancer.client.sqlalchemy import session
from tests.support.servers import postgres
from tests.support.shards import databases, new_shards
from tests.support.tables import show_table

pytestmark = pytest.mark.bench

TRANSACTIONS = 1500


class BenchBase(DeclarativeBase):
    pass


class BenchOrder(BenchBase):
    __tablename__ = "orders"
    user_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    n: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    note: Mapped[str] = mapped_column(Text, default="")


def test_cost_of_a_proven_session(tmp_path: Path, server_folder: Path) -> None:
    """Alternating, so that both meet the same neighbours; the median of each."""
    server = postgres(server_folder / "durable-sessions", 18)
    server._settings["fsync"] = "on"
    numbers = count()
    with ExitStack() as stack:
        stack.enter_context(server)
        shards = stack.enter_context(new_shards(tmp_path, stack.enter_context(databases(server, 1))))
        router = stack.enter_context(Router.connect(shards.url, PoolSettings(size=1), samples=False))
        dsn = shards.dsns["pg-a"]
        engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://", 1), pool_size=1)
        stack.callback(engine.dispose)

        def insert(key: int) -> None:
            with session(router, "orders", key) as orders:
                orders.add(BenchOrder(user_id=key, n=next(numbers)))

        def plain_insert(key: int) -> None:
            with Session(engine) as orders, orders.begin():
                orders.add(BenchOrder(user_id=key, n=next(numbers)))

        def read(key: int) -> None:
            with session(router, "orders", key, read_only=True) as orders:
                orders.scalars(select(BenchOrder).where(BenchOrder.user_id == key).limit(1)).all()

        def plain_read(key: int) -> None:
            with Session(engine) as orders, orders.begin():
                orders.scalars(select(BenchOrder).where(BenchOrder.user_id == key).limit(1)).all()

        rows = []
        for name, ours, theirs in (("insert", insert, plain_insert), ("select", read, plain_read)):
            mine, other = alternating(ours, theirs)
            rows.append((name, TRANSACTIONS, mine * 1e3, other * 1e3, mine / other))
        rows += asyncio.run(_with_asyncio(shards.url, dsn, numbers))
    columns = ("session", "of each", "proven, ms (median)", "plain SQLAlchemy, ms (median)", "ratio")
    show_table("a session of one object; goal 1.15", columns, rows)


async def _with_asyncio(url: str, dsn: str, numbers: Iterator[int]) -> list[tuple[str, int, float, float, float]]:
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+psycopg://", 1), pool_size=1)
    try:
        async with await AsyncRouter.connect(url, PoolSettings(size=1), samples=False) as router:

            async def insert(key: int) -> None:
                async with session(router, "orders", key) as orders:
                    orders.add(BenchOrder(user_id=key, n=next(numbers)))

            async def plain_insert(key: int) -> None:
                async with AsyncSession(engine) as orders, orders.begin():
                    orders.add(BenchOrder(user_id=key, n=next(numbers)))

            async def read(key: int) -> None:
                async with session(router, "orders", key, read_only=True) as orders:
                    (await orders.scalars(select(BenchOrder).where(BenchOrder.user_id == key).limit(1))).all()

            async def plain_read(key: int) -> None:
                async with AsyncSession(engine) as orders, orders.begin():
                    (await orders.scalars(select(BenchOrder).where(BenchOrder.user_id == key).limit(1))).all()

            rows = []
            for name, ours, theirs in (("insert", insert, plain_insert), ("select", read, plain_read)):
                taken: tuple[list[float], list[float]] = ([], [])
                for key in range(TRANSACTIONS):
                    for work, into in ((ours, taken[0]), (theirs, taken[1])):
                        began = time.perf_counter()
                        await work(key)
                        into.append(time.perf_counter() - began)
                mine, other = map(statistics.median, taken)
                rows.append((f"{name}, asyncio", TRANSACTIONS, mine * 1e3, other * 1e3, mine / other))
            return rows
    finally:
        await engine.dispose()


def alternating(ours: Callable[[int], None], theirs: Callable[[int], None]) -> tuple[float, float]:
    taken: tuple[list[float], list[float]] = ([], [])
    for key in range(TRANSACTIONS):
        for work, into in ((ours, taken[0]), (theirs, taken[1])):
            began = time.perf_counter()
            work(key)
            into.append(time.perf_counter() - began)
    return statistics.median(taken[0]), statistics.median(taken[1])
