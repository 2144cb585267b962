"""What leaderships of every backend have in common: an epoch, and the holder's own deadline, which only beats move.

The holder stops acting at its deadline whether or not it has heard anything: the servers, or a standby, let somebody
else in only later. A deadline that has passed never moves again: once lost, leadership stays lost.
"""

import threading

from balancer.clock import Clock
from balancer.errors import Fenced

_SAFE_SHARE = 0.7  # of the lease: what the holder allows itself


class Holding:
    """The part of `contract.Leadership` that asks nobody. `lease`: after how long a silence others may take over."""

    def __init__(self, clock: Clock, epoch: int, lease: float, asked: float) -> None:
        self.clock = clock
        self.ended = threading.Event()
        self._epoch = epoch
        self._lease = lease
        self._deadline = asked + lease * _SAFE_SHARE
        self._beat_at = asked
        """When the last beat that came through was sent."""
        self._trying: float | None = None
        self._why = ""

    @property
    def epoch(self) -> int:
        """Grows with each election."""
        return self._epoch

    @property
    def deadline(self) -> float:
        """On the monotonic clock: when the holder stops acting unless a beat comes through before."""
        return self._deadline

    def held(self) -> bool:
        """Whether the holder may still act, by its own deadline. Once lost, it stays lost."""
        if self.ended.is_set():
            return False
        now = self.clock.monotonic()
        if now >= self._deadline:
            self._why = self._missed(now)
            self.ended.set()
            return False
        return True

    def check(self) -> None:
        """Raises `Fenced` unless `held()`; if no beat came through in time, says what it waited for."""
        if not self.held():
            raise Fenced(f"leadership with epoch {self._epoch} is not held any more{self._why}")

    def trying(self) -> float:
        """A beat is sent now."""
        self._trying = asked = self.clock.monotonic()
        return asked

    def prolong(self, asked: float) -> None:
        """A beat that was sent at `asked` has come through."""
        if self.held():
            self._deadline = asked + self._lease * _SAFE_SHARE
            self._beat_at, self._trying = asked, None

    def _missed(self, now: float) -> str:
        """A directory that does not answer and a process that stands still are fixed in different places."""
        since = f": its last beat that came through was sent {now - self._beat_at:.1f} s ago"
        if self._trying is None:
            return f"{since}, and none was sent since: this process stood still"
        return f"{since}, and one that was sent {now - self._trying:.1f} s ago was not answered"
