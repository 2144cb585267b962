"""The same questions to every tablet and the same loads, for asyncio: nothing is asked twice or left behind."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import psycopg
import pytest

from balancer.client import AsyncRouter, PoolSettings, Shard, shard_steps, summed
from balancer.errors import Unavailable, UserError
from tests.support.shards import Shards, user_of

COUNT = "SELECT count(*), sum(n) FROM {orders}"
ROWS = [(number, number % 7, f"note {number}") for number in range(1200)]
COLUMNS = ["user_id", "n", "note"]
WHOLE = (1200, sum(row[1] for row in ROWS))


@asynccontextmanager
async def opened(shards: Shards, filled: bool = True) -> AsyncIterator[AsyncRouter]:
    async with await AsyncRouter.connect(shards.url, PoolSettings(size=3), samples=False) as router:
        if filled:
            assert await router.copy_into("orders", iter(ROWS), COLUMNS, batch=300) == len(ROWS)
        yield router


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_map_scan_and_each_see_every_row_once(shards: Shards) -> None:
    async def work() -> None:
        async with opened(shards) as router:
            answers = [answer async for answer in router.map("orders", COUNT)]
            assert {one.tablet: one.node for one in answers} == {one.id: one.node for one in shards.tablets()}
            assert summed(answers) == WHOLE
            assert sorted([row async for row in router.scan("orders", "SELECT user_id, n, note FROM {orders}")]) == ROWS

            async def double(shard: Shard, connection: psycopg.AsyncConnection[Any]) -> int:
                return (await connection.execute(shard.format("UPDATE {orders} SET n = n + 100"))).rowcount

            changed = [count async for count in router.each("orders", double, read_only=False)]
            assert (len(changed), sum(changed)) == (4, 1200)

    run(work())
    assert shards.count() == 1200


def test_a_key_changes_with_all_its_rows(shards: Shards) -> None:
    old = user_of(shards, 1)
    new = user_of(shards, next(one.id for one in shards.tablets() if one.node != shards.tablet(1).node))

    async def work() -> None:
        async with opened(shards, filled=False) as router:
            async with router.transaction("orders", old) as connection:
                await connection.execute("INSERT INTO orders VALUES (%s, 1, 'a'), (%s, 2, 'b')", (old, old))
                await connection.execute("INSERT INTO items VALUES (%s, 1, '')", (old,))
            assert await router.rekey("orders", old, new) == 3
            assert await router.rekey("orders", old, new) == 0
            async with router.transaction("orders", old) as connection:
                await connection.execute("INSERT INTO orders VALUES (%s, 2, 'in the way')", (old,))
            with pytest.raises(psycopg.errors.UniqueViolation):
                await router.rekey("orders", new, old)
            with pytest.raises(UserError, match="nothing would change"):
                await router.rekey("orders", old, old)

    run(work())
    assert [shards.count(old), shards.count(new), shards.count(new, "items")] == [1, 2, 1], "all or nothing"


def test_one_that_moves_is_asked_where_it_went_and_one_that_is_split_in_parts(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_steps, "MOST_TOGETHER", 1)

    async def work() -> None:
        async with opened(shards) as router:
            asked = router.map("orders", COUNT, at_once=1)
            first = await anext(asked)
            left = [tablet for tablet in shards.tablets() if tablet.id != first.tablet]
            moving, splitting = left[-1], left[-2]
            other = next(node for node in shards.dsns if node != moving.node)
            await asyncio.to_thread(shards.switch, moving.id, other)
            await asyncio.to_thread(_split, shards, splitting.id)
            found = [first, *[answer async for answer in asked]]
            assert next(one.node for one in found if one.tablet == moving.id) == other
            assert splitting.id not in {one.tablet for one in found}
            assert summed(found) == WHOLE

    run(work())


def _split(shards: Shards, tablet: int) -> None:
    with shards.leading() as migrate:
        assert migrate.split(tablet).state == "done"


def test_a_scan_that_is_left_early_gives_its_connections_back(shards: Shards) -> None:
    many = "SELECT user_id FROM {orders} CROSS JOIN generate_series(1, 300)"

    async def work() -> None:
        async with opened(shards) as router:
            for _ in range(4):  # more often than there are connections
                async with aclosing(router.scan("orders", many, at_once=3)) as rows:
                    assert await anext(rows)
            assert summed([answer async for answer in router.map("orders", COUNT, patience=5.0)]) == WHOLE

    run(work())


def test_a_failure_is_raised_after_the_rows_before_it_and_nothing_goes_on_behind_it(shards: Shards) -> None:
    async def work() -> None:
        async with opened(shards) as router:
            with pytest.raises(psycopg.errors.DivisionByZero):
                _ = [row async for row in router.scan("orders", "SELECT 1 / (user_id - 600) FROM {orders}")]
            with pytest.raises(UserError, match="write"):
                _ = [one async for one in router.map("orders", "SELECT 1 FROM {elsewhere}")]
            fence = await asyncio.to_thread(shards.fence, 2, 30.0)
            assert fence

            async def touch(shard: Shard, connection: psycopg.AsyncConnection[Any]) -> None:
                await connection.execute(shard.format("UPDATE {orders} SET n = 0"))

            with pytest.raises(Unavailable, match="tablets had answered"):
                _ = [None async for _ in router.each("orders", touch, read_only=False, patience=0.3)]
            await asyncio.to_thread(shards.lift, 2)
            names = {task.get_coro().__name__ for task in asyncio.all_tasks() if task.get_coro() is not None}  # type: ignore[union-attr]
            assert "_wrapped" not in names

    run(work())


def test_rows_that_a_switch_refuses_go_to_the_new_owner(shards: Shards) -> None:
    other = next(node for node in shards.dsns if node != shards.tablet(1).node)

    async def rows() -> AsyncIterator[tuple[int, int, str]]:
        for at, row in enumerate(ROWS):
            if at == 600:
                await asyncio.to_thread(shards.switch, 1, other)
            yield row

    async def work() -> None:
        async with opened(shards, filled=False) as router:
            assert await router.copy_into("orders", rows(), COLUMNS, batch=200) == 1200
            assert summed([answer async for answer in router.map("orders", COUNT)]) == WHOLE
            with pytest.raises(psycopg.errors.UniqueViolation):
                await router.copy_into("orders", [(0, 0, ""), (0, 0, "")], COLUMNS)

    run(work())
    assert shards.count() == 1200


@pytest.mark.parametrize("text", ["COMMIT", "COMMIT AND CHAIN", "ROLLBACK; BEGIN"])
def test_a_function_of_each_cannot_end_its_transaction_and_go_on(shards: Shards, text: str) -> None:
    async def end(shard: Shard, connection: psycopg.AsyncConnection[Any]) -> None:
        with suppress(UserError):
            await connection.execute(text.encode())
        await connection.execute(shard.format("DELETE FROM {orders}"))

    async def work() -> None:
        async with opened(shards) as router:
            with pytest.raises(UserError, match="leave COMMIT and ROLLBACK to the router"):
                _ = [None async for _ in router.each("orders", end, read_only=False)]

    run(work())
    assert shards.count() == len(ROWS)
