"""Where a command finds the directory: the option, the environment, otherwise the configuration's address."""

import getpass
import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from balancer.cli.config import ConfigOption as ConfigOption
from balancer.directory.configured import open_configured as open_configured
from balancer.directory.contract import Directory
from balancer.directory.open import open_directory
from balancer.settings import load_settings

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
