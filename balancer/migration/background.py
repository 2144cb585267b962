"""Work alongside a step's own thread: a function in a thread, whose error is raised where its result is asked for."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from balancer.errors import BalancerError

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
