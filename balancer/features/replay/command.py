"""`balancer simulate`: a scenario, or recorded polls, with the real policies and simulated time; nothing is touched.

`balancer simulate --from RECORD`: recorded polls under other settings, and what would have been different.

`balancer record FILE`: keeps polls of a bundle, so that a change of its settings can be tried on them.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from balancer.clock import Clock, SystemClock
from balancer.directory.configured import open_configured
from balancer.directory.contract import Directory
from balancer.errors import BalancerError, UserError
from balancer.features.replay.poll_file import PollFile, RecordedPoll, read_polls
from balancer.naming import cluster_name
from balancer.nodes.session.addresses import addresses_of
from balancer.policies.options import BundleOptions
from balancer.policies.reasons import bytes_text
from balancer.policies.simulator.replay import ReplayError, ReplayFigures, check_polls, recorded, replay
from balancer.policies.simulator.report import StoryVerdict, check, draw
from balancer.policies.simulator.scenario import Scenario, ScenarioError, parse_scenario, set_option
from balancer.policies.simulator.simulator import Story, simulate
from balancer.policies.view import BundleView
from balancer.polling.poller import Poller
from balancer.polling.view import Capacity, Remembered, build_view
from balancer.schedules.formula import Formula
from balancer.schedules.language import FormulaEvaluationError, FormulaSyntaxError
from balancer.settings import BundleSettings, Settings, cross_checks, load_settings
from balancer.settings.units import parse_duration, parse_size
from balancer.terminal.options import ConfigOption
from balancer.terminal.output import Output, OutputOption, say, show_json, show_rows, tell
from balancer.untrusted import one_line, quoted, read_text_file, visible

FileArgument = Annotated[Path | None, typer.Argument(help="the scenario, a text file")]
FromOption = Annotated[Path | None, typer.Option("--from", help="a file from `balancer record` instead of a scenario")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="with --from: PATH=VALUE, as in placement.start_threshold=0.2")
]
SettingsOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="with --from: try the settings of this balancer.toml")
]


def simulate_file(
    file: FileArgument = None,
    record: FromOption = None,
    sets: SetOption = None,
    config: SettingsOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Plays a scenario with the real policies: the load of each node over time, what was done and why.

    With --from, it replays recorded polls with their own settings and with changed ones, and prints the difference.
    Exit code 1 means that an expectation of the scenario did not hold.
    """
    if (file is None) == (record is None):
        raise UserError("name a scenario, or a record with --from, and not both")
    if record is not None:
        show_replay(record, sets or [], config, output)
        return
    if sets or config is not None:
        raise UserError("--set and --config are for a record (--from); a scenario has lines `set PATH VALUE`")
    assert file is not None
    story, verdicts = told(read(file))
    if output is Output.JSON:
        show_json(_document(story, verdicts))
    else:
        typer.echo(visible(draw(story)), nl=False)
    if not all(verdict.held for verdict in verdicts):
        raise typer.Exit(1)


def read(file: Path) -> Scenario:
    """The scenario in a file; what is wrong with it is said with its line."""
    try:
        return parse_scenario(read_text_file(file))
    except FileNotFoundError:
        raise UserError(f"the scenario {file} cannot be read: No such file or directory") from None
    except ScenarioError as error:  # a ValueError too, with its line
        raise UserError(f"the scenario {file} has a mistake in {error}") from error
    except ValueError as error:
        raise UserError(f"the scenario {file} {error}") from error


def told(scenario: Scenario) -> tuple[Story, list[StoryVerdict]]:
    """Runs a scenario and checks it; its schedule is a formula over hours and minutes, as everywhere."""
    try:
        story = simulate(scenario, _opening(scenario.schedule))
        return story, check(story)
    except ScenarioError as error:
        raise UserError(f"the scenario has a mistake in {error}") from error
    except (FormulaSyntaxError, FormulaEvaluationError) as error:
        raise UserError(f"the scenario's schedule {scenario.schedule!r}: {error}") from error


def _opening(schedule: str) -> Callable[[int], bool] | None:
    if not schedule:
        return None
    formula = Formula(schedule)
    return lambda minute: bool(formula.evaluate(hours=minute // 60, minutes=minute % 60))


def _document(story: Story, verdicts: list[StoryVerdict]) -> dict[str, object]:
    return {
        "title": story.scenario.title,
        "samples": [asdict(sample) for sample in story.samples],
        "lines": [{"at": at, "text": text} for at, text in story.lines],
        "moved_bytes": story.moved_bytes,
        "expectations": [asdict(verdict) for verdict in verdicts],
    }


COLUMNS = ("figure", "recorded", "replayed", "changed", "difference")
MINUTES_PER_DAY = 1440


@dataclass(frozen=True, slots=True)
class ReplayComparison:
    """One record under its own settings and under others."""

    bundle: str
    polls: int
    seconds: float
    settings: dict[str, tuple[Any, Any]]
    """What is changed: as recorded, and as tried."""
    recorded: ReplayFigures
    """What really happened, as far as polls show it."""
    replayed: ReplayFigures
    """The simulation with the settings of the record: what the other one is compared with."""
    changed: ReplayFigures
    """The simulation with the changed settings."""


def show_replay(file: Path, sets: Sequence[str], config: Path | None, output: Output) -> None:
    """Replays a record twice, and prints what the changed settings would have made different."""
    found = compare(file, sets, config)
    if output is Output.JSON:
        show_json({**asdict(found), "settings": {name: list(pair) for name, pair in found.settings.items()}})
        return
    say(f"{found.polls} polls of bundle {found.bundle}, {found.seconds / 3600:.1f} hours")
    for name, (before, after) in found.settings.items():
        say(f"changed: {name} = {after} (recorded: {before})")
    if not found.settings:
        say("no setting is changed: --set PATH=VALUE changes one, --config takes those of a configuration")
    show_rows(_rows(found), COLUMNS, output)


def compare(file: Path, sets: Sequence[str], config: Path | None) -> ReplayComparison:
    """Everything there is to say; `UserError` if the record or a setting is wrong."""
    polls = read_polls(file)
    views = [poll.view for poll in polls]
    try:
        check_polls(views)
        last = polls[-1]
        before, zone = _flat(last.options), last.timezone
        after = _flat(_changed(before, views[-1].bundle, sets, config))
        _check(before, f"the record {file}")
        _check(after, "the changed settings")
        runs = [replay(views, options, _opening_of_views(options, zone, views)) for options in (before, after)]
    except ReplayError as error:
        raise UserError(f"the record {file} cannot be replayed: {error}") from None
    settings = dict(_differences("", asdict(before), asdict(after)))
    seconds = views[-1].now - views[0].now
    return ReplayComparison(views[0].bundle, len(polls), seconds, settings, recorded(views), *runs)


def _changed(options: BundleOptions, bundle: str, sets: Sequence[str], config: Path | None) -> BundleOptions:
    if config is not None:
        settings = load_settings(config)
        options, cluster = settings.bundle(bundle).options, settings.daemon.schedule
        formula = options.balancer.tablet_balancer_schedule or cluster
        options = replace(options, balancer=replace(options.balancer, tablet_balancer_schedule=formula))
    for text in sets:
        path, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set {quoted(text)}: write PATH=VALUE, as in placement.start_threshold=0.2")
        try:
            options = set_option(options, path.strip(), value.strip())
        except ScenarioError as error:
            raise UserError(f"--set {quoted(text)}: {error}") from None
    return options


def _check(options: BundleOptions, whose: str) -> None:
    """Refuses options that no file may have."""
    found = [("tablet_balancer_config", one) for one in cross_checks.check_balancer(options.balancer)]
    found += [("heat", one) for one in cross_checks.check_heat(options.heat)]
    found += [("placement", one) for one in cross_checks.check_placement(options.placement)]
    for name, table in options.tables.items():
        found += [(f"tables.{name}", one) for one in cross_checks.check_table(table, options.balancer.groups)]
    for place, (key, message) in found:
        raise UserError(f"{whose} cannot be replayed: {place}.{key}: {one_line(message)}")


def _flat(options: BundleOptions) -> BundleOptions:
    groups = {name: group.flat() for name, group in options.balancer.groups.items()}
    return replace(options, balancer=replace(options.balancer, groups=groups))


def _opening_of_views(options: BundleOptions, zone: str, views: Sequence[BundleView]) -> Callable[[int], bool] | None:
    """Whether the bundle's schedule is open in a minute after the first poll; its groups' own are not asked."""
    schedule = options.balancer.tablet_balancer_schedule
    if not schedule:
        return None
    try:
        formula, began = Formula(schedule), datetime.fromtimestamp(views[0].now, ZoneInfo(zone))
        first = began.hour * 60 + began.minute
        minutes = [bool(formula.evaluate(hours=at // 60, minutes=at % 60)) for at in range(MINUTES_PER_DAY)]
    except (FormulaSyntaxError, FormulaEvaluationError) as error:
        raise UserError(f"the schedule {quoted(schedule)}: {one_line(str(error))}") from None
    except (ValueError, OSError, KeyError, OverflowError):
        raise UserError(f"there is no time zone {quoted(zone)}, or no such moment in it") from None
    return lambda minute: minutes[(first + minute) % MINUTES_PER_DAY]


def _differences(prefix: str, before: Any, after: Any) -> list[tuple[str, tuple[Any, Any]]]:
    if not isinstance(before, dict) or not isinstance(after, dict):
        return [] if before == after else [(prefix, (before, after))]
    found = []
    for name in sorted({*before, *after}):
        found += _differences(f"{prefix}.{name}".lstrip("."), before.get(name), after.get(name))
    return found


def _rows(found: ReplayComparison) -> list[dict[str, Any]]:
    rows = []
    for name in asdict(found.changed):
        values = [getattr(one, name) for one in (found.recorded, found.replayed, found.changed)]
        shown = [_shown(name, value) for value in values]
        difference = values[2] - values[1]
        sign = "+" if difference > 0 else "−" if difference < 0 else ""
        rows.append(dict(zip(COLUMNS, (name, *shown, f"{sign}{_shown(name, abs(difference))}"), strict=True)))
    return rows


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "unknown"
    if name == "moved_bytes":
        return bytes_text(value)
    return f"{value:.1f}" if isinstance(value, float) else str(value)


LEAST_SECONDS = 1.0

RecordArgument = Annotated[Path, typer.Argument(help="the record; older parts are kept next to it as FILE.1, FILE.2 …")]
BundleOption = Annotated[str | None, typer.Option("--bundle", "-b", help="needed if there are several")]
EveryOption = Annotated[str, typer.Option("--every", help="time between polls, like 30s")]
ForOption = Annotated[str | None, typer.Option("--for", help="how long, like 1d; default: until interrupted")]
MaxSizeOption = Annotated[str, typer.Option("--max-size", help="total size of all files, like 256MB")]
FilesOption = Annotated[int, typer.Option("--files", help="number of files to rotate; the oldest is deleted first")]


def record(
    file: RecordArgument,
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
