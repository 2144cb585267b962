"""Breaks connections that somebody has waited too long for: one thread for all, however many there are."""

import heapq
import socket
import threading
from contextlib import suppress
from itertools import count

from balancer.clock import SystemClock


class Deadlines:
    """Safe to use from any thread."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._changed = threading.Condition()
        self._numbers = count()
        self._open: dict[int, socket.socket] = {}
        self._due: list[tuple[float, int]] = []
        self._thread: threading.Thread | None = None

    def begin(self, handle: socket.socket, seconds: float) -> int:
        """Shuts the socket down after this many seconds, unless `end` is called with what this returns."""
        with self._changed:
            number = next(self._numbers)
            self._open[number] = handle
            due = self._clock.monotonic() + seconds, number
            heapq.heappush(self._due, due)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="deadlines", daemon=True)
                self._thread.start()
            elif self._due[0] is due:
                self._changed.notify()
            return number

    def end(self, number: int) -> None:
        """From now on the socket is left alone. Idempotent."""
        with self._changed:
            self._open.pop(number, None)

    def _watch(self) -> None:
        with self._changed:
            while True:
                self._changed.wait(self._next())
                now = self._clock.monotonic()
                while self._due and self._due[0][0] <= now:
                    handle = self._open.pop(heapq.heappop(self._due)[1], None)
                    if handle is not None:
                        with suppress(OSError):  # it was closed at the same moment: the block is over
                            handle.shutdown(socket.SHUT_RDWR)

    def _next(self) -> float | None:
        """Seconds until the next one that still counts is due; None: there is none."""
        while self._due and self._due[0][1] not in self._open:
            heapq.heappop(self._due)
        return max(0.0, self._due[0][0] - self._clock.monotonic()) if self._due else None


DEADLINES = Deadlines()
"""Those of this process."""
