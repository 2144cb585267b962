"""Ids for rows, for `AsyncRouter`."""

import asyncio

from balancer.client.id_blocks import Ids, LocatedIds
from balancer.client.locate import AnyKey


class AsyncIds:
    """`Ids` whose round trips do not block the event loop."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids

    async def next(self) -> int:
        """An id that nobody else gets."""
        if not self._ids.ready:
            await asyncio.to_thread(self._ids.reserve)
        return self._ids.next()


class AsyncLocatedIds:
    """`LocatedIds` whose round trips do not block the event loop."""

    def __init__(self, ids: LocatedIds) -> None:
        self._ids = ids

    async def next_for(self, key: AnyKey) -> int:
        """An id for a row of this key."""
        if not self._ids.ready:
            await asyncio.to_thread(self._ids.reserve)
        return self._ids.next_for(key)
