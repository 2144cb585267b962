"""Runs the consistency checker of each bundle while this instance leads: within its schedule and its share of the time.

Called about once a second for each bundle with `[checks]`. How far a round has come is a note in the directory, so that
a new leader continues there. What is found, and what is no longer found, goes into the history, the log and the
metrics.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import structlog

from balancer.clock import Clock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Put, Transaction
from balancer.errors import BalancerError, Conflict
from balancer.features.checker.book import read_book, write_book
from balancer.features.checker.loop import Checker, ground_of
from balancer.naming import cluster_name
from balancer.nodes.session.holder import Addresses
from balancer.planner.metrics import Reporter
from balancer.policies.checking import Anomaly, due_at, rest_after
from balancer.settings import BundleSettings, Settings
from balancer.settings.schedules import check_schedule, in_zone

log = structlog.get_logger()

LOOK_SECONDS = 1.0
CALL = 0.8
"""Seconds per call: stopping the instance waits for it."""
SAVE = 5.0
"""Seconds after which progress is recorded: a new leader repeats no more than that."""
ATTEMPTS = 5
PATIENCE = 1.0


@dataclass(slots=True)
class _Kept:
    bundle: BundleSettings
    checker: Checker
    stack: ExitStack
    resting: float = 0.0
    saved: float = 0.0
    told: set[str] = field(default_factory=set)


class CheckKeeper:
    """Under one leadership; used by one thread at a time for each bundle."""

    def __init__(
        self,
        directory: Directory,
        leadership: Leadership,
        *,
        addresses: Addresses,
        settings: Callable[[], Settings],
        reporter: Reporter,
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._leadership = leadership
        self._addresses = addresses
        self._settings = settings
        self._reporter = reporter
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._closed = False

    def keep(self, name: str) -> None:
        """Continues the round of a bundle for a moment, if there is one to continue."""
        with self._locks[name]:
            try:
                if not self._closed:
                    self._keep(name)
            finally:
                if self._closed:
                    self._forget(name)

    def _keep(self, name: str) -> None:
        settings = self._settings()
        bundle = settings.bundles.get(name)
        if bundle is None or not bundle.checks.enable:
            self._forget(name)
            return
        kept = self._of(bundle)
        if self._clock.monotonic() >= kept.resting and self._may(settings, bundle, kept):
            self._work(kept)
        self._reporter.checks(name, kept.checker.book, bundle.checks, self._clock.now().timestamp())

    def close(self) -> None:
        """Records how far it has come, and closes the connections. Work in progress does so when it ends: the
        leadership is not kept for it."""
        self._closed = True
        for name in list(self._kept):
            if self._locks[name].acquire(timeout=PATIENCE):
                try:
                    self._forget(name)
                finally:
                    self._locks[name].release()

    def _of(self, bundle: BundleSettings) -> _Kept:
        kept = self._kept.get(bundle.name)
        if kept is None:
            stack = ExitStack()
            cluster = cluster_name(self._settings().daemon.directory)
            ground = ground_of(bundle, self._directory, self._addresses, cluster, self._clock)
            checker = Checker(stack.enter_context(ground), read_book(self._directory, bundle.name))
            kept = self._kept[bundle.name] = _Kept(bundle, checker, stack, saved=self._clock.monotonic())
        elif kept.bundle is not bundle:
            kept.bundle = bundle
            kept.checker.renew(bundle)
        return kept

    def _may(self, settings: Settings, bundle: BundleSettings, kept: _Kept) -> bool:
        now = self._clock.now()
        found = check_schedule(settings, bundle)
        is_open = found.enabled and in_zone(bundle, found).is_open(now)
        return is_open and due_at(kept.checker.book, bundle.checks) <= now.timestamp()

    def _work(self, kept: _Kept) -> None:
        checker, clock, options = kept.checker, self._clock, kept.bundle.checks
        until = clock.monotonic() + CALL
        if checker.book.running is None:
            self._tell(kept, (), checker.begin())
            log.info("checks begin", round=checker.book.round.number if checker.book.round else 0)
        while checker.book.running is not None and self._may_go_on() and clock.monotonic() < until:
            step = checker.step()
            if step.look.unchecked and step.look.unchecked not in kept.told:
                kept.told.add(step.look.unchecked)
                log.warning("a check was not possible", kind=step.unit and step.unit.kind, why=step.look.unchecked)
            self._tell(kept, step.appeared, step.gone)
            if step.unit is None or step.appeared or clock.monotonic() - kept.saved > SAVE:
                self._save(kept)
            rest = rest_after(step.seconds, options.share)
            kept.resting = clock.monotonic() + rest
            if kept.resting >= until:
                return
            clock.sleep(rest)
        if checker.book.running is None:
            kept.told.clear()
            self._save(kept)

    def _may_go_on(self) -> bool:
        return self._leadership.held() and not self._closed

    def _save(self, kept: _Kept) -> None:
        if self._leadership.held():
            write_book(self._directory, kept.bundle.name, kept.checker.book)
            kept.saved = self._clock.monotonic()

    def _tell(self, kept: _Kept, appeared: Sequence[Anomaly], gone: Sequence[Anomaly]) -> None:
        for anomaly in appeared:
            log.error("a check found something", kind=str(anomaly.kind), text=anomaly.text, advice=anomaly.advice)
        for word, found in (("found", appeared), ("no longer found", gone)):
            if found:
                more = f" and {len(found) - 1} more" if len(found) > 1 else ""
                self._record(kept.bundle.name, f"check of {found[0].kind}: {word}: {found[0].text}{more}")

    def _record(self, bundle: str, reason: str) -> None:
        """In the history, under the bundle."""
        author = self._settings().daemon.instance
        for _ in range(ATTEMPTS):
            snapshot = self._directory.snapshot()
            record = snapshot.bundles.get(bundle)
            if record is None:
                return
            entry = Transaction((Put(record),), snapshot.version, reason, author, self._leadership.epoch)
            try:
                self._directory.commit(entry)
            except Conflict:
                continue
            except BalancerError as error:
                log.warning("a finding could not be recorded", error=str(error))
            return

    def _forget(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            try:
                self._save(kept)
            except BalancerError as error:
                log.warning("the progress of checks was not saved", error=str(error))
            kept.stack.close()
