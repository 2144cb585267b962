"""What is shown of a schedule, as plain data: the JSON output is this, and the text is made from it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from balancer.schedules import FormulaFailures, Schedule, Window

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
