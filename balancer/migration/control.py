"""An operator's hand on a running migration: cancel, pause, resume. Set from any thread, read by the runner's."""

import threading

from balancer.errors import BalancerError, Fenced


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
