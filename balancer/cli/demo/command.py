"""`balancer demo`: starts everything, shows it, and ends it all again.

One run of the demonstration: the daemon, its page and the application, watched about once a second.

First the daemon only watches (mode `observe`); as soon as it has found the hot range it is allowed to act, by a change
of its configuration, as an operator would allow it. Then it balances until nothing is left to do for a while.
"""

import signal
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.live import Live

from balancer.api.app import create_app
from balancer.api.server import ApiServer
from balancer.cli.demo import story
from balancer.cli.demo.application import Load
from balancer.cli.demo.screen import Picture, Step, line, panel, summarise
from balancer.clock import SystemClock
from balancer.daemon.daemon import Daemon
from balancer.directory.model import Migration, MigrationKind
from balancer.embedded.cluster import EmbeddedCluster, default_folder
from balancer.embedded.postgres import system_binaries
from balancer.errors import UserError
from balancer.logs import set_up_logs
from balancer.migration.progress import Observer, Progress
from balancer.planner.bundle_state import BundleState, StateWord
from balancer.policies.view import ActionKind
from balancer.settings import Mode, Settings
from balancer.terminal.output import Output, OutputOption, console, say

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


LINE_SECONDS = 5.0


def demo(
    once: Annotated[
        bool, typer.Option("--once", help="stop when the cluster is balanced, and print a summary")
    ] = False,
    zookeeper: Annotated[bool, typer.Option("--zookeeper", help="keep the directory in a real ZooKeeper")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh/--keep", help="start with empty nodes, or continue where the last run ended")
    ] = True,
    nodes: Annotated[int, typer.Option(min=2, max=8, help="how many PostgreSQL nodes")] = 3,
    folder: Annotated[Path | None, typer.Option(help="where data is kept between runs")] = None,
    system_postgres: Annotated[
        bool, typer.Option("--system-postgres", help="use the machine's own PostgreSQL")
    ] = False,
    limit: Annotated[float, typer.Option(help="with --once: give up after this many seconds")] = 600.0,
    seed: Annotated[int, typer.Option(help="of the load")] = 1,
    output: OutputOption = Output.TEXT,
) -> None:
    """Runs the main job on an embedded cluster: a lopsided data set, load, and the daemon that balances it."""
    home = (folder or default_folder()) / "demo"
    drawn = console.is_terminal and output is not Output.JSON
    log = home.with_suffix(".log") if drawn else None
    set_up_logs("warning", "text", _opened(log) if log else None)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: ended.set())
    tell = (lambda _: None) if output is Output.JSON else say
    cluster = EmbeddedCluster(
        home,
        nodes,
        zookeeper=zookeeper,
        binaries=system_binaries() if system_postgres else None,
        progress=lambda name: tell(f"{name} is up"),
    )
    if log:
        tell(f"log: {log}")
    tell(f"starting {nodes} PostgreSQL nodes{' and ZooKeeper' if zookeeper else ''} in {home}")
    try:
        cluster.start(fresh=fresh)
        settings = story.write_configuration(cluster, Mode.OBSERVE)
        tell(f"configuration: {settings.file}")
        if story.set_tables(settings):
            tell("tables orders and events are made, all on pg-a")
        else:
            settings = story.write_configuration(cluster, Mode.AUTONOMOUS)
            tell("tables are there from the last run")
        show = Show(settings, story.write_passfile(cluster), seed, lambda: story.write_bundle(cluster, Mode.AUTONOMOUS))
        _play(show, ended, once=once, limit=limit, output=output)
    finally:
        cluster.stop()


def _opened(log: Path) -> TextIO:
    """A log line in the middle of a picture would tear it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    return log.open("w")


def _play(show: Show, ended: threading.Event, *, once: bool, limit: float, output: Output) -> None:
    try:
        show.start()
        if console.is_terminal and output is not Output.JSON:
            picture = _drawn(show, ended, once=once, limit=limit)
        else:
            picture = _written(show, ended, once=once, limit=limit, quiet=output is Output.JSON)
    finally:
        show.stop()
    if picture is not None:
        summarise(picture, output)
        if once and picture.step is not Step.STEADY:
            raise typer.Exit(1)


def _drawn(show: Show, ended: threading.Event, *, once: bool, limit: float) -> Picture | None:
    """On a terminal, one picture replaces the other; the last one stays."""
    picture: Picture | None = None
    with Live(console=console, auto_refresh=False) as live:
        while not ended.wait(1.0):
            picture = show.step() or picture
            if picture is not None:
                live.update(panel(picture, console.width, console.height), refresh=True)
                if once and _over(picture, limit):
                    break
    return picture


def _written(show: Show, ended: threading.Event, *, once: bool, limit: float, quiet: bool) -> Picture | None:
    """Without a terminal: a line every few seconds, or nothing."""
    picture: Picture | None = None
    written, told = 0.0, False
    while not ended.wait(1.0):
        picture = show.step() or picture
        if picture is None:
            continue
        if not quiet and not told:
            say(f"page: {picture.url}")
            told = True
        over = once and _over(picture, limit)
        if not quiet and (over or picture.seconds - written >= LINE_SECONDS):
            written = picture.seconds
            say(line(picture))
        if over:
            break
    return picture


def _over(picture: Picture, limit: float) -> bool:
    return picture.step is Step.STEADY or picture.seconds > limit
