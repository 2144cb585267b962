"""What the search for windows takes for granted about time zones."""

import struct
from datetime import UTC, datetime, timedelta, timezone
from importlib.resources import files
from io import BytesIO
from itertools import islice, pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest

from balancer.schedules.schedule import DAY, stretch_at, stretches, to_datetime, to_microseconds

pytestmark = pytest.mark.quick

_HEADER = struct.Struct(">4s1s15x6l")


def zone_file(name: str) -> bytes:
    """Of the package tzdata: the system's own history of a zone may differ from it."""
    return files("tzdata.zoneinfo").joinpath(*name.split("/")).read_bytes()


def jumps(data: bytes) -> list[int]:
    """When a zone's offset changes, in seconds since 1970."""
    _, _, isut, isstd, leaps, times, types, chars = _HEADER.unpack_from(data)
    start = _HEADER.size + times * 5 + types * 6 + chars + leaps * 8 + isstd + isut  # the old format's copy
    _, _, _, _, _, times, types, _ = _HEADER.unpack_from(data, start)
    start += _HEADER.size
    moments = struct.unpack_from(f">{times}q", data, start)
    kinds = struct.unpack_from(f">{times}B", data, start + times * 8)
    offsets = [struct.unpack_from(">lBB", data, start + times * 9 + kind * 6)[0] for kind in range(types)]
    before = [offsets[0], *(offsets[kind] for kind in kinds)]
    return [moment for moment, old, new in zip(moments, before, before[1:], strict=False) if old != new]


def test_no_zone_has_ever_changed_twice_within_three_days() -> None:
    gaps = {
        name: min((later - earlier for earlier, later in pairwise(jumps(zone_file(name)))), default=10**9)
        for name in available_timezones()
        if files("tzdata.zoneinfo").joinpath(*name.split("/")).is_file()
    }
    assert len(gaps) > 500
    assert min(gaps.values()) > 3 * 86400


@pytest.mark.parametrize("name", ["Europe/Berlin", "Australia/Lord_Howe", "Africa/Freetown", "America/Sao_Paulo"])
def test_every_jump_in_the_zones_file_begins_a_stretch(name: str) -> None:
    zone = ZoneInfo.from_file(BytesIO(zone_file(name)), key=name)
    for moment in jumps(zone_file(name)):
        jump = moment * 1_000_000
        assert stretch_at(zone, jump - 1).end == jump
        assert stretch_at(zone, jump).offset != stretch_at(zone, jump - 1).offset


def test_stretches_follow_without_a_gap_and_show_the_wall_clock() -> None:
    zone = ZoneInfo("Europe/Berlin")
    start = to_microseconds(datetime(2026, 3, 27, 5, tzinfo=UTC))
    found = list(islice(stretches(zone, start), 5))
    assert found[0].start == start
    assert all(earlier.end == later.start for earlier, later in pairwise(found))
    assert [stretch.offset // 3_600_000_000 for stretch in found] == [1, 1, 1, 2, 2]
    assert all(stretch.end - stretch.start <= DAY for stretch in found)


def test_a_jump_at_midnight_utc_leaves_no_empty_stretch() -> None:
    name = "Africa/Tunis"
    zone = ZoneInfo.from_file(BytesIO(zone_file(name)), key=name)
    at_midnight = [moment * 1_000_000 for moment in jumps(zone_file(name)) if moment % 86400 == 0]
    assert at_midnight
    for jump in at_midnight:
        around = list(islice(stretches(zone, jump - DAY), 3))
        assert [stretch.start for stretch in around] == [jump - DAY, jump, jump + DAY]


def test_a_fixed_offset_has_no_jumps() -> None:
    zone = timezone(timedelta(hours=5, minutes=45, seconds=7))
    found = list(islice(stretches(zone, 0), 400))
    assert {stretch.offset for stretch in found} == {(5 * 3600 + 45 * 60 + 7) * 1_000_000}
    assert len(found) == 400


def test_moments_before_1970_are_exact() -> None:
    moment = datetime(1916, 4, 30, 22, 59, 59, 999999, tzinfo=UTC)
    assert to_datetime(to_microseconds(moment)) == moment
