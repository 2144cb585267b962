"""`balancer pgbouncer sync`: an alias for each tablet or node, from the directory."""

from pathlib import Path
from typing import Annotated

import typer

from balancer.directory.contract import Directory
from balancer.directory.snapshot import Snapshot
from balancer.errors import UserError
from balancer.features.pgbouncer.bouncer import Bouncer, BouncerFollower, Per, Sync, bouncer_of
from balancer.settings import load_settings
from balancer.terminal.live import follow_changes
from balancer.terminal.options import ConfigOption, DirectoryOption, directory_of
from balancer.terminal.output import Output, OutputOption, say, show_json

app = typer.Typer(help="Feed PgBouncer from the directory.", no_args_is_help=True)


@app.callback()
def pgbouncer() -> None:
    """Feed PgBouncer from the directory."""


@app.command()
def sync(
    admin: Annotated[str | None, typer.Option(help="DSN of PgBouncer's console, with dbname=pgbouncer")] = None,
    file: Annotated[
        Path | None, typer.Option(help="the file that pgbouncer.ini includes; only the balancer may write it")
    ] = None,
    per: Annotated[Per, typer.Option(help="what gets an alias")] = Per.TABLET,
    options: Annotated[str, typer.Option(help='added to each alias, as in "pool_size=20"')] = "",
    follow: Annotated[bool, typer.Option("--follow", help="follow every change, until interrupted")] = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Writes an alias for each tablet or node and makes PgBouncer read them; first resumes any pause left behind.

    Without --admin and --file it uses the configuration's section pgbouncer.
    """
    bouncer = _bouncer(admin, file, per, options, config)
    with directory_of(directory, config) as opened:
        if follow:
            _follow(bouncer, opened, output)
        else:
            bouncer.resume_all()
            _show(bouncer.sync(opened.snapshot()), output)


def _bouncer(admin: str | None, file: Path | None, per: Per, options: str, config: Path | None) -> Bouncer:
    if admin and file:
        return Bouncer(admin, file, per, options)
    if admin or file:
        raise UserError("--admin and --file belong together")
    settings = load_settings(config).daemon.pgbouncer
    if settings is None:
        raise UserError("there is no [pgbouncer] in the configuration; give --admin and --file")
    return bouncer_of(settings)


def _follow(bouncer: Bouncer, directory: Directory, output: Output) -> None:
    keeping = BouncerFollower(bouncer)

    def act(snapshot: Snapshot) -> None:
        done = keeping.follow(snapshot)
        if done.changed:
            _show(done, output)

    try:
        follow_changes(directory, act)
    finally:
        bouncer.resume_all()


def _show(done: Sync, output: Output) -> None:
    if output is Output.JSON:
        show_json({"aliases": done.aliases, "changed": list(done.changed)})
    else:
        say(f"{done.aliases} aliases, {len(done.changed)} changed: {', '.join(done.changed) or 'none'}")
