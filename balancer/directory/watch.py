"""Following the directory: a thread that refreshes a view when a signal says that the root may have changed.

The signal is only a hint: a lost one costs freshness, never correctness, because the root is read again every
`CONFIRM_EVERY` seconds anyway. After a signal the nearest server is asked, which is quickest; the regular reads make
sure that it is not behind the others. `age` counts from the last of those, whatever happened to connections, sessions
and watches since.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from balancer.clock import Clock
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError

CONFIRM_EVERY = 1.0
_RETRY_FIRST, _RETRY_MOST = 0.05, 1.0
_CLOSE_PATIENCE = 30.0  # seconds: more than any single read takes


class Signal(Protocol):
    """Wakes its waiter when the root may have changed."""

    def wait(self, timeout: float) -> None:
        """Returns when the root may have changed since the last call, when woken, or at the timeout."""

    def wake(self) -> None:
        """Makes a waiter return at once."""

    def close(self) -> None:
        """Lets go of what it holds."""


class PollingFollower:
    """Keeps the newest snapshot; see `contract.Follower`."""

    def __init__(self, refresh: Callable[[bool], Snapshot], signal: Signal, clock: Clock) -> None:
        self._refresh = refresh
        self._signal = signal
        self._clock = clock
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._confirmed = clock.monotonic()
        try:
            self._snapshot = refresh(True)
        except BaseException:
            signal.close()
            raise
        self._thread = threading.Thread(target=self._run, name="directory-follower", daemon=True)
        self._thread.start()

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot known."""
        return self._snapshot

    def wait(self, after: int, timeout: float) -> Snapshot:
        """The first snapshot known with a version above `after`, or the newest when the timeout has passed."""
        with self._changed:
            self._changed.wait_for(lambda: self._snapshot.version > after or self._closed.is_set(), timeout)
            return self._snapshot

    def age(self) -> float:
        """Seconds since the snapshot was last known to be the newest."""
        return self._clock.monotonic() - self._confirmed

    @property
    def closed(self) -> bool:
        """Whether it has been told to stop."""
        return self._closed.is_set()

    def stop(self) -> None:
        """Tells it to stop, and does not wait."""
        self._closed.set()
        self._signal.wake()
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Stops following. Idempotent."""
        self.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_PATIENCE)

    def _run(self) -> None:
        pause = _RETRY_FIRST
        try:
            while not self._closed.is_set():
                self._signal.wait(max(CONFIRM_EVERY - self.age(), 0.0))
                if self._closed.is_set():
                    return
                if self._look():
                    pause = _RETRY_FIRST
                else:
                    self._closed.wait(pause)
                    pause = min(pause * 2, _RETRY_MOST)
        finally:
            self._signal.close()

    def _look(self) -> bool:
        asked = self._clock.monotonic()
        fresh = asked - self._confirmed >= CONFIRM_EVERY
        try:
            snapshot = self._refresh(fresh)
        except BalancerError:  # out of reach or being imported: the age tells, and the next look tries again
            return False
        with self._changed:
            # An election changes the epoch alone: the version is that of the last commit.
            self._snapshot = max(self._snapshot, snapshot, key=lambda one: (one.version, one.epoch))
            if fresh:
                self._confirmed = asked
            self._changed.notify_all()
        return True
