"""Three clusters that take turns, over a year with both daylight-saving changes."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest

from balancer.schedules import Formula, Schedule

pytestmark = pytest.mark.quick

ZONES = ["UTC", "Europe/Berlin", "Australia/Lord_Howe"]
START = datetime(2026, 1, 1, tzinfo=UTC)
END = datetime(2027, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def starts(schedule: Schedule) -> list[datetime]:
    return [window.start for window in takewhile(lambda window: window.start < END, schedule.windows(START))]


def turns(zone: str) -> dict[int, list[datetime]]:
    """The minutes in which each of three clusters is balanced, by its remainder."""
    formulas = {rest: Formula(f"(hours * 60 + minutes) % 40 == {rest}") for rest in (0, 10, 20)}
    return {rest: starts(Schedule(formula, ZoneInfo(zone))) for rest, formula in formulas.items()}


@pytest.mark.parametrize("zone", ZONES)
def test_the_clusters_never_overlap_and_each_gets_its_minutes(zone: str) -> None:
    walls = [(START + minute * MINUTE).astimezone(ZoneInfo(zone)) for minute in range(0, 365 * 1440, 10)]
    found = turns(zone)
    assert not set(found[0]) & set(found[10])
    assert not set(found[0]) & set(found[20])
    assert not set(found[10]) & set(found[20])
    for rest, minutes in found.items():
        expected = [wall.astimezone(UTC) for wall in walls if (wall.hour * 60 + wall.minute) % 40 == rest]
        assert minutes == expected


@pytest.mark.parametrize("zone", ZONES)
def test_their_windows_last_one_minute(zone: str) -> None:
    schedule = Schedule(Formula("(hours * 60 + minutes) % 40 == 10"), ZoneInfo(zone))
    windows = takewhile(lambda window: window.start < END, schedule.windows(START))
    assert {window.length for window in windows} == {MINUTE}


def test_an_even_clock_gives_each_of_them_36_turns_a_day() -> None:
    assert {rest: len(minutes) for rest, minutes in turns("UTC").items()} == {0: 13140, 10: 13140, 20: 13140}


def test_turns_are_forty_minutes_apart_but_for_the_two_jumps() -> None:
    found = turns("Europe/Berlin")
    for minutes in found.values():
        odd = [earlier for earlier, later in pairwise(minutes) if later - earlier != timedelta(minutes=40)]
        assert [moment.strftime("%m-%d") for moment in odd] == ["03-29", "10-25"]
