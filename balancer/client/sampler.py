"""Which keys are in use: a few samples per second and table, left as a note in the directory for hot-range splitting.

`Router.transaction` notes each key, which costs about a microsecond; a thread publishes every `PERIOD` seconds what a
weighted reservoir has kept. All of it is bounded: samples per table, tables per note, bytes per key. Samples are not
part of the truth, so an unreachable directory costs nothing but samples.

The note is one of a fixed number, chosen at random. Of thousands of clients many share one, and each overwrites the
others' samples: so each counts how often its note was written since its own last write, and waits that many times
longer. However many clients there are, a note is written about once in `PERIOD` seconds. `directory.sample_note` has
its format. The position is the encoded key of a range table, or the 8 bytes of a hash table's position; a sample's
weight is its share of the table's total.
"""

import heapq
import threading
from math import log
from random import Random

from balancer.client.locate import AnyKey, key_position
from balancer.client.routing import Routes
from balancer.directory.model import Json
from balancer.directory.sample_note import SLOTS, TOPIC, entry, sample_note
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
            self._written = self._routes.directory.publish(TOPIC, self._note, sample_note(at, seconds, tables))
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
            self._routes.directory.unpublish(TOPIC, self._note)
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
