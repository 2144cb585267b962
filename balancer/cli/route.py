"""`balancer route` and `balancer pgbouncer sync`: where a key is, and telling PgBouncer."""

from pathlib import Path
from typing import Annotated

import typer

from balancer.cli.following import follow_changes
from balancer.cli.output import Output, OutputOption, say, show_json
from balancer.cli.places import ConfigOption, DirectoryOption, directory_of
from balancer.client.locate import locate_key, parse_key
from balancer.client.pgbouncer import Bouncer, Per, Sync
from balancer.daemon.bouncing import BouncerFollower, bouncer_of
from balancer.directory.contract import Directory
from balancer.directory.snapshot import Snapshot
from balancer.errors import Damaged, UserError
from balancer.settings import load_settings
from balancer.settings.units import Dsn

app = typer.Typer(help="Feed PgBouncer from the directory.", no_args_is_help=True)


def route(
    table: str,
    key: Annotated[
        list[str] | None, typer.Argument(help="one value for each column of the table's key; none for a whole table")
    ] = None,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Shows which node and tablet a key is on. A negative number follows two dashes: -- -5."""
    with directory_of(directory, config) as opened:
        snapshot = opened.snapshot()
    found = locate_key(snapshot, table, parse_key(snapshot.table(table), key or ()))
    if output is Output.JSON:
        show_json({**found._asdict(), "dsn": _shown_dsn(snapshot, found.node), "version": snapshot.version})
    else:
        say(f"node {found.node}, tablet {found.tablet}, epoch {found.epoch}: {_shown_dsn(snapshot, found.node)}")


def _shown_dsn(snapshot: Snapshot, node: str) -> str:
    """A stored DSN, if nothing in it may be a secret: an older version, or an import, may have stored anything."""
    record = snapshot.nodes.get(node)
    if record is None:
        raise Damaged(f"the directory contains damaged data: there is no node {node!r}")
    try:
        return Dsn.parse(record.dsn).text
    except ValueError as error:
        return f"(its DSN is not shown: {error})"


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
