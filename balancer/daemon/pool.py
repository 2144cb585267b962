"""The migrations that run under one leadership: a thread each. They end with it; a successor goes on with them.

The daemon makes a pool when it is elected and closes it when it is deposed. How much may run at once is decided by the
policies' budgets before a migration begins; here everything that is journaled is carried out.
"""

import threading
from collections.abc import Callable

import structlog

from balancer.clock import Clock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Migration
from balancer.errors import BalancerError, Fenced, Refused
from balancer.logs import bind_migration
from balancer.migration.links import Addresses
from balancer.migration.observer import Observer
from balancer.migration.recovery import recover
from balancer.migration.runner import Runner
from balancer.settings import MigrationSettings

log = structlog.get_logger()

RETRY_SECONDS = 2.0


class MigrationPool:
    """Runs what is journaled for as long as the leadership is held."""

    def __init__(
        self,
        directory: Directory,
        leadership: Leadership,
        *,
        addresses: Addresses,
        settings_of: Callable[[str], MigrationSettings],
        observer: Observer,
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._leadership = leadership
        self._addresses = addresses
        self._settings_of = settings_of
        self._observer = observer
        self._clock = clock
        self._lock = threading.Lock()
        self._runners: dict[str, Runner] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._closing = threading.Event()

    def recover(self) -> int:
        """Takes over what predecessors left unfinished; returns how many."""
        found = recover(self._directory, self._leadership, self._clock)
        for migration in found:
            self.start(migration)
        return len(found)

    def start(self, migration: Migration) -> None:
        """Carries out a journaled migration in a thread of its own."""
        runner = Runner(
            self._directory,
            self._leadership,
            self._addresses,
            self._settings_of(migration.bundle),
            clock=self._clock,
            observer=self._observer,
        )
        thread = threading.Thread(
            target=self._run, args=(runner, migration), name=f"migration-{migration.id}", daemon=True
        )
        with self._lock:
            if self._closing.is_set() or migration.id in self._threads:
                return
            self._runners[migration.id] = runner
            self._threads[migration.id] = thread
        thread.start()

    def steer(self, verb: str, migration: str) -> None:
        """`cancel`, `pause` or `resume`; raises `Refused` where that is not possible."""
        with self._lock:
            runner = self._runners.get(migration)
        if runner is None:
            raise Refused(f"migration {migration} does not run")
        {"cancel": runner.cancel, "pause": runner.pause, "resume": runner.resume}[verb](migration)

    def running(self) -> frozenset[str]:
        """The ids of those that run."""
        with self._lock:
            return frozenset(self._threads)

    def close(self, patience: float) -> None:
        """Waits for the threads to notice that the leadership is over."""
        self._closing.set()
        deadline = self._clock.monotonic() + patience
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(max(0.0, deadline - self._clock.monotonic()))

    def _run(self, runner: Runner, migration: Migration) -> None:
        with bind_migration(migration.id, migration.sources, migration.source_node, migration.target_node):
            try:
                while not self._attempt(runner, migration.id):
                    self._closing.wait(RETRY_SECONDS)
            finally:
                with self._lock:
                    self._runners.pop(migration.id, None)
                    self._threads.pop(migration.id, None)

    def _attempt(self, runner: Runner, migration: str) -> bool:
        """Whether there is nothing more to do here: it has ended, or we no longer lead."""
        try:
            last = runner.run(migration)
        except Fenced:
            log.info("migration left to the next leader")
            return True
        except BalancerError as error:
            log.warning("migration interrupted", error=str(error))
            return self._closing.is_set() or not self._leadership.held()
        log.info("migration finished", state=last.state, error=last.error)
        return True
