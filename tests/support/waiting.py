"""Waiting for a condition without keeping a core busy: what is waited for runs on the same machine."""

import time
from collections.abc import Callable
from typing import Final

SLOWER: Final = 3
"""How much slower a machine may be than those on which limits were chosen. Only a failing test waits this long."""


def surely(holds: Callable[[], object], seconds: float, pause: float = 0.02) -> bool:
    """Whether what must come has come, in `seconds` or the time that a slower machine takes for it."""
    return came(holds, SLOWER * seconds, pause)


def came(holds: Callable[[], object], seconds: float, pause: float = 0.02) -> bool:
    """Whether a condition came true in time. Checking takes at most a quarter of the waiting time."""
    deadline = time.monotonic() + seconds
    while True:
        looked = time.monotonic()
        if holds():
            return True
        now = time.monotonic()
        if now > deadline:
            return False
        time.sleep(min(0.25, max(pause, 3 * (now - looked))))
