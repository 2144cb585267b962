"""Which keys are in use: a few samples per second and table, left as a note in the directory for hot-range splitting.

`Router.transaction` notes each key, which costs about a microsecond; a thread publishes every `PERIOD` seconds what a
weighted reservoir has kept. All of it is bounded: samples per table, tables per note, bytes per key. Samples are not
part of the truth, so an unreachable directory costs nothing but samples.

The note is one of a fixed number, chosen at random. Of thousands of clients many share one, and each overwrites the
others' samples: so each counts how often its note was written since its own last write, and waits that many times
longer. However many clients there are, a note is written about once in `PERIOD` seconds. `directory.notes` has
its format. The position is the encoded key of a range table, or the 8 bytes of a hash table's position; a sample's
weight is its share of the table's total.

What a framework keeps with a router: made when it is first asked for, closed when the router is.

`balancer.client.sqlalchemy` keeps its engines this way. Both kinds of router have one of these.
"""

import heapq
import threading
from collections.abc import Awaitable, Callable
from math import log
from random import Random
from typing import Protocol, TypeVar

from balancer.client.keys.routes import Routes
from balancer.client.open_blocks import OpenBlocks
from balancer.client.transaction.failures import Counters
from balancer.client.transaction.pools import PoolSettings
from balancer.directory.locate import AnyKey, key_position
from balancer.directory.model import Json
from balancer.directory.notes import SAMPLES, SLOTS, entry, sample_note
from balancer.errors import BalancerError, UserError

PERIOD = 10.0
PER_SECOND = 4
MOST_TABLES = 50
MOST_CROWD = 60
"""Clients of one note that are counted: what was collected for longer than ten minutes is useless."""
_RANDOM = Random()  # noqa: S311 - our own: a program may have seeded the shared one


class Reservoir:
    """A sample of `size` keys in which each key's chance is proportional to its weight (Efraimidis and Spirakis)."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: list[tuple[float, int, AnyKey, bool]] = []
        self._count = 0
        self.total = 0.0

    def add(self, key: AnyKey, weight: float, writing: bool) -> None:
        """Considers a key. The logarithm of u ** (1 / weight) has the same order, and does not underflow."""
        self.total += weight
        rank = log(1.0 - _RANDOM.random()) / weight
        if len(self._kept) < self._size:
            self._count += 1
            heapq.heappush(self._kept, (rank, self._count, key, writing))
        elif rank > self._kept[0][0]:
            self._count += 1
            heapq.heapreplace(self._kept, (rank, self._count, key, writing))

    def samples(self) -> list[tuple[AnyKey, float, bool]]:
        """The keys kept, each with an equal share of the total weight."""
        share = self.total / max(1, len(self._kept))
        return [(key, share, writing) for _, _, key, writing in self._kept]


class Sampler:
    """Collects and publishes. May be used from several threads."""

    def __init__(self, routes: Routes, period: float = PERIOD) -> None:
        self._routes = routes
        self._period = period
        self._size = max(1, round(period * PER_SECOND))
        self._note = _RANDOM.choice(SLOTS)
        self._written = 0  # how often our note had been written when we last did so
        self._crowd = 1  # clients that share it, as far as that is known
        self._lock = threading.Lock()
        self._reservoirs: dict[str, Reservoir] = {}
        self._since = routes.clock.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._publish_for_ever, name="key-samples", daemon=True)
        self._thread.start()

    def note(self, table: str, key: AnyKey, weight: float, writing: bool) -> None:
        """Counts a use of a key."""
        if weight <= 0:
            return
        with self._lock:
            reservoir = self._reservoirs.get(table)
            if reservoir is None:
                reservoir = self._reservoirs[table] = Reservoir(self._size)
            reservoir.add(key, weight, writing)

    def publish(self) -> None:
        """Leaves the note and starts a new collection."""
        with self._lock:
            collected, self._reservoirs = self._reservoirs, {}
            now = self._routes.clock.monotonic()
            seconds, self._since = now - self._since, now
        heaviest = sorted(collected.items(), key=lambda item: -item[1].total)[:MOST_TABLES]
        tables = dict(entry for name, reservoir in heaviest if (entry := self._entry(name, reservoir)) is not None)
        if tables:
            at = self._routes.clock.now().timestamp()
            before = self._written
            self._written = self._routes.directory.publish(SAMPLES, self._note, sample_note(at, seconds, tables))
            self._crowd = min(max(self._written - before, 1), MOST_CROWD) if before else 1

    @property
    def pause(self) -> float:
        """Seconds until the next note, on average."""
        return self._period * self._crowd

    def close(self) -> None:
        """Stops, and removes the note. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._thread.join()
        try:
            self._routes.directory.unpublish(SAMPLES, self._note)
        except BalancerError:
            return  # out of reach: readers of notes ignore old ones

    def _entry(self, name: str, reservoir: Reservoir) -> tuple[str, Json] | None:
        try:
            table = self._routes.snapshot.table(name)
            if table.whole:
                return None  # it is never split
            samples = [entry(key_position(table, key), weight, writing) for key, weight, writing in reservoir.samples()]
        except UserError:
            return None  # the transaction itself has told the application
        return str(table.id), samples

    def _publish_for_ever(self) -> None:
        while not self._closed.wait(self.pause * (0.5 + _RANDOM.random())):  # so that not all write at once
            try:
                self.publish()
            except BalancerError:
                continue


class Attached(Protocol):
    """Something that ends with its router; what an asyncio router keeps is awaited."""

    def written(self) -> list[str]:
        """Nodes that the application may have written to through it."""
        ...

    def close(self) -> Awaitable[None] | None: ...


Kept = TypeVar("Kept", bound=Attached)


class Attachments:
    """One of each kind. May be used from several threads."""

    def __init__(
        self, routes: Routes, settings: PoolSettings, sampler: Sampler | None, blocks: OpenBlocks, counters: Counters
    ) -> None:
        self.routes = routes
        self.settings = settings
        self.sampler = sampler
        self.blocks = blocks
        self.counters = counters
        self._lock = threading.Lock()
        self._kept: dict[type[Attached], Attached] | None = {}

    def get(self, kind: type[Kept], make: Callable[["Attachments"], Kept]) -> Kept:
        """The one of this kind; `make` is called once."""
        self.routes.check_process()
        with self._lock:
            if self._kept is None:
                raise UserError("the router has been closed")
            found = self._kept.get(kind)
            if found is None:
                found = self._kept[kind] = make(self)
        assert isinstance(found, kind)
        return found

    def written(self) -> set[str]:
        """Nodes that the application may have written to through what is kept here."""
        with self._lock:
            return {node for one in (self._kept or {}).values() for node in one.written()}

    def close(self) -> None:
        """Of a blocking router. Idempotent."""
        for one in self._taken():
            one.close()

    async def aclose(self) -> None:
        """Of an asyncio router. Idempotent."""
        for one in self._taken():
            ended = one.close()
            if ended is not None:
                await ended

    def _taken(self) -> list[Attached]:
        with self._lock:
            kept, self._kept = self._kept or {}, None
        return list(kept.values())
