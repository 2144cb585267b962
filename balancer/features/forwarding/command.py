"""`balancer forward`: every node answers for every key, through the schema `balancer_all`."""

from functools import partial
from typing import Annotated

import typer

from balancer.directory.contract import Directory
from balancer.directory.identity import identity_of
from balancer.directory.snapshot import Snapshot
from balancer.features.forwarding.updater import forward_bundle, stop_forwarding
from balancer.nodes.session.addresses import address_in
from balancer.settings import Settings, load_settings
from balancer.terminal.live import follow_changes
from balancer.terminal.options import ConfigOption, open_configured
from balancer.terminal.output import Output, OutputOption, say, show_json


def forward(
    bundle: str,
    follow: Annotated[bool, typer.Option("--follow", help="follow every move, until interrupted")] = False,
    off: Annotated[bool, typer.Option("--off", help="remove it from every node")] = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Makes balancer_all.<root> on each node lead to every tablet's owner, through postgres_fdw."""
    settings = load_settings(config)
    settings.bundle(bundle)
    with open_configured(settings.daemon) as directory:
        if off:
            snapshot = directory.snapshot()
            stop_forwarding(snapshot, bundle, partial(address_in, settings, identity=identity_of(snapshot)))
        elif follow:
            _follow(directory, bundle, settings, output)
        else:
            _show(_forward(directory.snapshot(), bundle, settings), output)


def _forward(snapshot: Snapshot, bundle: str, settings: Settings) -> int:
    return forward_bundle(snapshot, bundle, partial(address_in, settings, identity=identity_of(snapshot)))


def _follow(directory: Directory, bundle: str, settings: Settings, output: Output) -> None:
    def act(snapshot: Snapshot) -> None:
        changed = _forward(snapshot, bundle, settings)
        if changed:
            _show(changed, output)

    follow_changes(directory, act)


def _show(changed: int, output: Output) -> None:
    if output is Output.JSON:
        show_json({"changed": changed})
    else:
        say(f"{changed} partitions changed")
