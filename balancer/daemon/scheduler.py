"""When things are done: APScheduler, one job per bundle, coalesced and never overlapping.

APScheduler follows the wall clock, so a clock that is set back would silence it for as long. The loop's thread
calls `nudge` about once a second: a job that is late by the monotonic clock is made due at once.
"""

import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from balancer.clock import Clock

LATE = 2.0  # intervals without a run after which the wall clock is no longer trusted
LANES = 32  # bundles that may tick at the same moment; a slow one holds up nobody else


class Every(BaseTrigger):  # type: ignore[misc]  # APScheduler ships no types
    """Due every this many seconds, and once for everything that was missed.

    APScheduler's own interval walks through every missed moment before it coalesces them: after a jump of the wall
    clock by years (a machine whose clock was not set at boot) that takes minutes and gigabytes.
    """

    def __init__(self, seconds: float) -> None:
        self._interval = timedelta(seconds=seconds)

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        if previous_fire_time is None:
            return now
        following = previous_fire_time + self._interval
        return following if following > now else now + self._interval


class Ticker:
    """Calls functions at intervals; each in a thread of its own, never twice at the same time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lanes = ThreadPoolExecutor(LANES)
        self._scheduler = BackgroundScheduler(
            executors={"default": self._lanes},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone="UTC",
        )
        self._lock = threading.Lock()
        self._intervals: dict[str, float] = {}
        self._functions: dict[str, Callable[[], None]] = {}
        self._began: dict[str, float] = {}
        self._running: set[str] = set()
        self._again: set[str] = set()

    def start(self) -> None:
        """Starts; functions that were added before run at once."""
        self._scheduler.start()

    def set(self, jobs: Mapping[str, tuple[float, Callable[[], None]]]) -> None:
        """Makes these the functions to call (name → interval in seconds, function); others are no longer called. Those
        already called at the same interval continue unchanged."""
        with self._lock:
            known = set(self._intervals)
        for name in known - set(jobs):
            self._scheduler.remove_job(name)
            with self._lock:
                self._intervals.pop(name, None)
                self._began.pop(name, None)
            self._functions.pop(name, None)
        for name, (seconds, function) in jobs.items():
            if name in known and _same(self._functions[name], function) and self._intervals[name] == seconds:
                continue
            self._functions[name] = function
            with self._lock:
                self._intervals[name] = seconds
                self._began[name] = self._clock.monotonic()
            self._scheduler.add_job(
                self._call,
                Every(seconds),
                args=(name, function),
                id=name,
                replace_existing=True,
                next_run_time=self._clock.now(),
            )

    def run_soon(self, name: str) -> None:
        """Makes a function due at once, or as soon as its current run is over: it never overlaps itself."""
        with self._lock:
            if name in self._running:
                self._again.add(name)
                return
        try:
            self._scheduler.modify_job(name, next_run_time=self._clock.now())
        except JobLookupError:
            return  # it was removed

    def nudge(self) -> list[str]:
        """Makes due what is late by the monotonic clock; returns the names of those."""
        now = self._clock.monotonic()
        with self._lock:
            late = [
                name
                for name, seconds in self._intervals.items()
                if name not in self._running and now - self._began[name] > LATE * seconds + 1.0
            ]
            for name in late:
                self._began[name] = now
        for name in late:
            self.run_soon(name)
        return late

    def stop(self) -> None:
        """Waits for what is running and calls nothing more. Idempotent."""
        if self._scheduler.running:
            # Does not wait in there: it would keep its locks, which a function that asks for another run at its end
            # needs.
            self._scheduler.shutdown(wait=False)
            self._lanes.shutdown(wait=True)

    def _call(self, name: str, function: Callable[[], None]) -> None:
        with self._lock:
            self._began[name] = self._clock.monotonic()
            self._running.add(name)
        try:
            function()
        finally:
            with self._lock:
                self._running.discard(name)
                again = name in self._again
                self._again.discard(name)
            if again:
                self.run_soon(name)


def _same(before: Callable[[], None], after: Callable[[], None]) -> bool:
    if isinstance(before, partial) and isinstance(after, partial):
        return (before.func, before.args, before.keywords) == (after.func, after.args, after.keywords)
    return before == after
