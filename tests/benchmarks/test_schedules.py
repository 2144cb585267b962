"""Formulas and windows: building a day's table and finding windows over a year, beside other ways to do the same."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from apscheduler.triggers.cron import CronTrigger

from balancer.schedules import Formula, Schedule, day_table
from tests.support.tables import show_table

pytestmark = pytest.mark.bench

EXAMPLES = ("minutes % 20 == 0", "hours % 2 == 0 && minutes == 30", "(hours * 60 + minutes) % 40 == 10")
PYTHON = {text: text.replace("&&", "and") for text in EXAMPLES}
BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 1, 1, tzinfo=UTC)
QUESTIONS = [START + timedelta(minutes=517 * number) for number in range(1016)]  # spread over a year


def _microseconds(work: Callable[[], object], runs: int = 5) -> float:
    """The best of some runs: the others measure the neighbours."""
    best = float("inf")
    for _ in range(runs):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best * 1e6


def _by_minute(formula: Formula) -> bytes:
    return bytes(bool(formula.evaluate(hours=hour, minutes=minute)) for hour in range(24) for minute in range(60))


def _python(text: str) -> bytes:
    """Python's own compiler and interpreter, which may do anything: what a formula may not be given to."""
    code = compile(text, "formula", "eval")
    return bytes(bool(eval(code, {"hours": hour, "minutes": minute})) for hour in range(24) for minute in range(60))


def test_building_the_table_of_a_day() -> None:
    rows = []
    for text in EXAMPLES:
        formula = Formula(text)
        assert day_table(formula).minutes == _by_minute(formula) == _python(PYTHON[text])
        first = _microseconds(lambda formula=formula: day_table.__wrapped__(formula))  # type: ignore[misc]
        again = _microseconds(lambda text=text: day_table(Formula(text)))  # type: ignore[misc]
        held = _microseconds(lambda formula=formula: day_table(formula))  # type: ignore[misc]
        single = _microseconds(lambda formula=formula: _by_minute(formula))  # type: ignore[misc]
        python = _microseconds(lambda text=text: _python(PYTHON[text]))  # type: ignore[misc]
        rows.append((text, first, again, held, single, python))
    columns = ("formula", "first", "parsed again", "held", "minute by minute", "Python's eval")
    show_table("table of a day, microseconds", columns, rows)


def test_finding_the_next_window_over_a_year() -> None:
    rows = []
    for text, cron in (
        ("minutes % 20 == 0", {"minute": "*/20"}),
        ("hours % 2 == 0 && minutes == 30", {"hour": "*/2", "minute": "30"}),
        ("hours == 3 && minutes == 0", {"hour": "3", "minute": "0"}),
    ):
        schedule = Schedule(Formula(text), BERLIN)
        trigger = CronTrigger(**cron, timezone=BERLIN)
        agree = sum(schedule.next_open(at) == trigger.get_next_fire_time(None, at) for at in QUESTIONS)
        ours = _microseconds(lambda s=schedule: [s.next_open(at) for at in QUESTIONS]) / len(QUESTIONS)  # type: ignore[misc]
        theirs = _microseconds(
            lambda t=trigger: [t.get_next_fire_time(None, at) for at in QUESTIONS],  # type: ignore[misc]
            runs=2,
        ) / len(QUESTIONS)
        rows.append((text, len(QUESTIONS), agree, ours, theirs))
    columns = ("formula", "questions", "same answer", "ours, us each", "APScheduler's cron, us each")
    show_table("next window from moments spread over a year (Europe/Berlin)", columns, rows)


def test_walking_through_the_windows_of_a_year() -> None:
    rows = []
    for text in EXAMPLES:
        schedule = Schedule(Formula(text), BERLIN)
        count = day_table(schedule.formula).open_minutes * 365
        taken = _microseconds(lambda s=schedule, n=count: list(islice(s.windows(START), n)), runs=2)  # type: ignore[misc]
        hits = _microseconds(
            lambda s=schedule: s.hits(START, START + timedelta(days=365), timedelta(days=365)),  # type: ignore[misc]
            runs=2,
        )
        rows.append((text, count, taken / 1e3, taken / count, hits / 1e3))
    columns = ("formula", "windows", "all, ms", "each, us", "as hits, ms")
    show_table("all windows of a year (Europe/Berlin)", columns, rows)
