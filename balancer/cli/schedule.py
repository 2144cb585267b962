"""`balancer schedule show|try`: when a bundle may be balanced, for people who write the formula."""

from collections.abc import Iterator
from datetime import MAXYEAR, MINYEAR, datetime, tzinfo
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from balancer.cli.config import ConfigOption
from balancer.cli.output import Output, OutputOption, say, show_json, show_rows
from balancer.cli.schedule_facts import ScheduleFacts, facts
from balancer.cli.schedule_view import show_schedule
from balancer.clock import SystemClock
from balancer.errors import UserError
from balancer.policies.finish_by import ANY, parse_finish_by
from balancer.policies.options import DEFAULT_GROUP, BalancerOptions, BudgetOptions
from balancer.schedules import Applicable, Formula, FormulaSyntaxError, Schedule
from balancer.settings import BundleSettings, Settings, load_settings
from balancer.settings.files import DaemonFile, check_zone
from balancer.settings.units import parse_duration
from balancer.settings.windows import (
    bundle_schedule,
    group_schedule,
    heat_schedule,
    in_zone,
    longest_run,
    short_sentence,
    window_too_short,
)

app = typer.Typer(help="When a bundle may be balanced.", no_args_is_help=True)

AtOption = Annotated[
    str | None,
    typer.Option("--at", help="look from this moment, as 2026-03-29T01:30; without an offset: in the time zone"),
]


# A formula may begin with a minus sign, which would otherwise be taken for an option.
@app.command("try", context_settings={"ignore_unknown_options": True})
def try_(
    formula: Annotated[str, typer.Argument(help='over hours and minutes, as "hours < 6 && minutes % 20 == 0"')],
    timezone: Annotated[str, typer.Option("--timezone", help="the time zone of its hours and minutes")] = "UTC",
    tick: Annotated[str | None, typer.Option("--tick", help="warn about windows shorter than this")] = None,
    finish_by: Annotated[
        str, typer.Option("--finish-by", help="any, window, park or a time of day, as in [migration]")
    ] = ANY,
    at: AtOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Shows what a formula would do, without any configuration."""
    schedule = Schedule(_formula(formula), _zone(timezone))
    moment = _moment(at, schedule.zone)
    size, rate = BalancerOptions().desired_tablet_size, BudgetOptions().expected_bytes_per_second
    short = short_sentence(longest_run(schedule, _finish_by(finish_by), moment), size, rate, "expected")
    show_schedule(facts(schedule, moment, _tick(tick), too_short=short), output)


@app.command()
def show(
    bundle: str,
    *,
    group: Annotated[str, typer.Option("--group", help="the schedule of this group of tables")] = "",
    heat: Annotated[bool, typer.Option("--heat", help="the schedule for splitting and merging by heat")] = False,
    at: AtOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Shows when a bundle, one of its groups or its heat is acted on, and whose formula applies."""
    if group and heat:
        raise UserError("--group and --heat cannot be given together")
    settings = load_settings(config)
    chosen = settings.bundle(bundle)
    found = _chosen(settings, chosen, group, heat)
    shown = _facts(settings, chosen, found, at)
    overview = [] if group or heat else list(_overview(settings, chosen))
    if output is Output.JSON:
        show_json(shown.document() | ({"applies_to": overview} if overview else {}))
        return
    show_schedule(shown, output)
    if overview:
        say("")
        show_rows(overview, ("what", "formula", "of"), output)


def _chosen(settings: Settings, bundle: BundleSettings, group: str, heat: bool) -> Applicable:
    if heat:
        return heat_schedule(settings, bundle)
    return group_schedule(settings, bundle, group) if group else bundle_schedule(settings, bundle)


def _facts(settings: Settings, bundle: BundleSettings, found: Applicable, at: str | None) -> ScheduleFacts:
    schedule = in_zone(bundle, found)
    moment = _moment(at, schedule.zone)
    short = window_too_short(bundle, schedule, moment) if found.enabled else ""
    return facts(schedule, moment, settings.daemon.tick, found.level, found.disabled_by, short)


def _overview(settings: Settings, bundle: BundleSettings) -> Iterator[dict[str, Any]]:
    """One row for each part of the bundle that may have a formula of its own."""
    yield _row(f"bundle {bundle.name}", bundle_schedule(settings, bundle))
    for group in sorted({DEFAULT_GROUP, *bundle.options.balancer.groups}):
        yield _row(f"group {group}", group_schedule(settings, bundle, group))
    yield _row("heat", heat_schedule(settings, bundle))


def _row(what: str, found: Applicable) -> dict[str, Any]:
    formula = str(found.formula) if found.enabled else f"switched off by {found.disabled_by}"
    return {"what": what, "formula": formula, "of": found.level or "nobody: always open"}


def _formula(text: str) -> Formula:
    try:
        return Formula(text)
    except FormulaSyntaxError as error:
        raise UserError(str(error)) from None


def _finish_by(text: str) -> str:
    try:
        return parse_finish_by(text)
    except ValueError as error:
        raise UserError(f"--finish-by {error}") from None


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(check_zone(name))
    except ValueError as error:
        raise UserError(f"--timezone: {error}") from None


def _tick(text: str | None) -> float:
    if text is None:
        return float(DaemonFile.model_fields["tick"].default)
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UserError(f"--tick: {error}") from None
    assert isinstance(seconds, float)
    return seconds


def _moment(text: str | None, zone: tzinfo) -> datetime:
    if text is None:
        return SystemClock().now()
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"--at: {text!r} is not a moment; write it as 2026-03-29T01:30") from None
    if at.year in (MINYEAR, MAXYEAR):
        raise UserError(f"--at: the year {at.year} is out of range")
    return at if at.tzinfo else at.replace(tzinfo=zone)
