"""Which schedule holds, and what a late tick makes of it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from balancer.planner.windows import bundle_schedule, heat_schedule, report
from balancer.settings import BundleSettings, MigrationSettings, Mode
from policies.options import BalancerOptions, BundleOptions, GroupOptions, HeatOptions

pytestmark = pytest.mark.quick

NIGHT = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)


def bundle(schedule: str = "", heat: str = "", group: str = "") -> BundleSettings:
    options = BundleOptions(
        balancer=BalancerOptions(tablet_balancer_schedule=schedule, groups={"g": GroupOptions(schedule=group)}),
        heat=HeatOptions(schedule=heat),
    )
    return BundleSettings("shop", Path("shop.toml"), Mode.AUTONOMOUS, "UTC", options, MigrationSettings(), {}, {})


def test_the_most_specific_formula_holds() -> None:
    assert bundle_schedule(bundle("hours == 1", group="hours == 2"), "hours == 3", "g").level == "group g"
    assert bundle_schedule(bundle("hours == 1"), "hours == 3", "g").level == "bundle shop"
    assert bundle_schedule(bundle(), "hours == 3").level == "the cluster"
    assert heat_schedule(bundle("hours == 1", heat="hours == 2"), "").level == "heat of bundle shop"
    assert heat_schedule(bundle("hours == 1"), "").level == "bundle shop"


def test_without_a_formula_it_is_always_open() -> None:
    said = report(bundle_schedule(bundle(), ""), "UTC", NIGHT, None, 900)
    assert said.open
    assert said.closes_at is None
    assert said.formula == ""


def test_a_window_that_a_late_tick_missed_is_not_lost() -> None:
    found = bundle_schedule(bundle("hours == 2 && minutes == 0"), "")
    late = NIGHT + timedelta(minutes=5)
    assert report(found, "UTC", late, NIGHT - timedelta(minutes=1), 900).open
    assert not report(found, "UTC", late, NIGHT + timedelta(minutes=1), 900).open
    assert not report(found, "UTC", late, NIGHT - timedelta(minutes=1), 60).open


def test_the_report_says_until_when_and_when_next() -> None:
    found = bundle_schedule(bundle("hours < 6"), "")
    inside = report(found, "Europe/Moscow", NIGHT, None, 900)
    assert inside.open
    assert inside.closes_at == datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
    outside = report(found, "Europe/Moscow", NIGHT + timedelta(hours=12), None, 900)
    assert not outside.open
    assert outside.next_open == datetime(2026, 3, 1, 21, 0, tzinfo=UTC)
