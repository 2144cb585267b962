"""`balancer demo`: starts everything, shows it, and ends it all again."""

import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from balancer.api.app import create_app
from balancer.api.server import ApiServer
from balancer.cli.demo import stage, story
from balancer.cli.demo.load import Load
from balancer.cli.demo.view import Picture, line, panel
from balancer.cli.output import Output, OutputOption, console, say, show_json
from balancer.clock import SystemClock
from balancer.daemon.daemon import Daemon
from balancer.directory.model import Migration
from balancer.embedded.cluster import EmbeddedCluster, default_folder
from balancer.embedded.postgres import system_binaries
from balancer.errors import UserError
from balancer.logs import set_up_logs
from balancer.migration.observer import Observer, Progress
from balancer.planner.state import Word
from balancer.settings import Settings
from balancer.settings.units import format_duration, format_size

STEADY = 13  # ticks in a row without anything to do before the cluster is called balanced: longer than a tablet rests
LINE_SECONDS = 5.0


class Watcher(Observer):
    """Remembers how far each migration is."""

    def __init__(self) -> None:
        self.progress: dict[str, Progress] = {}

    def progressed(self, migration: Migration, progress: Progress) -> None:
        self.progress[migration.id] = progress


class Show:
    """One run of the demonstration on a running cluster."""

    def __init__(self, settings: Settings, passfile: Path, seed: int) -> None:
        self._clock = SystemClock()
        self._watcher = Watcher()
        self._began = self._clock.monotonic()
        self.daemon = Daemon(settings, self._clock, self._watcher)
        self._http = settings.daemon.http
        self._server = ApiServer(create_app(self.daemon, self._http), self._http)
        self.load = Load(settings.daemon.directory, passfile, self._clock, seed)
        self._steady = 0
        self._seen_tick: Any = None
        self.first_score: float | None = None

    def start(self) -> None:
        """The daemon, its page and the application."""
        self.daemon.start()
        try:
            self._server.start()
        except UserError:
            # Somebody took the port since the configuration was written: the page comes up on another one.
            http = self._http.model_copy(update={"listen": "127.0.0.1:0"})
            self._server = ApiServer(create_app(self.daemon, http), http)
            self._server.start()
        self.load.start()

    def stop(self) -> None:
        """The application first: nothing it does may fail because we leave. Idempotent."""
        self.load.stop()
        self._server.stop()
        self.daemon.stop()

    def step(self) -> Picture | None:
        """About once a second; None until there is something to see."""
        self.daemon.step()
        state = self.daemon.states().get(story.BUNDLE)
        if state is None:
            return None
        if state.at != self._seen_tick:
            self._seen_tick = state.at
            self._steady = self._steady + 1 if state.word is Word.BALANCED else 0
        if self.first_score is None and state.plan is not None and state.plan.actions:
            self.first_score = state.plan.score_before
        migrations = self.daemon.follower().snapshot.migrations.values()
        return Picture(
            state=state,
            running=[(record, self._watcher.progress.get(record.id)) for record in migrations if not record.finished],
            finished=[record for record in migrations if record.finished],
            count=self.load.count(),
            url=self._server.url,
            seconds=self._clock.monotonic() - self._began,
        )

    def balanced(self, picture: Picture) -> bool:
        """Whether there was work, it is done, and nothing new has come up for some ticks."""
        return self._steady >= STEADY and bool(picture.finished)


def demo(
    once: Annotated[bool, typer.Option("--once", help="end when the cluster is balanced, with a summary")] = False,
    zookeeper: Annotated[bool, typer.Option("--zookeeper", help="keep the directory in a real ZooKeeper")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="start from empty nodes")] = False,
    nodes: Annotated[int, typer.Option(min=2, max=8, help="how many PostgreSQL nodes")] = 3,
    folder: Annotated[Path | None, typer.Option(help="where data is kept between runs")] = None,
    system_postgres: Annotated[bool, typer.Option("--system-postgres", help="the machine's own PostgreSQL")] = False,
    limit: Annotated[float, typer.Option(help="with --once: seconds after which it is given up")] = 600.0,
    seed: Annotated[int, typer.Option(help="of the load")] = 1,
    output: OutputOption = Output.TEXT,
) -> None:
    """The main job on an embedded cluster: a lopsided data set, a load, and the daemon that balances it."""
    home = (folder or default_folder()) / "demo"
    set_up_logs("warning", "text")
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: ended.set())
    quiet = output is Output.JSON
    cluster = EmbeddedCluster(
        home,
        nodes,
        zookeeper=zookeeper,
        binaries=system_binaries() if system_postgres else None,
        progress=lambda name: None if quiet else say(f"{name} is up"),
    )
    if not quiet:
        say(f"starting {nodes} PostgreSQL nodes{' and ZooKeeper' if zookeeper else ''} in {home}")
    try:
        cluster.start(fresh=fresh)
        settings = stage.write_configuration(cluster)
        if not quiet:
            say(f"configuration: {settings.file}")
        made = stage.set_tables(settings)
        if not quiet:
            say("tables orders and events are made, all on pg-a" if made else "tables are there from the last run")
        _play(Show(settings, stage.write_passfile(cluster), seed), ended, once=once, limit=limit, output=output)
    finally:
        cluster.stop()


def _play(show: Show, ended: threading.Event, *, once: bool, limit: float, output: Output) -> None:
    picture = None
    try:
        show.start()
        picture = _until_done(show, ended, once=once, limit=limit, quiet=output is Output.JSON)
    finally:
        show.stop()
    if picture is not None:
        _summarise(show, picture, output)
        if once and not show.balanced(picture):
            raise typer.Exit(1)


def _until_done(show: Show, ended: threading.Event, *, once: bool, limit: float, quiet: bool) -> Picture | None:
    picture: Picture | None = None
    shown = 0.0
    drawn = console.is_terminal and not quiet
    with Live(console=console, refresh_per_second=4, transient=True) if drawn else _Dark() as live:
        while not ended.wait(1.0):
            picture = show.step()
            if picture is None:
                continue
            live.update(panel(picture))
            if not drawn and not quiet and picture.seconds - shown >= LINE_SECONDS:
                shown = picture.seconds
                say(line(picture))
            if once and (show.balanced(picture) or picture.seconds > limit):
                break
    return picture


class _Dark:
    """Where there is no terminal to draw on."""

    def __enter__(self) -> "_Dark":
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def update(self, _: Any) -> None:
        return None


def _summarise(show: Show, picture: Picture, output: Output) -> None:
    done = [migration for migration in picture.finished if migration.state == "done"]
    pauses = sorted(pause for migration in done if (pause := migration.detail.get("pause")) is not None)
    plan = picture.state.plan
    summary: dict[str, Any] = {
        "balanced": show.balanced(picture),
        "seconds": round(picture.seconds, 1),
        "score_before": show.first_score,
        "score_after": None if plan is None else plan.score_before,
        "moves": sum(1 for migration in done if migration.operation == "move"),
        "splits": sum(1 for migration in done if migration.operation == "split"),
        "merges": sum(1 for migration in done if migration.operation == "merge"),
        "failed_migrations": sum(1 for migration in picture.finished if migration.state == "failed"),
        "bytes": sum(migration.detail.get("size", 0) for migration in done),
        "median_write_pause": pauses[len(pauses) // 2] if pauses else None,
        "longest_write_pause": pauses[-1] if pauses else None,
        "operations": picture.count.operations,
        "failed_operations": picture.count.failed,
        "slowest_operation": picture.count.slowest,
    }
    if output is Output.JSON:
        show_json(summary)
        return
    before = "-" if summary["score_before"] is None else f"{summary['score_before']:.0f}"
    after = "-" if summary["score_after"] is None else f"{summary['score_after']:.0f}"
    say(f"\n{'balanced' if summary['balanced'] else 'ended'} after {picture.seconds:.0f} s")
    say(f"  balance          {before} before, {after} after, of 100")
    say(f"  migrations       {summary['moves']} moves, {summary['splits']} splits, {summary['merges']} merges,"
        f" {summary['failed_migrations']} failed")  # fmt: skip
    say(f"  bytes moved      {format_size(summary['bytes'])}")
    if pauses:
        median, longest = format_duration(pauses[len(pauses) // 2]), format_duration(pauses[-1])
        say(f"  writers waited   {median} median, {longest} longest")
    say(f"  operations       {picture.count.operations}, failed {picture.count.failed},"
        f" slowest {format_duration(picture.count.slowest)}")  # fmt: skip
    if picture.count.failed:
        say(f"  last error       {picture.count.last_error}")
