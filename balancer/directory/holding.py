"""What leaderships of every backend have in common: an epoch, and a deadline of one's own that only beats move.

The holder stops acting at its deadline whether or not it has heard anything: the servers, or a standby, let somebody
else in only later. A deadline that has passed is never moved again: once lost, leadership stays lost.
"""

import threading

from balancer.clock import Clock
from balancer.errors import Fenced

_SAFE_SHARE = 0.7  # of the lease: what the holder allows itself


class Holding:
    """The part of `contract.Leadership` that asks nobody. `lease` is after how long of silence others may take over."""

    def __init__(self, clock: Clock, epoch: int, lease: float, asked: float) -> None:
        self.clock = clock
        self.ended = threading.Event()
        self._epoch = epoch
        self._lease = lease
        self._deadline = asked + lease * _SAFE_SHARE

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
        if self.clock.monotonic() >= self._deadline:
            self.ended.set()
            return False
        return True

    def check(self) -> None:
        """Raises `Fenced` unless `held()`."""
        if not self.held():
            raise Fenced(f"leadership with epoch {self._epoch} is not held any more")

    def prolong(self, asked: float) -> None:
        """A beat that was sent at `asked` has come through."""
        if self.held():
            self._deadline = asked + self._lease * _SAFE_SHARE
