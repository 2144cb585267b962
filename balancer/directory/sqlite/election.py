"""Leadership among processes that share one SQLite file.

The row `leader` holds the epoch, the leader's name and a beat that the leader moves. The leader also keeps a lock on a
file named after its epoch. A standby takes over at once when that lock is free (the leader's process is gone, however
it ended), or when the beat has stood still for a whole lease by the standby's own clock (the process hangs or is
stopped). Taking over raises the epoch, which fences the old leader's commits. The leader counts its own deadline from
the moment *before* each beat was written, and well within the lease: it stops acting before anybody takes over.
"""

import fcntl
import os
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from balancer.clock import Clock
from balancer.directory.contract import Lease
from balancer.directory.store.codec import not_negative, reading_stored
from balancer.errors import BalancerError

if TYPE_CHECKING:
    import sqlite3

_BEATS = 5  # per lease
_LOOK = 0.05  # seconds between a standby's looks


class Shared(Protocol):
    """What the election needs from the directory."""

    clock: Clock

    def writing(self) -> "AbstractContextManager[sqlite3.Connection]": ...

    def reading(self) -> "AbstractContextManager[sqlite3.Connection]": ...


class EpochLock:
    """A lock on the file of one epoch, held for as long as the process lives or until it is released."""

    def __init__(self, path: Path, epoch: int) -> None:
        self._path = _lock_path(path, epoch)
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._handle)


def _lock_path(path: Path, epoch: int) -> Path:
    return path.with_name(f"{path.name}.leader-{epoch}")


def holder_is_gone(path: Path, epoch: int) -> bool:
    """Whether nobody holds the lock of this epoch any more."""
    try:
        handle = os.open(_lock_path(path, epoch), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(handle)


class SqliteLeadership(Lease):
    """See `directory/contract.Leadership`."""

    def __init__(self, shared: Shared, lock: EpochLock, epoch: int, asked: float, lease: float) -> None:
        super().__init__(shared.clock, epoch, lease, asked)
        self._shared = shared
        self._lock = lock
        self._once = threading.Lock()
        self._thread = threading.Thread(target=self._beat, name="directory-leader", daemon=True)
        self._thread.start()

    def resign(self) -> None:
        """Gives it up at once. Idempotent."""
        self.ended.set()
        with self._once:
            if self._thread.is_alive() and self._thread is not threading.current_thread():
                self._thread.join()

    def _beat(self) -> None:
        try:
            while not self.ended.wait(self._lease / _BEATS) and self.held():
                asked = self.trying()
                if self._moved():
                    self.prolong(asked)
        finally:
            self._leave()

    def _moved(self) -> bool:
        try:
            with self._shared.writing() as connection:
                moved = connection.execute("UPDATE leader SET beat = beat + 1 WHERE epoch = ?", (self._epoch,)).rowcount
        except BalancerError:  # the file is busy or away: the deadline decides
            return False
        if not moved:
            self.ended.set()
        return bool(moved)

    def _leave(self) -> None:
        self.ended.set()
        try:
            with self._shared.writing() as connection:
                connection.execute("UPDATE leader SET name = NULL WHERE epoch = ?", (self._epoch,))
        except BalancerError:
            pass  # the free lock says it as well
        self._lock.release()


def campaign(shared: Shared, path: Path, name: str, timeout: float | None, lease: float) -> SqliteLeadership | None:
    """Waits until the leader is gone or hangs, then takes over; None when the timeout has passed."""
    clock = shared.clock
    begun = since = clock.monotonic()
    seen = _state(shared)
    while True:
        state, looked = _state(shared), clock.monotonic()
        if state != seen:
            seen, since = state, looked
        if holder_is_gone(path, seen[0]) or looked - since >= lease:
            won = _take(shared, path, name, seen, lease)
            if won is not None:
                return won
        if timeout is not None and looked - begun >= timeout:
            return None
        clock.sleep(_LOOK)


def _state(shared: Shared) -> tuple[int, int]:
    with reading_stored(), shared.reading() as connection:
        epoch, beat = connection.execute("SELECT epoch, beat FROM leader").fetchone()
        return not_negative(epoch), not_negative(beat)


def _take(shared: Shared, path: Path, name: str, seen: tuple[int, int], lease: float) -> SqliteLeadership | None:
    """Raises the epoch if nothing has moved since the last look. The lock comes first: no epoch without its lock."""
    asked = shared.clock.monotonic()
    epoch = seen[0] + 1
    lock: EpochLock | None = None
    try:
        with shared.writing() as connection:
            if connection.execute("SELECT epoch, beat FROM leader").fetchone() != seen:
                return None
            lock = EpochLock(path, epoch)
            connection.execute("UPDATE leader SET epoch = ?, name = ?, beat = 0", (epoch, name))
    except BaseException:
        if lock is not None:
            lock.release()
        raise
    _lock_path(path, seen[0]).unlink(missing_ok=True)
    return SqliteLeadership(shared, lock, epoch, asked, lease)
