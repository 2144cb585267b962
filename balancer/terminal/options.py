"""Where a command finds the directory: the option, the environment, otherwise the configuration's address.

`balancer config check|show`.
"""

import getpass
import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from balancer.clock import SystemClock
from balancer.directory.configured import open_configured as open_configured
from balancer.directory.contract import Directory
from balancer.directory.handover_record import handovers_in
from balancer.directory.open import open_directory
from balancer.settings import READ_AT_START, ConfigurationError, load_settings
from balancer.settings.report import Ineffective, effective, ineffective
from balancer.terminal.output import Output, OutputOption, fail, say, show_json, show_rows

DirectoryOption = Annotated[
    str | None, typer.Option("--directory", "-d", help="zk://… or sqlite://…; default: from the configuration")
]


def directory_of(address: str | None, config: Path | None, *, create: bool = False) -> Directory:
    """Opens the directory that the options name; if it does not exist, only commands that fill it make it."""
    address = address or (None if config else os.environ.get("BALANCER_DIRECTORY"))
    if address:
        return open_directory(address, create=create)
    return open_configured(load_settings(config).daemon, create=create)


def operator() -> str:
    """Who gives the command, for the history."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


app = typer.Typer(help="Check and show the configuration.", no_args_is_help=True)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="balancer.toml; default: BALANCER_CONFIG, then the usual places")
]


@app.command()
def check(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    ask_directory: Annotated[
        bool,
        typer.Option("--ask-directory", help="also name bundles handed over to another directory"),
    ] = False,
) -> None:
    """Reads every file and prints everything that is wrong, and where; exits with 2 if there is anything.

    Also names settings that are valid but have no effect, or leave nothing to do. A running instance takes over valid
    changes on its own, except for settings that it reads only when it starts.
    """
    try:
        settings = load_settings(config)
    except ConfigurationError as error:
        if output is Output.JSON:
            show_json([{"file": m.file, "key": m.key, "message": m.message} for m in error.mistakes])
        else:
            for mistake in error.mistakes:
                fail(str(mistake))
            fail(f"{len(error.mistakes)} to fix")
        raise typer.Exit(2) from None
    idle = ineffective(settings, SystemClock().now())
    if ask_directory:
        with open_configured(settings.daemon) as directory:
            gone = handovers_in(directory.snapshot())
        for name, bundle in settings.bundles.items():
            if name in gone:
                idle.insert(0, Ineffective(str(bundle.file), "the whole file", gone[name].sentence(name)))
    if output is Output.JSON:
        show_json(
            [{"file": one.file, "key": one.key, "message": one.message, "no_effect": one.no_effect} for one in idle]
        )
    else:
        for one in idle:
            say(str(one))
        bundles = ", ".join(f"{bundle.name} ({bundle.mode})" for bundle in settings.bundles.values()) or "none"
        say(f"{settings.file} is valid; bundles: {bundles}")
        say(f"these need a restart of the instance: {', '.join(READ_AT_START)}; everything else takes effect at once")


@app.command()
def show(bundle: str, config: ConfigOption = None, output: OutputOption = Output.TEXT) -> None:
    """Shows the values that apply to a bundle, and where each came from. No secrets."""
    rows = [
        {"key": value.key, "value": value.value, "origin": value.origin}
        for value in effective(load_settings(config), bundle)
    ]
    show_rows(rows, ("key", "value", "origin"), output)
