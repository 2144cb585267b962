"""A schedule for people: the strip of the day, the next windows, the warnings. Plain text if nobody is watching."""

from datetime import datetime
from itertools import groupby

from rich.text import Text

from balancer.cli.output import Output, console, fail, say, show_json, show_rows
from balancer.cli.schedule_facts import ScheduleFacts, length_text

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
