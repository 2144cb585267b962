"""What is said of a schedule: figures, windows, warnings."""

import json
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from balancer.cli.schedule import ScheduleFacts, facts, length_text
from balancer.schedules import Formula, Schedule

pytestmark = pytest.mark.quick

NOON = datetime(2026, 6, 10, 12, 0, 30, tzinfo=UTC)


def of(text: str, tick: float = 10, zone: str = "UTC", at: datetime = NOON) -> ScheduleFacts:
    return facts(Schedule(Formula(text), ZoneInfo(zone)), at, tick)


def test_figures_of_a_day() -> None:
    found = of("hours < 6 && minutes % 20 == 0")
    assert (found.open_minutes_per_day, found.windows_per_day, found.open) == (18, 18, False)
    assert len(found.day) == 24
    assert found.day[5] == ("1" + "0" * 19) * 3
    assert found.day[6] == "0" * 60


def test_the_next_five_windows_in_the_zone() -> None:
    found = of("minutes < 15", zone="Europe/Berlin")
    assert len(found.next_windows) == 5
    first, second, *_ = found.next_windows
    assert first.start == NOON
    assert first.seconds == 14.5 * 60
    assert second.start == datetime(2026, 6, 10, 15, 0, tzinfo=ZoneInfo("Europe/Berlin"))
    assert second.start.utcoffset() == timedelta(hours=2)
    assert second.seconds == 900


def test_lengths_are_real_over_a_repeated_hour() -> None:
    found = of("hours < 6", zone="Europe/Berlin", at=datetime(2026, 10, 24, 12, tzinfo=UTC))
    assert [window.seconds for window in found.next_windows[:2]] == [7 * 3600, 6 * 3600]


@pytest.mark.parametrize(
    ("text", "tick", "words"),
    [
        ("0", 10, ["never opens"]),
        ("%true", 10, ["always open"]),
        ("minutes % 20 == 0", 10, []),
        ("minutes % 20 == 0", 60, []),
        ("minutes % 20 == 0", 61, ["shortest window (1 min) is shorter than one tick (1 min 1 s)"]),
        ("minutes < 10 || hours == 3", 660, ["(10 min) is shorter than one tick (11 min)"]),
        ("60 / minutes", 10, ["fails in 24 minutes of the day, first at 00:00: division by zero: 60 / 0"]),
        ("1 / 0", 10, ["fails in 1440 minutes", "never opens"]),
    ],
)
def test_warnings(text: str, tick: float, words: list[str]) -> None:
    warnings = of(text, tick).warnings
    assert len(warnings) == len(words)
    assert all(word in warning for word, warning in zip(words, warnings, strict=True))


def test_a_switched_off_schedule_says_by_whom() -> None:
    found = facts(Schedule(Formula("hours < 6")), NOON, 10, origin="group a", disabled_by="group a")
    assert found.warnings == ("group a is switched off: the schedule is ignored",)


def test_the_document_is_json() -> None:
    document = json.loads(json.dumps(of("60 / minutes", zone="Asia/Tokyo").document()))
    assert document["at"] == "2026-06-10T21:00:30+09:00"
    assert document["failures"] == {"minutes": 24, "hour": 0, "minute": 0, "reason": "division by zero: 60 / 0"}
    assert document["next_windows"][0] == {
        "start": "2026-06-10T21:01:00+09:00",
        "end": "2026-06-10T22:00:00+09:00",
        "seconds": 3540.0,
    }


def test_a_window_without_end() -> None:
    [window] = of("1").next_windows
    assert (window.end, window.seconds) == (None, None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "without end"), (0, "0 s"), (59, "59 s"), (60, "1 min"), (27000, "7 h 30 min"), (90061, "1 d 1 h")],
)
def test_length_for_people(seconds: float | None, text: str) -> None:
    assert length_text(seconds) == text
