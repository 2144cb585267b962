"""What an error means to a migration: the one rule for every state. Only values; the runner asks and obeys.

A failure is *passing* if time may cure it: a lock that was not granted, a deadlock, a serialization failure, a server
that is away for a moment, a fence that ran out. What follows depends on what the state has done so far:

| where                                                   | answer                                                   |
|---------------------------------------------------------|----------------------------------------------------------|
| after the commit, and while something is being undone   | the step again, for as long as we lead                   |
| the switch, where the changes are still being streamed  | the fence is lifted, back to catching up, with back-off  |
| the copy of a replicated move, within the patience      | the step again: the chunks that are there are kept       |
| another copy, or a switch without a stream              | the fence is lifted, all is undone, started over, back-off |
| otherwise (nothing has been done, nobody is held back)  | the step again, until the patience is over               |

Every other error is lasting: the migration is given up and the source keeps the tablet. How often something was
retried, and the latest reason, are in the record's detail (`retries`, `retreat`).

An operator's hand on a running migration: cancel, pause, resume. Set from any thread, read by the runner's.
"""

import threading
from enum import StrEnum

from balancer.clock import Clock
from balancer.errors import BalancerError, Fenced, OutcomeUnknown, Unavailable
from balancer.migration.machine import Recovery, State, Track, row_of
from balancer.nodes.tablets.fence import Expired
from balancer.settings import MigrationSettings


class CancelRequested(BalancerError):
    """Somebody wants the migration to be undone."""


class Overrun(BalancerError):
    """Writers cannot be held back as briefly as promised right now: let them continue, retry later."""


class Difference(BalancerError):
    """The copy differs from the source; says where."""


class Ended(Fenced):
    """The migration was ended from outside: none of it may be done any more, by this thread or another."""


class Control:
    """One per running migration."""

    def __init__(self) -> None:
        self._cancel = threading.Event()
        self._end = threading.Event()
        self._go = threading.Event()
        self._go.set()
        self.reason = ""
        self.waiting_for = ""
        """What a paused migration is waiting for, in words."""

    def cancel(self, reason: str) -> None:
        """Takes effect at the next checkpoint of a state that may still be cancelled."""
        self.reason = reason
        self._cancel.set()
        self._go.set()

    def end(self) -> None:
        """Prevents every further step of the migration, even where it is too late to cancel it."""
        self._end.set()
        self._go.set()

    def check(self) -> None:
        """Raises `Ended` if it was ended."""
        if self._end.is_set():
            raise Ended("the migration was ended: a node that it needs is lost or has gone back in time")

    def pause(self, waiting_for: str = "an operator to resume it") -> None:
        """Takes effect at the next checkpoint at which writers are not held back."""
        self.waiting_for = waiting_for
        self._go.clear()

    def resume(self) -> None:
        self._go.set()

    @property
    def cancelled(self) -> bool:
        return self._cancel.is_set()

    @property
    def paused(self) -> bool:
        return not self._go.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits to be resumed; False if that does not happen in time."""
        return self._go.wait(seconds)


WORK = {
    State.OPENING: "the new owner to be opened",
    State.RETIRING: "the former owner to be told and emptied (the tablet has moved already)",
    State.RESTARTING: "everything to be undone",
    State.CANCELLING: "everything to be undone",
}
"""What these states wait for, in words."""

_PASSING = (Unavailable, OutcomeUnknown, Overrun, Expired)


class Answer(StrEnum):
    """What follows an error."""

    AGAIN = "the step again"
    RETREAT = "let writers on, catch up, fence again later"
    RESTART = "let writers on, undo everything, start over later"
    GIVE_UP = "undo everything and end"


class Failures:
    """The consecutive failures of one state's step."""

    def __init__(self, clock: Clock, patience: float) -> None:
        self._clock = clock
        self._patience = patience
        self._first: float | None = None
        self._attempt = clock.monotonic()
        self.count = 0

    def add(self) -> float:
        """One more; returns for how many seconds the step has been failing.

        An attempt that ran for longer than the patience was a good one: failures after it are counted from zero.
        """
        now = self._clock.monotonic()
        if self._first is None or now - self._attempt > self._patience:
            self._first, self.count = now, 0
        self.count += 1
        return now - self._first

    def begin_again(self) -> None:
        """Notes that the next attempt starts."""
        self._attempt = self._clock.monotonic()


def is_passing(error: BalancerError) -> bool:
    """Whether time may cure it."""
    return isinstance(error, _PASSING)


def answer(
    track: Track, state: State, error: BalancerError, *, failing_for: float, restarts: int, settings: MigrationSettings
) -> Answer:
    """What follows an error of a state's step. `restarts` is how often the migration has started over already."""
    row = row_of(track, state)
    if row.again:
        return Answer.AGAIN
    if not is_passing(error):
        return Answer.GIVE_UP
    if state is State.SWAPPING and not isinstance(error, Overrun):
        return Answer.AGAIN  # the node knows whether it happened: the step asks first
    if row.retreat is not None:
        return Answer.RETREAT  # the number of retries is limited where the next fence is waited for
    kept = row.restart is None or row.successor is Recovery.GO_ON  # what was done so far
    if kept and failing_for < settings.retry_patience:
        return Answer.AGAIN
    may_restart = row.restart is not None and restarts + 1 < settings.copy_attempts
    return Answer.RESTART if may_restart else Answer.GIVE_UP


def back_off(number: int, settings: MigrationSettings) -> float:
    """Seconds to wait before the next attempt, after this many."""
    return min(settings.retry_back_off_limit, settings.retry_back_off * 2.0 ** (number - 1))
