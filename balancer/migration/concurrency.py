"""One switch at a time: writers of a tablet do not wait for the servers' work on another tablet.

The migrations of a leader share one of these. It is passed before the fence and left when the new owner is open, the
fence is lifted, or anything fails: a step that is retried for a long time keeps nobody else from switching.

Whatever else migrations do on nodes during a switch would take the cores that its writers wait for. So a transaction
does not begin while another migration switches, copies rest between two blocks, and a migration that has passed waits a
moment until transactions that had begun are over; no writer is held back yet. None of this is needed for safety, and
each wait has a limit: a long statement keeps nobody from switching, nor a long switch anybody from working.

Work alongside a step's own thread: a function in a thread, whose error is raised where its result is asked for.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from balancer.errors import BalancerError
from balancer.migration.context import Context
from balancer.migration.machine import State, Track

_SWITCH = (State.FENCING, State.DRAINING, State.VERIFYING, State.SEALING, State.COMMITTING, State.OPENING)
_LOOK = 0.05  # seconds between two checks for a request to stop
_REST = 0.1  # seconds: no longer than a switch usually takes
_QUIET = 0.05  # seconds for which a migration that has passed waits for others to come to rest


class Turnstile:
    """Shared by all threads; each migration holds it at most once."""

    def __init__(self) -> None:
        self._free = threading.Lock()
        self._inside = ""
        self._empty = threading.Event()
        self._empty.set()
        self._quiet = threading.Condition()
        self._at_work = 0
        self._mine = _OfThread()

    def pass_in(self, ctx: Context, state: State) -> None:
        """Waits for its turn before a replicated move is fenced, and then for those at work to come to rest."""
        if state is not State.FENCING or ctx.track is not Track.MOVE_REPLICATE or self._inside == ctx.id:
            return
        while not self._free.acquire(timeout=_LOOK):
            ctx.progress.waiting("the switch of another tablet")
            ctx.checkpoint()
        self._inside = ctx.id
        self._empty.clear()
        with self._quiet:
            self._quiet.wait_for(lambda: self._at_work == 0, _QUIET)

    def leave(self, ctx: Context, state: State | None = None) -> None:
        """Lets the next one in, unless the switch continues in this state. Idempotent."""
        if self._inside == ctx.id and state not in _SWITCH:
            self._inside = ""
            self._empty.set()
            self._free.release()

    def give_way(self, migration: str) -> None:
        """Waits while another is inside, for no longer than a switch usually takes."""
        if self._empty.is_set() or self._inside == migration:
            return
        resting = 1 if self._mine.begun.transactions else 0
        self._count(-resting)
        self._empty.wait(_REST)
        self._count(resting)

    @contextmanager
    def work(self, migration: str, *, waits: bool) -> Iterator[None]:
        """Wraps a transaction on a node. If it `waits`, it gives way first, unless the thread has begun another one,
        whose locks may be what the switch needs."""
        begun = self._mine.begun
        if waits and not begun.transactions:
            self.give_way(migration)
        begun.transactions += 1
        self._count(1)
        try:
            yield
        finally:  # perhaps in another thread: a transaction may outlive a step
            begun.transactions -= 1
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._quiet:
            self._at_work += change
            if self._at_work == 0:
                self._quiet.notify_all()


@dataclass
class _Begun:
    """How many transactions a thread is in."""

    transactions: int = 0


class _OfThread(threading.local):
    """Each thread's own."""

    def __init__(self) -> None:
        self.begun = _Begun()


T = TypeVar("T")


class Background(Generic[T]):
    """`with Background(work) as running: …; running.result()`. Leaving the block early asks the work to stop.

    The work gets a `stop` event; it should check it now and then. A caller that leaves the block without asking for the
    result does not need it: one of our own errors is then ignored, a defect is not.
    """

    def __init__(self, work: Callable[[threading.Event], T], name: str) -> None:
        self._work = work
        self._stop = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None
        self._asked = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def result(self) -> T:
        """Waits for the work; returns what it returned, or raises what it raised."""
        self._asked = True
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set unless an error was

    def wait(self, seconds: float) -> bool:
        """Waits for the work to end, however it ends; False if it has not ended in time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def __enter__(self) -> "Background[T]":
        self._thread.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._stop.set()
        self._thread.join()
        unheard = None if self._asked else self._error
        if unheard is None or isinstance(unheard, BalancerError):
            return
        if error is None:
            raise unheard
        error.add_note(f"{self._thread.name}, which ran beside it, has failed as well: {unheard!r}")

    def _run(self) -> None:
        try:
            self._result = self._work(self._stop)
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for, or the block left
            self._error = error


class Stopped(BalancerError):
    """The step that wanted this work has ended without it."""


def stop_at(stop: threading.Event) -> None:
    """Raises `Stopped` if nobody is waiting for the work any more."""
    if stop.is_set():
        raise Stopped("the work is no longer wanted")
