"""What a tick makes of a schedule, late ones included."""

from datetime import UTC, datetime, timedelta

import pytest

from balancer.planner.windows import report
from balancer.schedules import Level, applicable

pytestmark = pytest.mark.quick

NIGHT = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)


def test_without_a_formula_it_is_always_open() -> None:
    said = report(applicable(Level("the cluster")), "UTC", NIGHT, None, 900)
    assert said.open
    assert said.closes_at is None
    assert said.formula == ""


def test_a_window_that_a_late_tick_missed_is_not_lost() -> None:
    found = applicable(Level("bundle shop", "hours == 2 && minutes == 0"))
    late = NIGHT + timedelta(minutes=5)
    missed = report(found, "UTC", late, NIGHT - timedelta(minutes=1), 900)
    assert missed.open
    assert missed.closes_at == late + timedelta(minutes=1)  # as much time as the window had
    assert not report(found, "UTC", late, NIGHT + timedelta(minutes=1), 900).open
    assert not report(found, "UTC", late, NIGHT - timedelta(minutes=1), 60).open


def test_the_report_says_until_when_and_when_next() -> None:
    found = applicable(Level("bundle shop", "hours < 6"))
    inside = report(found, "Europe/Moscow", NIGHT, None, 900)
    assert inside.open
    assert inside.closes_at == datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
    outside = report(found, "Europe/Moscow", NIGHT + timedelta(hours=12), None, 900)
    assert not outside.open
    assert outside.next_open == datetime(2026, 3, 1, 21, 0, tzinfo=UTC)


def test_what_is_switched_off_is_closed() -> None:
    assert not report(applicable(Level("heat of bundle shop", "", enable=False)), "UTC", NIGHT, None, 900).open
