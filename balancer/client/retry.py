"""When a whole transaction is retried, and after which pause. Used by `Router.run` and `AsyncRouter.run`."""

from collections.abc import Callable

import psycopg

from balancer.client.counters import Counters
from balancer.client.failures import Failure, classify

_FIRST, _LONGEST = 0.002, 0.2


class Attempts:
    """The attempts of one transaction until a deadline (monotonic seconds)."""

    def __init__(self, deadline: float, monotonic: Callable[[], float], counters: Counters | None = None) -> None:
        self._counters = counters
        self._deadline = deadline
        self._monotonic = monotonic
        self._pause = _FIRST
        self._last: psycopg.Error | None = None

    def left(self) -> float:
        """Seconds for the next attempt. If a pause took longer than intended, the last error says more than that."""
        left = self._deadline - self._monotonic()
        if left <= 0 and self._last is not None:
            raise self._last
        return left

    def pause_after(self, error: psycopg.Error) -> float:
        """Seconds to wait before the next attempt. Raises the error itself if a retry is useless or too late.

        Only errors that leave nothing committed come here: a connection lost during COMMIT is `OutcomeUnknown`.
        """
        if classify(error) is Failure.OTHER or self._monotonic() + self._pause >= self._deadline:
            raise error
        if self._counters is not None:
            self._counters.retried(classify(error))
        self._last = error
        pause = self._pause
        self._pause = min(pause * 2, _LONGEST)
        return pause
