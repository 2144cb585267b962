"""When to ask for a lock that others hold in turn, so that few attempts are needed and nobody waits long. Pure.

A session that waits for a lock makes all others wait behind it. So an attempt lasts for no longer than they may wait
(the patience), and one is worth making when those who hold the lock are probably done by then. How long such
transactions last is learned by looking at them from time to time. Called by `balancer.migration.lock_attempts`.
"""

from collections import deque
from collections.abc import Mapping
from statistics import median

KEPT = 200
WELCOME = 0.6
"""The chance that is good enough at first."""
HALVED_EVERY = 3.0
"""Seconds after which half the chance is good enough: an attempt that fails still lets transactions end together."""
LEAST = 0.02
LASTING = 3.0
"""A transaction that is this many times older than any that has ended is not waited for in a queue."""
UNKNOWN = 1.0
"""Seconds, before any transaction has been seen to end."""


class Durations:
    """How long transactions that hold the lock last, by repeated looks at them."""

    def __init__(self) -> None:
        self._ended: deque[float] = deque(maxlen=KEPT)
        self._open: dict[tuple[int, str], float] = {}

    def saw(self, holders: Mapping[tuple[int, str], float]) -> None:
        """One look: session and beginning of each transaction that holds the lock → its age in seconds."""
        for transaction, age in self._open.items():
            if transaction not in holders:
                self._ended.append(age)
        self._open = dict(holders)

    @property
    def typical(self) -> float | None:
        """The median of those that have ended; None: none has."""
        return median(self._ended) if self._ended else None

    @property
    def longest(self) -> float:
        return max(self._ended, default=UNKNOWN)

    def chance(self, patience: float) -> float:
        """The probability that all who hold the lock now have released it within the patience."""
        found = 1.0
        for age in self._open.values():
            found *= self._chance(age, patience)
        return found

    def _chance(self, age: float, patience: float) -> float:
        if age > LASTING * self.longest:
            return 0.0
        later = [duration for duration in self._ended if duration > age]
        if not later:
            return 0.5 if not self._ended else 0.3
        return sum(duration <= age + patience for duration in later) / len(later)


def good_enough(waited: float) -> float:
    """The chance at which an attempt is made, after so many seconds without a success."""
    return max(LEAST, WELCOME * float(0.5 ** (waited / HALVED_EVERY)))


def patience(budget: float, work: float, most: float) -> float:
    """Seconds for which an attempt may wait: with the work that follows no longer than the budget, if that is more than
    the work; never so long that the server looks for deadlocks (`most`)."""
    return min(most, max(budget / 2, budget - work))


def escalated(first: float, limit: float, attempts: int) -> float:
    """The patience of an operator who allows more: doubled with each attempt."""
    return max(first, min(limit, first * 2.0**attempts))
