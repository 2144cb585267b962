"""`balancer demo`: starts everything, shows it, and ends it all again."""

import signal
import threading
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.live import Live

from balancer.cli.demo import stage
from balancer.cli.demo.outcome import summarise
from balancer.cli.demo.screen import Picture, Step, line, panel
from balancer.cli.demo.show import Show
from balancer.cli.output import Output, OutputOption, console, say
from balancer.embedded.cluster import EmbeddedCluster, default_folder
from balancer.embedded.postgres import system_binaries
from balancer.logs import set_up_logs
from balancer.settings import Mode

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
        settings = stage.write_configuration(cluster, Mode.OBSERVE)
        tell(f"configuration: {settings.file}")
        if stage.set_tables(settings):
            tell("tables orders and events are made, all on pg-a")
        else:
            settings = stage.write_configuration(cluster, Mode.AUTONOMOUS)
            tell("tables are there from the last run")
        show = Show(settings, stage.write_passfile(cluster), seed, lambda: stage.write_bundle(cluster, Mode.AUTONOMOUS))
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
