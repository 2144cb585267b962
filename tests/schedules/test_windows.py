"""Open, next opening and closing on an even clock."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import islice

import pytest

from balancer.schedules import Formula, Schedule, Window

pytestmark = pytest.mark.quick

NIGHT = Schedule(Formula("hours < 6 || hours >= 22"))
TWENTIES = Schedule(Formula("minutes % 20 == 0"))
NEVER = Schedule(Formula("0"))
ALWAYS = Schedule(Formula("1"))


def at(hour: int, minute: int = 0, second: int = 0, microsecond: int = 0, day: int = 10) -> datetime:
    return datetime(2026, 6, day, hour, minute, second, microsecond, tzinfo=UTC)


@pytest.mark.parametrize(
    ("moment", "is_open"),
    [
        (at(5, 59, 59, 999999), True),
        (at(6), False),
        (at(21, 59, 59, 999999), False),
        (at(22), True),
        (at(0), True),
    ],
)
def test_a_minute_is_open_from_its_first_to_its_last_microsecond(moment: datetime, is_open: bool) -> None:
    assert NIGHT.is_open(moment) is is_open


def test_next_open_is_the_start_of_the_next_window() -> None:
    assert NIGHT.next_open(at(6)) == at(22)
    assert TWENTIES.next_open(at(12, 1)) == at(12, 20)
    assert TWENTIES.next_open(at(23, 41)) == at(0, day=11)


def test_next_open_is_the_moment_itself_inside_a_window() -> None:
    assert NIGHT.next_open(at(23, 5, 7, 11)) == at(23, 5, 7, 11)


def test_closes_at_is_the_end_of_the_present_window_also_over_midnight() -> None:
    assert NIGHT.closes_at(at(23, 5)) == at(6, day=11)
    assert TWENTIES.closes_at(at(12, 20, 30)) == at(12, 21)


def test_a_closed_schedule_closes_at_once() -> None:
    assert NIGHT.closes_at(at(12, 0, 1)) == at(12, 0, 1)
    assert NEVER.closes_at(at(12)) == at(12)


def test_never_and_always() -> None:
    assert NEVER.next_open(at(12)) is None
    assert list(NEVER.windows(at(12))) == []
    assert not NEVER.is_open(at(12))
    assert ALWAYS.closes_at(at(12)) is None
    assert list(ALWAYS.windows(at(12))) == [Window(at(12), None)]
    assert Window(at(12), None).length is None


def test_windows_follow_one_another() -> None:
    first, second, third = islice(NIGHT.windows(at(23)), 3)
    assert first == Window(at(23), at(6, day=11))
    assert second == Window(at(22, day=11), at(6, day=12))
    assert third.start == at(22, day=12)
    assert second.length == timedelta(hours=8)


def test_the_zone_decides_and_answers_are_in_utc() -> None:
    moscow = timezone(timedelta(hours=3))
    night = Schedule(Formula("hours < 6"), moscow)
    assert night.is_open(at(21))
    assert night.closes_at(at(21)) == at(3, day=11)
    opens = night.next_open(at(3))
    assert opens == at(21)
    assert opens is not None
    assert opens.tzinfo is UTC


def test_moments_may_come_in_any_zone() -> None:
    tokyo = timezone(timedelta(hours=9))
    assert NIGHT.is_open(datetime(2026, 6, 10, 7, tzinfo=tokyo))
    assert NIGHT.closes_at(datetime(2026, 6, 10, 7, tzinfo=tokyo)) == at(6)


@pytest.mark.parametrize("question", ["is_open", "next_open", "closes_at"])
def test_a_moment_without_a_zone_is_refused(question: str) -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        getattr(NIGHT, question)(datetime(2026, 6, 10))  # noqa: DTZ001 - that is the point


def test_windows_and_hits_refuse_a_moment_without_a_zone() -> None:
    naive = datetime(2026, 6, 10)  # noqa: DTZ001 - that is the point
    with pytest.raises(ValueError, match="has no time zone"):
        next(NIGHT.windows(naive))
    with pytest.raises(ValueError, match="has no time zone"):
        NIGHT.hits(naive, at(3))
    with pytest.raises(ValueError, match="has no time zone"):
        NIGHT.hits(at(3), naive)


@pytest.mark.parametrize("moment", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_the_ends_of_time_are_refused(moment: datetime) -> None:
    with pytest.raises(ValueError, match="years"):
        NIGHT.is_open(moment)


def test_time_ends_without_an_error() -> None:
    last = datetime(9998, 12, 31, 23, 59, tzinfo=UTC)
    assert Schedule(Formula("hours == 12")).next_open(last) is None


def test_schedules_are_equal_if_formula_and_zone_are() -> None:
    assert Schedule(Formula("hours<6 || hours>=22")) == NIGHT
    assert len({NIGHT, Schedule(Formula("hours<6||hours>=22")), TWENTIES}) == 2
    assert Schedule(NIGHT.formula, timezone(timedelta(hours=1))) != NIGHT
    assert NIGHT != "hours < 6"
    assert repr(TWENTIES) == "Schedule('minutes % 20 == 0', UTC)"


def test_failures_are_the_tables() -> None:
    assert NIGHT.failures is None
    failing = Schedule(Formula("1 / minutes"))
    assert failing.failures is not None
    assert failing.failures.minutes == 24
    assert not failing.is_open(at(5, 0))
    assert failing.is_open(at(5, 1))
