"""`balancer simulate --from RECORD`: recorded polls under other settings, and what would have been different."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from balancer.cli.output import Output, say, show_json, show_rows
from balancer.errors import UserError
from balancer.outside import one_line, quoted
from balancer.planner.poll_file import read_polls
from balancer.policies.bundle_view import BundleView
from balancer.policies.figures import bytes_text
from balancer.policies.options import BundleOptions
from balancer.policies.replay import ReplayFigures, check_polls, recorded, replay
from balancer.policies.replay_content import ReplayError
from balancer.policies.simulator_scenario import ScenarioError, set_option
from balancer.schedules.formula import Formula
from balancer.schedules.formula_errors import FormulaEvaluationError, FormulaSyntaxError
from balancer.settings import load_settings, rules

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
        runs = [replay(views, options, _opening(options, zone, views)) for options in (before, after)]
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
    found = [("tablet_balancer_config", one) for one in rules.check_balancer(options.balancer)]
    found += [("heat", one) for one in rules.check_heat(options.heat)]
    found += [("placement", one) for one in rules.check_placement(options.placement)]
    for name, table in options.tables.items():
        found += [(f"tables.{name}", one) for one in rules.check_table(table, options.balancer.groups)]
    for place, (key, message) in found:
        raise UserError(f"{whose} cannot be replayed: {place}.{key}: {one_line(message)}")


def _flat(options: BundleOptions) -> BundleOptions:
    groups = {name: group.flat() for name, group in options.balancer.groups.items()}
    return replace(options, balancer=replace(options.balancer, groups=groups))


def _opening(options: BundleOptions, zone: str, views: Sequence[BundleView]) -> Callable[[int], bool] | None:
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
