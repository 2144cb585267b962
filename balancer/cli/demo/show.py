"""One run of the demonstration: the daemon, its page and the application, watched about once a second.

First the daemon only watches (mode `observe`); as soon as it has found the hot range it is allowed to act, by a change
of its configuration, as an operator would allow it. Then it balances until nothing is left to do for a while.
"""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from balancer.api.app import create_app
from balancer.api.server import ApiServer
from balancer.cli.demo import story
from balancer.cli.demo.application import Load
from balancer.cli.demo.screen import Picture, Step
from balancer.clock import SystemClock
from balancer.daemon.daemon import Daemon
from balancer.directory.model import Migration, MigrationKind
from balancer.errors import UserError
from balancer.migration.observer import Observer, Progress
from balancer.planner.state import BundleState, StateWord
from balancer.policies.bundle_view import ActionKind
from balancer.settings import Mode, Settings

STEADY = 6  # looks in a row with nothing to do before the cluster is called balanced: longer than a tablet rests
WATCHED = 13.0  # seconds for clients to report which keys they use: a cut by those is the best
PATIENCE = 40.0  # seconds after which the daemon may act even if it has found no hot range
DONE = "done"


class Watcher(Observer):
    """Remembers how far each migration is."""

    def __init__(self) -> None:
        self.progress: dict[str, Progress] = {}

    def progressed(self, migration: Migration, progress: Progress) -> None:
        self.progress[migration.id] = progress


class Show:
    """Runs on a cluster that is up. `act` lets the daemon act; it is called once, if the daemon may not act yet."""

    def __init__(self, settings: Settings, passfile: Path, seed: int, act: Callable[[], None]) -> None:
        self._clock = SystemClock()
        self._watcher = Watcher()
        self._began = self._clock.monotonic()
        self._daemon = Daemon(settings, self._clock, self._watcher)
        self._http = settings.daemon.http
        self._server = ApiServer(create_app(self._daemon, self._http), self._http)
        self._load = Load(settings.daemon.directory, passfile, self._clock, seed)
        self._act = act
        self._from_the_start = settings.bundle(story.BUNDLE).mode is Mode.OBSERVE
        self._watching = self._from_the_start
        self._steady = 0
        self._seen_tick: datetime | None = None
        self._first_score: float | None = None

    def start(self) -> None:
        """The application first: the daemon comes to a cluster that is at work."""
        self._load.start()
        self._daemon.start()
        try:
            self._server.start()
        except UserError:
            # Somebody took the port since the configuration was written: the page comes up on another one.
            http = self._http.model_copy(update={"listen": "127.0.0.1:0"})
            self._server = ApiServer(create_app(self._daemon, http), http)
            self._server.start()

    def stop(self) -> None:
        """The application first: nothing it does may fail because we leave. Idempotent."""
        self._load.stop()
        self._server.stop()
        self._daemon.stop()

    def step(self) -> Picture | None:
        """About once a second; None until there is something to see."""
        self._daemon.step()
        state = self._daemon.states().get(story.BUNDLE)
        if state is None or state.plan is None:
            return None
        seconds = self._clock.monotonic() - self._began
        if state.at != self._seen_tick:
            self._seen_tick = state.at
            self._look(state, seconds)
        migrations = self._daemon.follower().snapshot.migrations.values()
        finished = [record for record in migrations if record.finished]
        return Picture(
            step=self._step(finished),
            state=state,
            running=[(record, self._watcher.progress.get(record.id)) for record in migrations if not record.finished],
            finished=finished,
            count=self._load.count(),
            url=self._server.url,
            seconds=seconds,
            first_score=self._first_score,
        )

    def _look(self, state: BundleState, seconds: float) -> None:
        """Once per tick."""
        busy = self._watching or state.word is not StateWord.BALANCED
        self._steady = 0 if busy else self._steady + 1
        if self._watching:
            # The score of the cluster as it was found: once rates are known, and before anything was done about it.
            self._first_score = state.plan.score_before if state.plan is not None else None
            if (_splits_heat(state) and seconds > WATCHED) or seconds > PATIENCE:
                self._watching = False
                self._act()
        elif self._first_score is None and state.plan is not None:
            self._first_score = state.plan.score_before

    def _step(self, finished: list[Migration]) -> Step:
        """Steady means that it has seen everything that the story promises, and then had nothing to do for a while."""
        if self._watching:
            return Step.WATCHING
        done = {record.operation for record in finished if record.state == DONE}
        told = not self._from_the_start or {MigrationKind.SPLIT, MigrationKind.MOVE} <= done
        return Step.STEADY if told and self._steady >= STEADY else Step.BALANCING


def _splits_heat(state: BundleState) -> bool:
    """Whether the daemon has found the hot range and would split it."""
    return state.plan is not None and any(action.kind is ActionKind.SPLIT for action in state.plan.actions)
