"""The asyncio router: the same steps, and an event loop that is never held up."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from balancer.client import AsyncRouter, PoolSettings, RowId
from balancer.errors import OutcomeUnknown, Unavailable, UserError
from tests.support.shards import Shards, user_of


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@asynccontextmanager
async def opened(shards: Shards) -> AsyncIterator[AsyncRouter]:
    async with await AsyncRouter.connect(shards.url, PoolSettings(size=4), samples=False) as router:
        yield router


async def insert(router: AsyncRouter, user: int, n: int, patience: float = 10.0) -> int:
    async with router.transaction("orders", user, patience=patience) as connection:
        await connection.execute("INSERT INTO orders VALUES (%s, %s)", (user, n))
        return connection.info.backend_pid


def test_many_tasks_write_while_their_tablet_moves(shards: Shards) -> None:
    users = [user_of(shards, 1 + at % 4, after=at) for at in range(40)]

    async def work() -> None:
        async with opened(shards) as router:
            switching = threading.Thread(target=lambda: [shards.switch(1, "pg-b"), shards.switch(2, "pg-a")])
            switching.start()
            await asyncio.gather(*(insert(router, user, at) for at, user in enumerate(users)))
            await asyncio.to_thread(switching.join)
            await asyncio.gather(*(insert(router, user, 100 + at) for at, user in enumerate(users)))
            assert router.locate("orders", users[0]).node == "pg-b"

    run(work())
    assert shards.count() == 80


def test_waiting_out_a_fence_does_not_hold_up_the_loop(shards: Shards) -> None:
    user = user_of(shards, 1)

    async def work() -> None:
        async with opened(shards) as router:
            shards.fence(1)
            waiting = asyncio.create_task(insert(router, user, 1))
            longest = 0.0
            for _ in range(30):
                began = time.monotonic()
                await asyncio.sleep(0.01)
                longest = max(longest, time.monotonic() - began)
            assert not waiting.done()
            await asyncio.to_thread(shards.lift, 1)
            await waiting
            assert longest < 1.0

    run(work())
    assert shards.count(user) == 1


def test_a_cancelled_task_gives_its_connection_back(shards: Shards) -> None:
    user = user_of(shards, 1)

    async def work() -> None:
        async with await AsyncRouter.connect(shards.url, PoolSettings(size=1), samples=False) as router:
            began = asyncio.Event()

            async def hang() -> None:
                async with router.transaction("orders", user) as connection:
                    await connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))
                    began.set()
                    await connection.execute("SELECT pg_sleep(60)")

            task = asyncio.create_task(hang())
            await began.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await insert(router, user, 2)

    run(work())
    assert shards.node("pg-a").execute("SELECT array_agg(n) FROM orders").fetchone() == ([2],)


def test_a_task_cancelled_while_it_waits_for_a_fence_leaves_nothing(shards: Shards) -> None:
    user = user_of(shards, 1)

    async def work() -> None:
        async with await AsyncRouter.connect(shards.url, PoolSettings(size=1), samples=False) as router:
            shards.fence(1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(insert(router, user, 1), 0.2)
            shards.lift(1)
            await insert(router, user, 2)

    run(work())
    assert shards.count() == 1


def test_a_cancellation_is_never_lost_whenever_it_comes(shards: Shards) -> None:
    """Also while the server refuses the very statement that is being cancelled."""
    user = user_of(shards, 1)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def work() -> None:
        async with await AsyncRouter.connect(shards.url, PoolSettings(size=1), samples=False) as router:
            await insert(router, user, 1)
            shards.fence(1)
            for _ in range(60):
                task = asyncio.create_task(insert(router, user, 2, patience=60.0))
                await asyncio.sleep(chance.random() * 0.02)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(task, 5.0)
            shards.lift(1)
            await insert(router, user, 3)

    run(work())
    assert shards.node("pg-a").execute("SELECT array_agg(n ORDER BY n) FROM orders").fetchone() == ([1, 3],)


def test_errors_are_those_of_the_blocking_router(shards: Shards) -> None:
    user = user_of(shards, 1)

    async def lose(router: AsyncRouter) -> None:
        async with router.transaction("orders", user) as connection:
            shards.node("pg-a").execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))

    async def work() -> None:
        async with opened(shards) as router:
            with pytest.raises(OutcomeUnknown):
                await lose(router)
            shards.fence(1)
            with pytest.raises(Unavailable, match="still being moved"):
                await insert(router, user, 1, patience=0.2)

    run(work())


def test_run_repeats_and_ids_are_handed_out(shards: Shards) -> None:
    user = user_of(shards, 1)
    calls = 0

    async def add(connection: psycopg.AsyncConnection[Any]) -> None:
        nonlocal calls
        calls += 1
        await connection.execute("INSERT INTO orders VALUES (%s, %s)", (user, calls))
        if calls == 1:
            raise psycopg.errors.SerializationFailure

    async def work() -> None:
        async with opened(shards) as router:
            await router.run("orders", user, add)
            ids = [await router.ids("orders").next() for _ in range(5)]
            assert ids == sorted(set(ids))
            located = await router.located_ids("orders").next_for(user)
            assert router.locate("orders", RowId(located)).tablet == 1

    run(work())
    assert shards.count() == 1


@pytest.mark.parametrize("ended", ["COMMIT", "ROLLBACK", "ROLLBACK AND CHAIN", "COMMIT; BEGIN"])
def test_nothing_runs_behind_an_end_in_the_text_of_a_statement(shards: Shards, ended: str) -> None:
    """It would commit by itself, and without any proof."""
    user = user_of(shards, 1)

    async def ended_inside(router: AsyncRouter) -> None:
        async with router.transaction("orders", user) as connection:
            await connection.execute(ended.encode())
            await connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))

    async def work() -> None:
        async with opened(shards) as router:
            with pytest.raises(UserError, match="the proven transaction is over"):
                await ended_inside(router)
            await insert(router, user, 2)
            async with router.transaction("orders", user) as kept:
                pass
            with pytest.raises(UserError, match="its block has ended"):
                await kept.execute("INSERT INTO orders VALUES (%s, 3)", (user,))

    run(work())
    assert shards.count(user) == 1
