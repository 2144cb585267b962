"""Globally unique 64-bit ids from blocks reserved in the directory: no round trip until a block is used up.

Ids are positive and roughly increasing: exactly so within one process, and between processes as far as blocks go. A
block that a process did not use up is lost, so there are gaps. `LocatedIds` carry the position of a key in their high
bits: the id alone says where the row is, even after splits, merges and moves.

    bit 63: 0 | located: 16 bits of the key's position | 47 bits from the counter

Ids for rows, for `AsyncRouter`.
"""

import asyncio
import threading

from balancer.client.keys.routes import Routes
from balancer.directory.handover_record import signpost
from balancer.directory.locate import POSITION_BITS, SEQUENCE_BITS, AnyKey, key_position
from balancer.directory.model import Layout
from balancer.directory.snapshot import BLOCK, counter_of
from balancer.errors import Refused, UserError


class Ids:
    """The ids of one table. May be used from several threads."""

    def __init__(self, routes: Routes, table: str) -> None:
        self._routes = routes
        self._table = routes.snapshot.table(table)
        self._lock = threading.Lock()
        self._next = self._end = 0

    def next(self) -> int:
        """An id that nobody else gets."""
        with self._lock:
            return self._taken()

    def take(self, count: int) -> list[int]:
        """This many ids at once."""
        with self._lock:
            return [self._taken() for _ in range(count)]

    @property
    def ready(self) -> bool:
        """Whether the next id needs no round trip."""
        return self._next < self._end

    def reserve(self) -> None:
        """Prepares the next id, with a block from the directory if needed."""
        with self._lock:
            if not self.ready:
                self._reserve()

    def _taken(self) -> int:
        if self._next >= self._end:
            self._reserve()
        taken = self._next
        self._next += 1
        return taken

    def _reserve(self) -> None:
        directory = self._routes.directory
        number = directory.take_block(self._table.id)
        snapshot = directory.snapshot()  # after the block: this sees ids that were closed before, see `hand_over`
        if told := signpost(snapshot, self._table.id):
            raise Refused(f"ids of table {self._table.name} are not handed out here: {told}")
        first = counter_of(snapshot, self._table.id).next + number * BLOCK
        if not 0 < first <= (1 << SEQUENCE_BITS) - BLOCK:
            raise Refused(f"the ids of table {self._table.name} are used up")
        self._next, self._end = first, first + BLOCK


class LocatedIds(Ids):
    """Ids that carry the vbucket of a key of a hash table."""

    def __init__(self, routes: Routes, table: str) -> None:
        super().__init__(routes, table)
        if self._table.layout is not Layout.HASH:
            raise UserError(f"table {table} is not a hash table: its ids cannot carry a vbucket")

    def next_for(self, key: AnyKey) -> int:
        """An id for a row of this key."""
        place = key_position(self._table, key)
        assert isinstance(place, int)
        return place >> (64 - POSITION_BITS) << SEQUENCE_BITS | self.next()


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
