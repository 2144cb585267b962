"""Days on which the wall clock jumps: skipped hours never open, repeated ones open each time."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.schedules import Formula, Schedule, Window
from tests.support.wall_clocks import scan

pytestmark = pytest.mark.quick

BERLIN = ZoneInfo("Europe/Berlin")
SPRING = datetime(2026, 3, 29, tzinfo=UTC)  # 02:00 becomes 03:00 at 01:00 UTC
AUTUMN = datetime(2026, 10, 25, tzinfo=UTC)  # 03:00 becomes 02:00 at 01:00 UTC
MINUTE = timedelta(minutes=1)

# (zone, a day in UTC around which the wall clock changes, its finest step in seconds)
JUMPS = [
    ("Europe/Berlin", datetime(2026, 3, 29, tzinfo=UTC), 60),
    ("Europe/Berlin", datetime(2026, 10, 25, tzinfo=UTC), 60),
    ("Europe/London", datetime(2026, 10, 25, tzinfo=UTC), 60),
    ("America/New_York", datetime(2026, 3, 8, tzinfo=UTC), 60),
    ("America/New_York", datetime(2026, 11, 1, tzinfo=UTC), 60),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, tzinfo=UTC), 60),  # half an hour
    ("Australia/Lord_Howe", datetime(2026, 10, 3, tzinfo=UTC), 60),
    ("Pacific/Apia", datetime(2011, 12, 30, tzinfo=UTC), 60),  # a whole day is skipped
    ("America/Havana", datetime(2026, 11, 1, tzinfo=UTC), 60),  # midnight comes twice
    ("Africa/Casablanca", datetime(2026, 2, 15, tzinfo=UTC), 60),
    ("Asia/Kathmandu", datetime(1985, 12, 31, tzinfo=UTC), 60),  # +5:30 to +5:45
    ("Europe/Moscow", datetime(1919, 5, 31, tzinfo=UTC), 1),  # +4:31:19
    ("Europe/Paris", datetime(1911, 3, 10, tzinfo=UTC), 1),  # 9:21
    ("Africa/Monrovia", datetime(1972, 1, 6, tzinfo=UTC), 1),  # 44:30
]


def windows(schedule: Schedule, start: datetime, end: datetime) -> list[Window]:
    """Those within [start, end), cut off at the end."""
    found = takewhile(lambda window: window.start < end, schedule.windows(start))
    return [Window(window.start, end if window.end is None else min(window.end, end)) for window in found]


def test_a_skipped_hour_never_opens() -> None:
    at_half_past_two = Schedule(Formula("hours == 2 && minutes == 30"), BERLIN)
    assert at_half_past_two.next_open(SPRING) == datetime(2026, 3, 30, 0, 30, tzinfo=UTC)
    assert at_half_past_two.hits(SPRING, SPRING + timedelta(hours=20), timedelta(days=1)) == ()


def test_a_repeated_hour_opens_each_time() -> None:
    at_half_past_two = Schedule(Formula("hours == 2 && minutes == 30"), BERLIN)
    first, second = datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    assert windows(at_half_past_two, AUTUMN, AUTUMN + timedelta(hours=20)) == [
        Window(first, first + MINUTE),
        Window(second, second + MINUTE),
    ]
    assert at_half_past_two.hits(AUTUMN, AUTUMN + timedelta(hours=20), timedelta(days=1)) == (first, second)


def test_the_fold_of_a_moment_is_honoured() -> None:
    schedule = Schedule(Formula("hours == 2 && minutes >= 30"), BERLIN)
    early = datetime(2026, 10, 25, 2, 45, tzinfo=BERLIN)
    late = early.replace(fold=1)
    assert schedule.closes_at(early) == datetime(2026, 10, 25, 1, 0, tzinfo=UTC)
    assert schedule.closes_at(late) == datetime(2026, 10, 25, 2, 0, tzinfo=UTC)
    assert schedule.next_open(early.replace(minute=10)) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert schedule.next_open(late.replace(minute=10)) == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)


def test_a_window_over_a_repeated_hour_is_an_hour_longer() -> None:
    night = Schedule(Formula("hours < 6"), BERLIN)
    [window] = windows(night, datetime(2026, 10, 24, 12, tzinfo=UTC), datetime(2026, 10, 25, 12, tzinfo=UTC))
    assert window.length == timedelta(hours=7)


def test_a_window_over_a_skipped_hour_is_an_hour_shorter() -> None:
    night = Schedule(Formula("hours < 6"), BERLIN)
    [window] = windows(night, datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 3, 29, 12, tzinfo=UTC))
    assert window.length == timedelta(hours=5)


def test_a_window_goes_on_over_a_closed_hour_that_is_skipped() -> None:
    not_at_two = Schedule(Formula("hours != 2"), BERLIN)
    assert not_at_two.closes_at(datetime(2026, 3, 28, 12, tzinfo=UTC)) == datetime(2026, 3, 30, 0, tzinfo=UTC)


def test_a_window_that_begins_in_the_skipped_hour_opens_at_the_jump() -> None:
    schedule = Schedule(Formula("(hours * 60 + minutes) >= 150 && hours < 5"), BERLIN)
    [window] = windows(schedule, SPRING, SPRING + timedelta(hours=12))
    assert window == Window(datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 3, 29, 3, tzinfo=UTC))


def test_a_day_that_is_skipped_altogether() -> None:
    noon = Schedule(Formula("hours == 12 && minutes == 0"), ZoneInfo("Pacific/Apia"))
    first, second = (window.start for window in windows(noon, *around(datetime(2011, 12, 30, tzinfo=UTC), 24)))
    assert second - first == timedelta(hours=24)
    assert first.astimezone(ZoneInfo("Pacific/Apia")).day == 29
    assert second.astimezone(ZoneInfo("Pacific/Apia")).day == 31


def around(day: datetime, hours: int) -> tuple[datetime, datetime]:
    return day - timedelta(hours=hours), day + timedelta(hours=hours)


@pytest.mark.parametrize(("name", "day", "step"), JUMPS, ids=[f"{name} {day:%Y-%m}" for name, day, _ in JUMPS])
@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("minutes % 20 == 0", lambda hour, minute: minute % 20 == 0),
        ("hours == 2 || hours == 0 && minutes > 10", lambda hour, minute: hour == 2 or (hour == 0 and minute > 10)),
        ("hours != 23 && hours != 1", lambda hour, minute: hour not in (23, 1)),
    ],
)
def test_windows_around_a_jump_are_those_that_a_walk_over_the_clock_finds(
    name: str, day: datetime, step: int, text: str, truth: Callable[[int, int], bool]
) -> None:
    zone = ZoneInfo(name)
    hours = 30 if step == 60 else 3
    start, end = around(change_of(zone, day), hours)
    schedule = Schedule(Formula(text), zone)
    assert windows(schedule, start, end) == scan(truth, zone, start, end, timedelta(seconds=step))


def change_of(zone: ZoneInfo, day: datetime) -> datetime:
    """The full hour in UTC at or before which the zone's clock changes, within two days of `day`."""
    before = (day - timedelta(hours=24)).astimezone(zone).utcoffset()
    moments = (day + timedelta(hours=hour) for hour in range(-24, 49))
    return next(moment for moment in moments if moment.astimezone(zone).utcoffset() != before)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(name, day) for name, day, _ in JUMPS]),
    st.integers(-36 * 3600, 36 * 3600),
    st.sampled_from(["minutes % 20 == 0", "hours in 0, 2, 23", "minutes >= 30 || hours == 1", "hours < 12"]),
)
def test_the_answers_to_the_three_questions_agree(jump: tuple[str, datetime], seconds: int, text: str) -> None:
    schedule = Schedule(Formula(text), ZoneInfo(jump[0]))
    at = jump[1] + timedelta(seconds=seconds)
    opens, closes = schedule.next_open(at), schedule.closes_at(at)
    assert opens is not None
    assert closes is not None
    tick = timedelta(microseconds=1)
    assert schedule.is_open(at) == (opens == at) == (closes != at)
    assert schedule.is_open(opens)
    assert not schedule.is_open(closes)
    assert opens == at or not schedule.is_open(opens - tick)
    assert closes == at or schedule.is_open(closes - tick)
