"""Following the directory: a thread that refreshes a view when a signal says that the root may have changed.

The signal is only a hint: a lost one costs freshness, never correctness, because the root is read again every
`CONFIRM_EVERY` seconds anyway (a tenth as often by an application, of which there are thousands). After a signal the
nearest server is asked, which is quickest; the regular reads make sure that it is not behind the others. `age` counts
from the last of those, whatever happened to connections, sessions and watches since.

A commit signals every follower at once. Where servers are slow to answer, because thousands ask, each follower delays
its next read by a random time that grows with the time of the last answer, unless somebody waits for the result:
commits that come meanwhile are read together, and the leader's next commit does not queue behind all the readers of the
last one.
"""

import threading
from collections.abc import Callable
from random import Random
from typing import Protocol

from balancer.clock import Clock
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError

CONFIRM_EVERY = 1.0
_RANDOM = Random()  # noqa: S311 - our own: a program may have seeded the shared one
_UNEVEN = 0.25  # jitter of the regular reads: thousands may have begun at the same moment
_QUICK = 0.05  # seconds in which servers that are not crowded answer; reading in turns costs them more than at once
_SPREAD, _SPREAD_MOST = 4.0, 0.25  # a read is delayed by this many times what the last took beyond that; at most, in s
_GROUPS = 4
_RETRY_FIRST, _RETRY_MOST = 0.05, 1.0
_CLOSE_PATIENCE = 30.0  # seconds: more than any single read takes


class Signal(Protocol):
    """Wakes its waiter when the root may have changed."""

    def wait(self, timeout: float) -> None:
        """Returns when the root may have changed since the last call, when woken, or at the timeout."""

    def wake(self) -> None:
        """Makes a waiter return at once."""

    def close(self) -> None:
        """Releases what it holds."""


class PollingFollower:
    """Keeps the newest snapshot; see `directory/contract.Follower`."""

    def __init__(
        self,
        refresh: Callable[[bool], Snapshot],
        signal: Signal,
        clock: Clock,
        confirm_every: float = CONFIRM_EVERY,
    ) -> None:
        self._refresh = refresh
        self._confirm_every = confirm_every
        self._took = 0.0  # seconds of the last read
        self._hurried = 0  # how many wait for the newest at this moment
        self._hurry = threading.Event()
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
        self._due = self._next_due()
        self._thread = threading.Thread(target=self._run, name="directory-follower", daemon=True)
        self._thread.start()

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot known."""
        return self._snapshot

    def wait(self, after: int, timeout: float, *, patient: bool = False) -> Snapshot:
        """The first snapshot known with a version above `after`, or the newest when the timeout has passed."""
        with self._changed:
            self._count_hurried(0 if patient else 1)
            try:
                self._changed.wait_for(lambda: self._snapshot.version > after or self._closed.is_set(), timeout)
            finally:
                self._count_hurried(0 if patient else -1)
            return self._snapshot

    def _count_hurried(self, change: int) -> None:
        """Under the lock of `_changed`."""
        self._hurried += change
        if self._hurried or self._closed.is_set():
            self._hurry.set()
        else:
            self._hurry.clear()

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
        self._hurry.set()
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
                self._signal.wait(max(self._due - self._clock.monotonic(), 0.0))
                if self._clock.monotonic() < self._due:
                    self._hurry.wait(put_off(self._took, _RANDOM.random()))
                if self._closed.is_set():
                    return
                if self._look():
                    pause = _RETRY_FIRST
                else:
                    self._closed.wait(pause)
                    self._due = self._clock.monotonic()  # what the signal announced is still to be read
                    pause = min(pause * 2, _RETRY_MOST)
        finally:
            self._signal.close()

    def _look(self) -> bool:
        asked = self._clock.monotonic()
        fresh = asked >= self._due
        try:
            snapshot = self._refresh(fresh)
        except BalancerError:  # out of reach or being imported: the age shows it, and the next look retries
            return False
        with self._changed:
            # An election changes the epoch alone: the version is that of the last commit.
            self._snapshot = max(self._snapshot, snapshot, key=lambda one: (one.version, one.epoch))
            if fresh:
                self._confirmed = asked
                self._due = self._next_due()
            self._changed.notify_all()
        self._took = self._clock.monotonic() - asked
        return True

    def _next_due(self) -> float:
        """When to ask the servers whether any of them knows something newer."""
        uneven = 1.0 + _UNEVEN * (2 * _RANDOM.random() - 1)
        return self._confirmed + self._confirm_every * uneven


def put_off(took: float, chance: float) -> float:
    """How long a read is delayed if the last one took this many seconds; `chance` is from 0 to 1.

    Followers read in a few groups and not one by one: servers are cheaper for requests that come together.
    """
    most = min(_SPREAD_MOST, _SPREAD * max(took - _QUICK, 0.0))
    return most * int(chance * _GROUPS) / _GROUPS
