"""One switch at a time: writers of a tablet do not wait for the servers' work on another tablet's switch.

The migrations of a leader share one of these. It is passed before the fence and left when the new owner is open, the
fence is lifted, or anything fails: a step that is tried again for long keeps nobody else from switching. Copies that
run beside a switch rest for that moment: they would take the cores that its writers wait for.
"""

import threading

from balancer.migration.context import Context
from balancer.migration.machine import State, Track

_SWITCH = (State.FENCING, State.DRAINING, State.VERIFYING, State.SEALING, State.COMMITTING, State.OPENING)
_LOOK = 0.05  # seconds between two looks at a wish to stop
_REST = 0.1


class Turnstile:
    """Belongs to all threads; each migration has it at most once."""

    def __init__(self) -> None:
        self._free = threading.Lock()
        self._inside = ""
        self._empty = threading.Event()
        self._empty.set()

    def pass_in(self, ctx: Context, state: State) -> None:
        """Waits for its turn before a replicated move is fenced."""
        if state is not State.FENCING or ctx.track is not Track.MOVE_REPLICATE or self._inside == ctx.id:
            return
        while not self._free.acquire(timeout=_LOOK):
            ctx.progress.waiting("the switch of another tablet")
            ctx.checkpoint()
        self._inside = ctx.id
        self._empty.clear()

    def leave(self, ctx: Context, state: State | None = None) -> None:
        """Lets the next one in, unless the switch goes on in this state. Idempotent."""
        if self._inside == ctx.id and state not in _SWITCH:
            self._inside = ""
            self._empty.set()
            self._free.release()

    def give_way(self, migration: str) -> None:
        """Waits while another is inside, for no longer than a switch usually takes."""
        if not self._empty.is_set() and self._inside != migration:
            self._empty.wait(_REST)
