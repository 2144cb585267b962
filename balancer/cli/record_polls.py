"""`balancer record FILE`: keeps polls of a bundle, so that a change of its settings can be tried on them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from balancer.cli.config import ConfigOption
from balancer.cli.output import Output, OutputOption, say, show_json, tell
from balancer.clock import Clock, SystemClock
from balancer.directory.configured import open_configured
from balancer.directory.contract import Directory
from balancer.errors import BalancerError, UserError
from balancer.planner.poll_file import PollFile, RecordedPoll
from balancer.policies.options import BundleOptions
from balancer.polling.addresses import addresses_of, cluster_name
from balancer.polling.poller import Poller
from balancer.polling.view import Capacity, Remembered, build_view
from balancer.settings import BundleSettings, Settings, load_settings
from balancer.settings.units import parse_duration, parse_size

LEAST_SECONDS = 1.0

FileArgument = Annotated[Path, typer.Argument(help="the record; older parts are kept next to it as FILE.1, FILE.2 …")]
BundleOption = Annotated[str | None, typer.Option("--bundle", "-b", help="needed if there are several")]
EveryOption = Annotated[str, typer.Option("--every", help="time between polls, like 30s")]
ForOption = Annotated[str | None, typer.Option("--for", help="how long, like 1d; default: until interrupted")]
MaxSizeOption = Annotated[str, typer.Option("--max-size", help="total size of all files, like 256MB")]
FilesOption = Annotated[int, typer.Option("--files", help="number of files to rotate; the oldest is deleted first")]


def record(
    file: FileArgument,
    bundle: BundleOption = None,
    every: EveryOption = "1m",
    for_: ForOption = None,
    max_size: MaxSizeOption = "256MB",
    files: FilesOption = 8,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Polls the nodes of a bundle and records what they measure, limited and rotated; changes nothing on them.

    `balancer simulate --from FILE` replays it. The files contain tablet bounds: protect them like your data.
    """
    settings = load_settings(config)
    seconds, size = _quantity(parse_duration, every, "--every"), _quantity(parse_size, max_size, "--max-size")
    length = None if for_ is None else _quantity(parse_duration, for_, "--for")
    if seconds < LEAST_SECONDS:
        raise UserError(f"--every {every} is too short: {LEAST_SECONDS:g}s is the least")
    name = _chosen(settings, bundle)
    kept = PollFile(file, int(size), files)
    with open_configured(settings.daemon) as directory:
        try:
            _Recorder(directory, settings, name, SystemClock()).run(kept, seconds, length)
        except KeyboardInterrupt:
            tell("interrupted")
    if output is Output.JSON:
        show_json({"file": str(file), "bundle": name, "polls": kept.polls})
    else:
        say(f"{kept.polls} polls of bundle {name} kept in {file}")


class _Recorder:
    """One run."""

    def __init__(self, directory: Directory, settings: Settings, bundle: str, clock: Clock) -> None:
        self._directory, self._settings, self._clock = directory, settings, clock
        self._bundle = settings.bundle(bundle)
        self._poller = Poller(cluster_name(settings.daemon.directory), clock)

    def run(self, kept: PollFile, every: float, length: float | None) -> None:
        """Polls until the time is over; a directory that does not answer is asked again with the next poll."""
        began = self._clock.monotonic()
        due, first = began, True
        try:
            while length is None or self._clock.monotonic() - began <= length:
                try:
                    found = self._poll()
                    # Rates come from the difference of two polls: the first one has none.
                    if not first:
                        kept.add(found)
                    first = False
                except UserError:
                    raise
                except BalancerError as error:
                    tell(f"no poll: {error}")
                due += every
                self._clock.sleep(max(0.0, due - self._clock.monotonic()))
        finally:
            self._poller.close()

    def _poll(self) -> RecordedPoll:
        bundle, snapshot = self._bundle, self._directory.snapshot()
        poll = self._poller.poll(snapshot, addresses_of([bundle]))
        view = build_view(
            snapshot,
            bundle.name,
            poll,
            options=bundle.options,
            capacities={
                node.id: Capacity(node.disk, node.memory, node.write_rate, node.read_rate)
                for node in bundle.nodes.values()
            },
            remembered=Remembered(),
        )
        return RecordedPoll(view, _scheduled(self._settings, bundle), bundle.timezone)


def _scheduled(settings: Settings, bundle: BundleSettings) -> BundleOptions:
    """The bundle's options with the schedule that applies to it, even if it is the cluster's."""
    balancer = bundle.options.balancer
    formula = balancer.tablet_balancer_schedule or settings.daemon.schedule
    return replace(bundle.options, balancer=replace(balancer, tablet_balancer_schedule=formula))


def _chosen(settings: Settings, bundle: str | None) -> str:
    known = sorted(settings.bundles)
    if bundle is None and len(known) != 1:
        raise UserError(f"name one of the bundles with --bundle: {', '.join(known) or 'there are none'}")
    return settings.bundle(bundle or known[0]).name


def _quantity(parse: Callable[[object], object], text: str, option: str) -> float:
    try:
        return float(str(parse(text)))
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None
