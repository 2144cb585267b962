"""Long polls: any number of requests wait for a newer directory, and one thread waits for all of them.

A request that waited in a thread of its own would use up the pool; here requests are coroutines, and a single task asks
the follower in a thread while anybody waits. Every commit wakes all of them, and each asks again at once: thousands
would take the interpreter from the ticks and migrations that make the commits. So they are answered in turns, each with
the newest directory when its turn comes.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from fastapi.concurrency import run_in_threadpool

from balancer.directory.contract import Follower
from balancer.directory.snapshot import Snapshot
from balancer.errors import Unavailable

MAX_WAIT: Final = 60.0
MAX_WAITERS: Final = 4096
_STEP: Final = 0.5  # how long the thread waits at most before it checks whether anybody is still interested

ANSWERS_PER_SECOND: Final = 200.0
"""More would take over a third of a core from the daemon; with fewer, thousands of clients learn of moves later."""
_AT_ONCE: Final = 200  # this many are answered without a turn: an ordinary number of clients never waits


class Turns:
    """When each of many may proceed: some at once, the rest one after another. Time is an argument."""

    def __init__(self, per_second: float = ANSWERS_PER_SECOND, at_once: int = _AT_ONCE) -> None:
        self._every = 1 / per_second
        self._ahead = at_once * self._every
        self._last = float("-inf")

    def take(self, now: float) -> float:
        """Seconds until the next free turn, which is taken by asking."""
        self._last = max(self._last, now - self._ahead) + self._every
        return max(0.0, self._last - now)


class VersionWatch:
    """Belongs to one event loop."""

    def __init__(self, follower: Callable[[], Follower]) -> None:
        self._follower = follower
        self._waiters = 0
        self._turns = Turns()
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """The event loop runs."""
        self._loop = asyncio.get_running_loop()
        self._closing = False

    async def newer(self, after: int, timeout: float) -> Snapshot:
        """The first snapshot above `after`, or the newest when the time has passed or the server stops."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(timeout, MAX_WAIT)
        snapshot = self._follower().snapshot
        if snapshot.version > after or timeout <= 0:
            return snapshot
        if self._waiters >= MAX_WAITERS:
            raise Unavailable(f"{MAX_WAITERS} requests are waiting already: try again without waiting")
        self._waiters += 1
        try:
            while snapshot.version <= after and not self._closing and (left := deadline - loop.time()) > 0:
                await self._wait(left)
                snapshot = self._follower().snapshot
        finally:
            self._waiters -= 1
        return snapshot

    async def newer_in_turn(self, after: int, timeout: float) -> Snapshot:
        """The same for one of many: it may come later, with whatever is newest by then."""
        found = await self.newer(after, timeout)
        if found.version > after and timeout > 0 and not self._closing:
            await asyncio.sleep(self._turns.take(asyncio.get_running_loop().time()))
            found = self._follower().snapshot
        return found

    def close(self) -> None:
        """Releases everybody who waits with what there is. From any thread; idempotent."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._let_go)

    def _let_go(self) -> None:
        self._closing = True
        self._changed.set()

    async def _wait(self, left: float) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow())
        changed = self._changed
        try:
            await asyncio.wait_for(changed.wait(), left)
        except TimeoutError:
            return

    async def _follow(self) -> None:
        """Runs while anybody waits. The first look always wakes them: something may have changed before it."""
        known = -1
        loop = asyncio.get_running_loop()
        while self._waiters and not self._closing:
            asked = loop.time()
            found = await run_in_threadpool(self._follower().wait, known, _STEP)
            if found.version > known:
                known = found.version
                self._changed.set()
                self._changed = asyncio.Event()
            elif loop.time() < asked + _STEP / 2:  # a closed follower does not wait: do not spin on it
                await asyncio.sleep(_STEP)
