"""`balancer forward`: every node answers for every key, through the schema `balancer_all`."""

from typing import Annotated

import typer

from balancer.cli.output import Output, OutputOption, fail, say, show_json
from balancer.cli.places import ConfigOption, open_configured
from balancer.clock import SystemClock
from balancer.daemon.forwarding import forward_bundle, stop_forwarding
from balancer.directory.contract import Directory
from balancer.errors import Conflict, Fenced, Unavailable
from balancer.nodes.connection import Address
from balancer.polling.addresses import addresses_of
from balancer.settings import Settings, load_settings

_RETRY_SECONDS = 1.0


def forward(
    bundle: str,
    follow: Annotated[bool, typer.Option("--follow", help="go on with every move, until interrupted")] = False,
    off: Annotated[bool, typer.Option("--off", help="take it away from every node")] = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Makes balancer_all.<root> on each node lead to every tablet's owner, by postgres_fdw."""
    settings = load_settings(config)
    settings.bundle(bundle)
    with open_configured(settings.daemon) as directory:
        if off:
            stop_forwarding(directory.snapshot(), bundle, lambda node: _address(settings, node))
        elif follow:
            _follow(directory, bundle, settings, output)
        else:
            _show(forward_bundle(directory.snapshot(), bundle, lambda node: _address(settings, node)), output)


def _address(settings: Settings, node: str) -> Address:
    found = addresses_of(settings.bundles.values()).get(node)
    if found is None:
        raise Unavailable(f"node {node} is not in the configuration")
    return found


def _follow(directory: Directory, bundle: str, settings: Settings, output: Output) -> None:
    clock = SystemClock()
    follower = directory.follow()
    seen = -1
    try:
        while True:
            snapshot = follower.wait(seen, 1.0)
            if snapshot.version == seen:
                continue
            try:
                changed = forward_bundle(snapshot, bundle, lambda node: _address(settings, node))
            except (Unavailable, Fenced, Conflict) as error:
                fail(str(error))
                clock.sleep(_RETRY_SECONDS)
                continue
            seen = snapshot.version
            if changed:
                _show(changed, output)
    finally:
        follower.close()


def _show(changed: int, output: Output) -> None:
    if output is Output.JSON:
        show_json({"changed": changed})
    else:
        say(f"{changed} partitions changed")
