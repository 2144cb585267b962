"""Late ticks: every minute since the last one is tried."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from balancer.schedules import LOOK_BACK, Formula, Schedule
from tests.support.wall_clocks import minute_starts

pytestmark = pytest.mark.quick

TWENTIES = Schedule(Formula("minutes % 20 == 0"))
DAY = timedelta(days=1)


def at(hour: int, minute: int = 0, second: int = 0) -> datetime:
    return datetime(2026, 6, 10, hour, minute, second, tzinfo=UTC)


def test_a_tick_in_an_open_minute_hits_it() -> None:
    assert TWENTIES.hits(at(12, 19, 55), at(12, 20, 5)) == (at(12, 20),)


def test_a_late_tick_does_not_lose_its_slot() -> None:
    assert TWENTIES.hits(at(12, 19), at(12, 27)) == (at(12, 20),)
    assert TWENTIES.hits(at(12, 19), at(13, 1)) == (at(12, 20), at(12, 40), at(13))


def test_the_minute_of_the_last_tick_has_been_tried() -> None:
    assert TWENTIES.hits(at(12, 20, 30), at(12, 21, 10)) == ()
    assert TWENTIES.hits(at(12, 20), at(12, 39)) == ()


def test_a_second_tick_in_the_same_open_minute_hits_again() -> None:
    assert TWENTIES.hits(at(12, 20, 10), at(12, 20, 50)) == (at(12, 20),)
    assert TWENTIES.hits(at(12, 20), at(12, 20)) == (at(12, 20),)


def test_the_first_tick_tries_its_own_minute_only() -> None:
    assert TWENTIES.hits(None, at(12, 20, 1)) == (at(12, 20),)
    assert TWENTIES.hits(None, at(12, 21)) == ()


def test_how_far_it_looks_back_is_capped() -> None:
    assert timedelta(hours=1) == LOOK_BACK
    assert TWENTIES.hits(at(1), at(12, 1), timedelta(minutes=30)) == (at(11, 40), at(12))
    assert len(TWENTIES.hits(at(1), at(12, 1))) == 3
    assert len(TWENTIES.hits(at(1), at(12, 1), DAY)) == 33


def test_no_look_back_tries_the_present_minute_only() -> None:
    for none in (timedelta(0), timedelta(days=-1)):
        assert TWENTIES.hits(at(1), at(12, 20, 30), none) == (at(12, 20),)
        assert TWENTIES.hits(at(1), at(12, 21), none) == ()


def test_a_clock_that_was_set_back_tries_the_present_minute() -> None:
    assert TWENTIES.hits(at(15), at(12, 20, 9)) == (at(12, 20),)
    assert TWENTIES.hits(at(15), at(12, 21, 9)) == ()


def test_a_never_open_schedule_has_no_hits() -> None:
    assert Schedule(Formula("0")).hits(at(1), at(12), DAY) == ()


def test_every_minute_of_a_long_pause_is_counted_once() -> None:
    start = at(12, 0, 30)
    hits = Schedule(Formula("1")).hits(start, start + 5 * DAY, 9 * DAY)
    assert len(hits) == len(set(hits)) == 5 * 1440
    assert hits[0] == at(12, 1)


@pytest.mark.parametrize(
    ("day", "minutes"), [(datetime(2026, 3, 29, tzinfo=UTC), 23 * 60), (datetime(2026, 10, 25, tzinfo=UTC), 25 * 60)]
)
def test_ticks_every_seven_minutes_hit_each_minute_of_a_daylight_saving_day_once(day: datetime, minutes: int) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    schedule = Schedule(Formula("1"), berlin)
    begin = day.replace(tzinfo=berlin).astimezone(UTC)
    end = (day.replace(tzinfo=berlin) + DAY).astimezone(UTC)
    hits: list[datetime] = []
    last = begin - timedelta(seconds=13)
    while last < end:
        tick = min(last + timedelta(minutes=7), end)
        hits += schedule.hits(last, tick)
        last = tick
    today = [hit for hit in hits if begin <= hit < end]
    assert len(today) == len(set(today)) == minutes


MONROVIA = ZoneInfo("Africa/Monrovia")
JUMP = datetime(1972, 1, 7, 0, 44, 30, tzinfo=UTC)  # 44:30 behind UTC until then: 23:59:59 is followed by 00:44:30


@pytest.mark.parametrize(
    "middle", [JUMP, datetime(1972, 1, 6, tzinfo=UTC)], ids=["over a jump", "over midnight UTC within a minute"]
)
def test_minutes_that_are_no_whole_minutes_of_utc_are_each_counted_once(middle: datetime) -> None:
    start, end = middle - timedelta(minutes=7, seconds=3), middle + timedelta(minutes=7, seconds=3)
    hits = Schedule(Formula("1"), MONROVIA).hits(start, end, DAY)
    assert list(hits) == minute_starts(MONROVIA, start, end)


def test_a_minute_that_a_jump_has_cut_begins_at_the_jump() -> None:
    schedule = Schedule(Formula("hours == 0 && minutes == 44"), MONROVIA)
    assert schedule.hits(None, JUMP + timedelta(seconds=10)) == (JUMP,)
    assert schedule.hits(None, JUMP - timedelta(seconds=1)) == ()
