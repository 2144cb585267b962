"""Asks for a lock that the application's transactions hold in turn: many short attempts at good moments.

Whoever waits for a lock makes others wait behind it. So no attempt, with the work that follows, lasts longer than the
budget of the writers' pause, and between two there is a rest several times as long, in which everybody goes on. When an
attempt is worth making `policies.lock_moments` decides; here the holders are looked at. A holder that lasts is named,
and nobody is disturbed until it is gone. `swap_patience` allows one longer wait after a while, if an operator says so.
Used by the steps of migrations for their locks on roots and partitions.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from balancer.errors import NotGranted, Unavailable
from balancer.migration import guards
from balancer.migration.context import Context
from balancer.migration.progress import LOCKS
from balancer.migration.retries import Overrun
from balancer.naming import Name
from balancer.nodes.schema import blockers
from balancer.nodes.schema.blockers import WantedLock
from balancer.nodes.session.connection import translated
from balancer.policies import lock_moments
from balancer.policies.lock_moments import Durations

T = TypeVar("T")

LOOK = 0.02
"""Seconds between two looks at the holders."""
REST = 3.0
"""Times the wait of a failed attempt: others have their turn."""
ROUND = 10.0
"""Seconds of attempts before the step says what it waits for and begins again where it can be cancelled."""
WORK = 0.05
"""Seconds kept for the work under the lock."""
UNNOTICED = 0.9
"""Of the server's deadlock_timeout: one that waits for less ends nobody's transaction as a deadlock."""


class LockAttempts:
    """For one lock (or several that are taken together) of one migration on one node."""

    def __init__(
        self,
        ctx: Context,
        node: str,
        tables: Sequence[Name],
        wanted: WantedLock,
        *,
        since: float | None = None,
        work: float = WORK,
    ) -> None:
        """`since` (monotonic): the beginning of the first round. `work`: seconds that it takes under the lock."""
        self._ctx, self._node, self._tables, self._wanted = ctx, node, list(tables), wanted
        self._since, self._work = ctx.clock.monotonic() if since is None else since, work
        self._durations = Durations()
        self._first, self._failed = True, 0

    def run(self, work: Callable[[float], T]) -> T:
        """Calls `work` with the seconds that it may wait for its locks, until it gets them.

        Raises `Overrun` after a round without success, saying for whom it waits, or what patience would do.
        """
        ctx, began = self._ctx, self._ctx.clock.monotonic()
        while True:
            patience = self._await_moment(began)
            asked = ctx.clock.monotonic()
            try:
                return work(patience)
            except NotGranted as error:
                self._failed += 1
                now = ctx.clock.monotonic()
                if now - began > ROUND:
                    raise Overrun(self._sentence(patience)) from error
                ctx.progress.waiting(str(error), reason=LOCKS)
                self._watch(now + REST * (now - asked))

    def _await_moment(self, began: float) -> float:
        """Waits until an attempt is likely enough to succeed; returns its patience."""
        ctx = self._ctx
        while True:
            found = self._look()
            patience = self._patience()
            waited = ctx.clock.monotonic() - self._since
            wanted = 0.0 if self._first else lock_moments.good_enough(waited)
            chance = self._durations.chance(patience)
            if not found or (chance > 0 and chance >= wanted):
                self._first = False
                return patience
            if ctx.clock.monotonic() - began > ROUND:
                raise Overrun(self._sentence(patience))
            ctx.progress.waiting(self._words(found), reason=LOCKS)
            ctx.clock.sleep(LOOK)
            ctx.check()

    def _watch(self, until: float) -> None:
        """Rests, and learns how long the holders take."""
        while self._ctx.clock.monotonic() < until:
            self._ctx.check()
            self._look()
            self._ctx.clock.sleep(LOOK)

    def _look(self) -> list[blockers.Holder]:
        with translated(self._node):
            connection = self._ctx.links.control(self._node)
            found = blockers.find_holders(connection, self._tables, self._wanted)
        self._durations.saw({(one.pid or 0, one.since): one.age for one in found})
        return found

    def _patience(self) -> float:
        settings = self._ctx.settings
        most = UNNOTICED * self._deadlock_timeout()
        first = lock_moments.patience(settings.write_pause_budget, self._work, most)
        limit = settings.swap_patience
        waited = self._ctx.clock.monotonic() - self._since
        if limit is None or waited < ROUND / 2:
            return first
        return lock_moments.escalated(first, min(limit, most), self._failed)

    def _deadlock_timeout(self) -> float:
        return self._ctx.links.deadlock_timeout(self._node)

    def _words(self, found: Sequence[blockers.Holder]) -> str:
        return f"waits for {found[0].blocker.told} on node {self._node}"

    def _sentence(self, patience: float) -> str:
        try:
            guards.name_blockers(self._ctx, self._node, self._tables, self._wanted)
        except Overrun as named:
            who = str(named)
        except Unavailable as error:
            return str(error)
        else:
            who = f"did not get its lock on {self._tables[0]} on node {self._node}"
        typical = self._durations.typical
        if typical is None or typical < patience:
            return who
        return (
            f"{who}; transactions on {self._tables[0]} last {typical:.2f} s, at most {self._durations.longest:.2f} s,"
            f" and an attempt waits for {patience:.2f} s: a write_pause_budget of"
            f" {self._durations.longest + WORK:.1f}s would do, or a swap_patience as long"
        )
