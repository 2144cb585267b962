"""The application of the demonstration: threads that write and read through the client library, and count.

Orders of random customers, with a few customers who order most; events that are appended at the end or marked as seen,
and readers of the newest ones, who make a quarter of the key space hot. Every operation is counted, with its time; one
that fails is our failure.

Each thread has a timetable and does not slow down with the machine, so that the load is the same everywhere: what
counts as hot here must be so on a busy machine too.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from balancer.cli.demo import story
from balancer.client import PoolSettings, Router
from balancer.clock import Clock

LATE = 1.0  # seconds after which a thread that could not keep its timetable begins a new one instead of catching up


@dataclass(frozen=True, slots=True)
class Count:
    """What the application has seen so far."""

    operations: int = 0
    failed: int = 0
    slowest: float = 0.0  # seconds
    last_error: str = ""


class Load:
    """Runs until it is stopped."""

    def __init__(self, directory: str, passfile: Path, clock: Clock, seed: int) -> None:
        self._router = Router.connect(directory, PoolSettings(connection={"passfile": str(passfile)}))
        self._clock = clock
        self._seed = seed
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._count = Count()
        self._order_ids = self._router.ids("orders")
        self._next_event = story.EVENTS + 1
        # Two threads for the most frequent work: a long operation then does not hold up the other half of it.
        jobs: list[tuple[Callable[[Random], None], float]] = [
            *([(self._order, 15.0)] * 2),
            *([(self._look, 10.0)] * 2),
            *([(self._recent, story.LOOKS_PER_SECOND / 2)] * 2),
            (self._append, 3.0),
            (self._mark, story.MARKS_PER_SECOND),
        ]
        self._threads = [
            threading.Thread(target=self._work, args=(job, rate, number), daemon=True)
            for number, (job, rate) in enumerate(jobs)
        ]

    def start(self) -> None:
        """Begins to work; events continue where the last run ended."""
        with self._router.transaction("events", (1 << 62,), read_only=True) as connection:
            newest = connection.execute("SELECT max(event_id) FROM events").fetchone()
            self._next_event = max(self._next_event, (newest[0] or 0) + 1_000_000 if newest else 0)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the threads. Idempotent."""
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._router.close()

    def count(self) -> Count:
        """The figures so far."""
        with self._lock:
            return self._count

    def _work(self, job: Callable[[Random], None], rate: float, number: int) -> None:
        chance = Random(self._seed + number)  # noqa: S311 - a load, not a secret
        due = self._clock.monotonic() + chance.random() / rate
        while not self._stopping.wait(max(0.0, due - self._clock.monotonic())):
            began = self._clock.monotonic()
            error = ""
            try:
                job(chance)
            except Exception as failure:  # noqa: BLE001 - whatever the application sees is counted and shown
                error = f"{type(failure).__name__}: {failure}"
            now = self._clock.monotonic()
            self._note(now - began, error)
            due = due + 1 / rate if now - due < LATE else now

    def _note(self, seconds: float, error: str) -> None:
        with self._lock:
            before = self._count
            self._count = Count(
                operations=before.operations + 1,
                failed=before.failed + bool(error),
                slowest=max(before.slowest, seconds),
                last_error=error or before.last_error,
            )

    def _customer(self, chance: Random) -> int:
        """A tenth of the customers places two thirds of the orders."""
        return 1 + chance.randrange(story.CUSTOMERS if chance.random() < 1 / 3 else story.CUSTOMERS // 10)

    def _order(self, chance: Random) -> None:
        customer, order = self._customer(chance), self._order_ids.next()
        with self._router.transaction("orders", (customer,)) as connection:
            connection.execute(
                "INSERT INTO orders (customer_id, order_id, amount) VALUES (%s, %s, %s)", (customer, order, 1)
            )

    def _append(self, _: Random) -> None:
        with self._lock:
            event, self._next_event = self._next_event, self._next_event + 1
        with self._router.transaction("events", (event,)) as connection:
            connection.execute("INSERT INTO events (event_id, body) VALUES (%s, repeat('x', 200))", (event,))

    def _mark(self, chance: Random) -> None:
        event = chance.choice(story.NEWEST)
        with self._router.transaction("events", (event,)) as connection:
            connection.execute("UPDATE events SET body = upper(body) WHERE event_id = %s", (event,))

    def _recent(self, chance: Random) -> None:
        first = chance.choice(story.NEWEST)
        last = first + story.RECENT_ROWS - 1
        with self._router.transaction("events", (first,), read_only=True) as connection:
            connection.execute("SELECT count(body) FROM events WHERE event_id BETWEEN %s AND %s", (first, last))

    def _look(self, chance: Random) -> None:
        customer = self._customer(chance)
        with self._router.transaction("orders", (customer,), read_only=True) as connection:
            connection.execute("SELECT * FROM orders WHERE customer_id = %s LIMIT 18", (customer,)).fetchall()
