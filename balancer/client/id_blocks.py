"""Globally unique 64-bit ids from blocks reserved in the directory: no round trip until a block is used up.

Ids are positive and roughly increasing: exactly so within one process, and between processes as far as blocks go. A
block that a process did not use up is lost, so there are gaps. `LocatedIds` carry the position of a key in their high
bits: where the row is can be told from its id alone, also after splits, merges and moves.

    bit 63: 0 | located: 16 bits of the key's position | 47 bits from the counter
"""

import threading

from balancer.client.locate import POSITION_BITS, SEQUENCE_BITS, AnyKey, key_position
from balancer.client.routing import Routes
from balancer.directory.model import Counter, Layout, Put, Transaction
from balancer.errors import Conflict, Refused, UserError

FIRST_BLOCK = 1000
LARGEST_BLOCK = 1_000_000
BUSY = 1.0
"""A block used up within so many seconds is followed by one twice as large."""


class Ids:
    """The ids of one table. May be used from several threads."""

    def __init__(self, routes: Routes, table: str) -> None:
        self._routes = routes
        self._table = routes.snapshot.table(table)
        self._lock = threading.Lock()
        self._next = self._end = 0
        self._block = FIRST_BLOCK
        self._reserved_at = float("-inf")

    def next(self) -> int:
        """An id that nobody else gets."""
        with self._lock:
            return self._taken()

    def take(self, count: int) -> list[int]:
        """So many ids at once."""
        with self._lock:
            return [self._taken() for _ in range(count)]

    @property
    def ready(self) -> bool:
        """Whether the next id needs no round trip."""
        return self._next < self._end

    def reserve(self) -> None:
        """Makes ready, by a commit in the directory if need be."""
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
        now = self._routes.clock.monotonic()
        if now - self._reserved_at < BUSY:
            self._block = min(self._block * 2, LARGEST_BLOCK)
        first = self._committed(f"ids {self._table.id}")
        self._next, self._end, self._reserved_at = first, first + self._block, now

    def _committed(self, name: str) -> int:
        """The first id of a new block."""
        directory = self._routes.directory
        while True:
            snapshot = directory.snapshot()
            counter = snapshot.counters.get(name) or Counter(name)
            if counter.next + self._block > 1 << SEQUENCE_BITS:
                raise Refused(f"the ids of table {self._table.name} are used up")
            after = Counter(name, counter.next + self._block)
            reason = f"{self._block} ids for table {self._table.name}"
            try:
                directory.commit(Transaction((Put(after),), snapshot.version, reason, "client"))
            except Conflict:
                continue  # another process was faster: the next look sees its block
            return counter.next


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
