"""Which formula applies: group, else bundle, else cluster."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from balancer.schedules import ALWAYS, Applicable, Formula, FormulaSyntaxError, Level, applicable

pytestmark = pytest.mark.quick


def levels(group: str = "", bundle: str = "", cluster: str = "") -> Applicable:
    return applicable(Level("group hot", group), Level("bundle shop", bundle), Level("the cluster", cluster))


@pytest.mark.parametrize(
    ("group", "bundle", "cluster", "formula", "level"),
    [
        ("1", "2", "3", "1", "group hot"),
        ("", "2", "3", "2", "bundle shop"),
        ("", "", "3", "3", "the cluster"),
        ("1", "", "", "1", "group hot"),
        (" \n", "\t", "3", "3", "the cluster"),
        ("0", "2", "3", "0", "group hot"),
        ("%false", "2", "3", "%false", "group hot"),
    ],
)
def test_the_most_specific_formula_that_is_set(group: str, bundle: str, cluster: str, formula: str, level: str) -> None:
    found = levels(group, bundle, cluster)
    assert (found.formula, found.level) == (Formula(formula), level)
    assert found.enabled


def test_every_minute_is_open_where_nothing_is_set() -> None:
    found = levels()
    assert (found.formula, found.level) == (ALWAYS, "")
    assert found.schedule().is_open(datetime(2026, 1, 1, tzinfo=UTC))
    assert applicable() == found


def test_a_switch_turned_off_anywhere_is_named() -> None:
    found = applicable(Level("group hot", "1"), Level("bundle shop", "2", enable=False), Level("the cluster", "3"))
    assert not found.enabled
    assert found.disabled_by == "bundle shop"
    assert found.level == "group hot"


def test_a_disabled_level_still_gives_its_formula_for_display() -> None:
    found = applicable(Level("group hot", "1", enable=False), Level("bundle shop", "2"))
    assert (found.formula, found.enabled) == (Formula("1"), False)


def test_a_wrong_formula_is_not_passed_over() -> None:
    with pytest.raises(FormulaSyntaxError):
        levels(group="hours <", bundle="1")


def test_the_schedule_is_on_the_wall_clock_of_the_zone() -> None:
    schedule = levels(bundle="hours == 3").schedule(ZoneInfo("Europe/Moscow"))
    assert schedule.is_open(datetime(2026, 1, 1, 0, 30, tzinfo=UTC))
