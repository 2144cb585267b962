"""How fast rows are copied under `throttle = "auto"`: as fast as the applications' commits allow. Pure.

The mover times a commit of its own on both nodes while it copies, and now and then without copying. The rate grows
while commits take about as long as without it, and shrinks as soon as they take longer than the set share allows.
"""

from statistics import median

from balancer.policies.options import MB

LEAST = 1.0 * MB
"""Bytes per second: a copy always makes progress."""
MOST = 4096.0 * MB
FIRST = 16.0 * MB
GROWTH, CUT = 1.25, 0.6
NOISE = 0.0005
"""Seconds: commits of a quiet server differ by this much."""


def adjusted(rate: float, quiet: list[float], busy: list[float], share: float) -> float:
    """The next rate, in bytes per second, from the seconds that commits took without copying and with it."""
    if not quiet or not busy:
        return rate
    allowed = median(quiet) * (1.0 + share) + NOISE
    return max(LEAST, rate * CUT) if median(busy) > allowed else min(MOST, rate * GROWTH)
