"""`balancer schedule show|try`: when a bundle may be balanced, for people who write the formula.

What is shown of a schedule, as plain data: the JSON output is this, and the text is made from it.

A schedule for people: the strip of the day, the next windows, the warnings. Plain text if nobody is watching.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import MAXYEAR, MINYEAR, datetime, timedelta, tzinfo
from itertools import groupby, islice
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer
from rich.text import Text

from balancer.clock import SystemClock
from balancer.errors import UserError
from balancer.policies.finish_by import ANY, parse_finish_by
from balancer.policies.options import DEFAULT_GROUP, BalancerOptions, BudgetOptions
from balancer.schedules import Applicable, Formula, FormulaFailures, FormulaSyntaxError, Schedule, Window
from balancer.settings import BundleSettings, Settings, load_settings
from balancer.settings.files import DaemonFile, check_zone
from balancer.settings.schedules import (
    bundle_schedule,
    group_schedule,
    heat_schedule,
    in_zone,
    longest_run,
    short_sentence,
    window_too_short,
)
from balancer.settings.units import parse_duration
from balancer.terminal.options import ConfigOption
from balancer.terminal.output import Output, OutputOption, console, fail, say, show_json, show_rows

NEXT_WINDOWS = 5


@dataclass(frozen=True, slots=True)
class ShownWindow:
    """One window, in the schedule's zone; the end and the length of one that does not close are None."""

    start: datetime
    end: datetime | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ScheduleFacts:
    """A schedule as it stands at one moment."""

    formula: str
    origin: str
    """Whose formula it is; empty: nobody's, it was typed in or nothing is set."""
    timezone: str
    at: datetime
    open: bool
    open_minutes_per_day: int
    windows_per_day: int
    next_windows: tuple[ShownWindow, ...]
    """The first one is the current one if the schedule is open."""
    failures: FormulaFailures | None
    """Minutes of the day in which the formula has no value."""
    warnings: tuple[str, ...]
    day: tuple[str, ...]
    """A row for each hour, with `1` for each open minute and `0` for each closed one."""

    def document(self) -> dict[str, Any]:
        """For JSON: times with their offset."""
        return {key: _plain(value) for key, value in asdict(self).items()}


def facts(
    schedule: Schedule, at: datetime, tick: float, origin: str = "", disabled_by: str = "", too_short: str = ""
) -> ScheduleFacts:
    """Everything there is to say; `tick` is in seconds, `too_short` that no tablet of the desired size ever fits."""
    table = schedule.table
    digits = "".join(map(str, table.minutes))
    return ScheduleFacts(
        formula=str(schedule.formula),
        origin=origin,
        timezone=str(schedule.zone),
        at=at.astimezone(schedule.zone),
        open=schedule.is_open(at),
        open_minutes_per_day=table.open_minutes,
        windows_per_day=len(table.runs()),
        next_windows=tuple(_shown(schedule, window) for window in islice(schedule.windows(at), NEXT_WINDOWS)),
        failures=schedule.failures,
        warnings=(*_warnings(schedule, tick, disabled_by), *filter(None, [too_short])),
        day=tuple(digits[hour * 60 : hour * 60 + 60] for hour in range(24)),
    )


def length_text(seconds: float | None) -> str:
    """As people say it: `7 h 30 min`; the largest two units that are not zero."""
    if seconds is None:
        return "without end"
    rest, parts = round(seconds), []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def _shown(schedule: Schedule, window: Window) -> ShownWindow:
    end = window.end.astimezone(schedule.zone) if window.end else None
    seconds = window.length / timedelta(seconds=1) if window.length else None
    return ShownWindow(window.start.astimezone(schedule.zone), end, seconds)


def _warnings(schedule: Schedule, tick: float, disabled_by: str) -> Iterator[str]:
    runs = schedule.table.runs()
    if disabled_by:
        yield f"{disabled_by} is switched off: the schedule is ignored"
    if schedule.failures:
        yield f"{schedule.failures}; those minutes are closed"
    if not runs:
        yield "the formula never opens: nothing would ever be balanced"
    elif schedule.table.open_minutes == len(schedule.table.minutes):
        yield "the formula is always open: it restricts nothing"
    elif min(runs) * 60 < tick:
        lengths = f"the shortest window ({length_text(min(runs) * 60)}) is shorter than one tick ({length_text(tick)})"
        yield f"{lengths}: what it allows starts up to {length_text(tick)} late, with the first tick after it"


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case dict():
            return {key: _plain(member) for key, member in value.items()}
        case list() | tuple():
            return [_plain(member) for member in value]
        case _:
            return value


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


_RULER = "    " + "".join(f"{minute:<10}" for minute in range(0, 60, 10)).rstrip()
_ROW_WIDTH = 64  # a terminal narrower than this gets the bar
_HALF_HOURS = 48


def show_schedule(facts: ScheduleFacts, output: Output) -> None:
    """The whole view; warnings go to standard error, so that the rest can be used by programs."""
    if output is Output.JSON:
        show_json(facts.document())
        return
    say(f"formula   {facts.formula}{f'  (of {facts.origin})' if facts.origin else ''}")
    say(f"timezone  {facts.timezone}")
    say(f"now       {_now(facts)}")
    say(
        f"open      {_plural(facts.open_minutes_per_day, 'minute')} a day in {_plural(facts.windows_per_day, 'window')}"
    )
    say("")
    _show_day(facts.day)
    if facts.next_windows:
        say("")
        rows = [
            {"start": _time(window.start), "end": _time(window.end), "length": length_text(window.seconds)}
            for window in facts.next_windows
        ]
        show_rows(rows, ("start", "end", "length"), output)
    for warning in facts.warnings:
        fail(f"warning: {warning}")


def _show_day(day: tuple[str, ...]) -> None:
    if console.is_terminal and console.width < _ROW_WIDTH:
        say(_bar(day))
        return
    say(_RULER)
    for hour, row in enumerate(day):
        _show_row(f"{hour:02}  ", row)


def _show_row(label: str, row: str) -> None:
    if not console.is_terminal:
        say(label + row.replace("0", ".").replace("1", "#"))
        return
    runs = ((cell, len(list(run))) for cell, run in groupby(row))
    cells = (("█" * length, "green") if cell == "1" else ("·" * length, "dim") for cell, length in runs)
    console.print(Text.assemble(label, *cells))


def _bar(day: tuple[str, ...]) -> str:
    """48 half hours: `#` is open, `+` in part, `.` not at all."""
    minutes = "".join(day)
    width = len(minutes) // _HALF_HOURS
    parts = (minutes[at : at + width] for at in range(0, len(minutes), width))
    return "".join("#" if "0" not in part else "+" if "1" in part else "." for part in parts)


def _now(facts: ScheduleFacts) -> str:
    first = next(iter(facts.next_windows), None)
    if first is None:
        return f"{_time(facts.at)}: closed, and never opens"
    if facts.open:
        return f"{_time(facts.at)}: open, " + (f"closes at {_time(first.end)}" if first.end else "never closes")
    return f"{_time(facts.at)}: closed, opens in {length_text((first.start - facts.at).total_seconds())}"


def _time(at: datetime | None) -> str:
    return "never" if at is None else f"{at:%Y-%m-%d %H:%M}{f':{at:%S}' if at.second else ''} {at.tzname()}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
