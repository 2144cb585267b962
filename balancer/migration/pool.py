"""The migrations that run under one leadership: a thread each. They end with it; a successor continues them.

The daemon makes a pool when it is elected and closes it when it is deposed. The policies' budgets decide how much may
run at once, before a migration begins; here everything that is journaled is carried out.

What operators have said about single migrations (cancel, pause, resume), read from the answered commands.

A leader obeys at once, in memory; its successor finds the newest instruction here. Housekeeping keeps these commands
for as long as their migration is unfinished.
"""

import threading
from collections.abc import Callable, Mapping

import structlog

from balancer.clock import Clock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Command, CommandState, Migration
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Fenced, Refused, UserError
from balancer.logs import bind_migration
from balancer.migration.progress import Observer
from balancer.migration.runner import Runner, recover
from balancer.nodes.session.holder import Addresses
from balancer.settings import MigrationSettings

log = structlog.get_logger()

RETRY_SECONDS = 2.0
DEFECT_SECONDS = 30.0
WINDOW = "its window to open again"


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
        self._parked: dict[str, frozenset[str]] = {}  # bundle → migrations that wait for their window
        self._paused: set[str] = set()  # by operators: an opening window does not resume these
        self._closing = threading.Event()

    def recover(self) -> int:
        """Takes over what predecessors left unfinished, and what operators told them about it; returns how many."""
        found = recover(self._directory, self._leadership, self._clock)
        words = standing(self._directory.snapshot())
        for migration in found:
            self.start(migration, words.get(migration.id, ""))
        return len(found)

    def start(self, migration: Migration, word: str = "") -> None:
        """Carries out a journaled migration in a thread of its own; `word` is what an operator said about it before."""
        runner = Runner(
            self._directory,
            self._leadership,
            self._addresses,
            self._settings(migration.bundle),
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
        if word:
            self._obey(word, migration.id)
        thread.start()

    def steer(self, verb: str, migration: str) -> None:
        """`cancel`, `pause` or `resume`; raises `Refused` if that is not possible."""
        with self._lock:
            runner = self._runners.get(migration)
        if runner is None:
            raise Refused(f"migration {migration} does not run")
        {"cancel": runner.cancel, "pause": runner.pause, "resume": runner.resume}[verb](migration)
        with self._lock:
            if verb == "pause":
                self._paused.add(migration)
            else:
                self._paused.discard(migration)

    def end(self, migration: str) -> bool:
        """Ends a migration without cleaning up; False: a step of it is still under way, ask again."""
        with self._lock:
            runner = self._runners.get(migration)
        if runner is not None:
            runner.end(migration)
        return migration not in self.running()

    def _obey(self, word: str, migration: str) -> None:
        try:
            self.steer(word, migration)
        except Refused as error:
            log.info("an operator's command comes too late", verb=word, migration=migration, error=str(error))

    def park(self, bundle: str, overrunning: frozenset[str]) -> None:
        """Holds these migrations of a bundle at a safe point; resumes those it held before that are not among them.

        Called at every tick: what was resumed after an interruption is held again.
        """
        with self._lock:
            held = self._parked.get(bundle, frozenset())
            self._parked[bundle] = overrunning
            steered = {one: runner for one, runner in self._runners.items() if one not in self._paused}
        for migration in overrunning & steered.keys():
            steered[migration].pause(migration, WINDOW)
        for migration in (held - overrunning) & steered.keys():
            steered[migration].resume(migration)

    def running(self) -> frozenset[str]:
        """The ids of the running ones."""
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
                while (again_in := self._attempt(runner, migration.id)) is not None:
                    self._closing.wait(again_in)
            finally:
                with self._lock:
                    self._runners.pop(migration.id, None)
                    self._threads.pop(migration.id, None)
                    self._paused.discard(migration.id)

    def _attempt(self, runner: Runner, migration: str) -> float | None:
        """Seconds until the retry; None: it has ended, or we no longer lead."""
        again_in = RETRY_SECONDS
        try:
            last = runner.run(migration)
        except Fenced:
            log.info("migration left to the next leader")
            return None
        except BalancerError as error:
            log.warning("migration interrupted", error=str(error))
        except Exception:
            # The thread's last boundary: a bug in one step must not orphan a journaled migration.
            log.exception("migration interrupted unexpectedly")
            again_in = DEFECT_SECONDS
        else:
            log.info("migration finished", state=last.state, error=last.error)
            return None
        return None if self._closing.is_set() or not self._leadership.held() else again_in

    def _settings(self, bundle: str) -> MigrationSettings:
        try:
            return self._settings_of(bundle)
        except UserError:
            return MigrationSettings()  # the bundle was removed from the configuration: running work is still finished


VERBS = frozenset({"cancel", "pause", "resume"})


def steered(command: Command, snapshot: Snapshot) -> str | None:
    """The unfinished migration that a command was carried out on; None: it concerns none."""
    if command.verb not in VERBS or command.state is not CommandState.DONE:
        return None
    migration = str(command.arguments.get("migration") or "")
    record = snapshot.migrations.get(migration)
    return migration if record is not None and not record.finished else None


def standing(snapshot: Snapshot) -> Mapping[str, str]:
    """Migration → the instruction that stands: `cancel` for good, otherwise the newest of `pause` and `resume`."""
    found: dict[str, str] = {}
    for command in sorted(snapshot.commands.values(), key=lambda command: (command.created, command.id)):
        migration = steered(command, snapshot)
        if migration is not None and found.get(migration) != "cancel":
            found[migration] = command.verb
    return found
