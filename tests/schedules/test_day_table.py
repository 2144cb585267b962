"""The truth of a formula over the minutes of a day."""

import pytest

from balancer.schedules import Formula, day_table

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("text", "open_minutes"),
    [
        ("minutes % 20 == 0", 72),
        ("hours % 2 == 0 && minutes == 30", 12),
        ("(hours * 60 + minutes) % 40 == 10", 36),
        ("hours < 6", 360),
        ("hours in 1, 3, 5", 180),
        ("%true", 1440),
        ("-7", 1440),
        ("0", 0),
        ("hours == 24", 0),
        ("hours - 12 < 0 - minutes", 78),
    ],
)
def test_open_minutes_of_a_day(text: str, open_minutes: int) -> None:
    table = day_table(Formula(text))
    assert table.open_minutes == open_minutes
    assert len(table.minutes) == 1440
    assert table.failures is None


@pytest.mark.parametrize(
    ("text", "open_minutes"),
    [
        ("(hours - 12) / 5 == -2", 3 * 60),
        ("(hours - 12) / 5 == 0", 9 * 60),
        ("(minutes - 30) % 7 == -1", 5 * 24),
        ("minutes / -7 == -1", 7 * 24),
        ("minutes % -7 == 3", 9 * 24),
        ("9223372036854775807 + hours < 0", 23 * 60),
        ("-9223372036854775807 - hours > 0", 22 * 60),
        ("9223372036854775807 * minutes < 0", 29 * 24),
    ],
)
def test_division_truncates_and_sums_wrap_in_the_table_too(text: str, open_minutes: int) -> None:
    assert day_table(Formula(text)).open_minutes == open_minutes


def test_the_table_is_indexed_by_the_minute_of_the_day() -> None:
    table = day_table(Formula("hours == 13 && minutes == 7"))
    assert table.minutes.index(1) == 13 * 60 + 7


def test_equal_formulas_share_one_table() -> None:
    assert day_table(Formula("minutes%7==3")) is day_table(Formula("(minutes % 7) == 3"))


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("hours < 6 || hours >= 22", (480,)),
        ("minutes < 20", (20,) * 24),
        ("hours == 3 || hours == 5", (60, 60)),
        ("hours == 3 || hours == 4 && minutes < 10", (70,)),
        ("1", (1440,)),
        ("0", ()),
    ],
)
def test_runs_join_at_midnight(text: str, runs: tuple[int, ...]) -> None:
    assert day_table(Formula(text)).runs() == runs


def test_minutes_in_which_the_formula_fails_are_closed_and_reported() -> None:
    table = day_table(Formula("100 / (minutes - 30)"))
    assert table.failures is not None
    assert (table.failures.minutes, table.failures.hour, table.failures.minute) == (24, 0, 30)
    assert str(table.failures) == (
        "the formula fails in 24 minutes of the day, first at 00:30: division by zero: 100 / 0"
    )
    assert not any(table.minutes[30::60])
    assert table.open_minutes == 1440 - 24


def test_a_formula_that_fails_once() -> None:
    table = day_table(Formula("1 % (hours * 60 + minutes - 75)"))
    assert "in 1 minute of the day, first at 01:15" in str(table.failures)


def test_a_formula_that_always_fails_is_always_closed() -> None:
    table = day_table(Formula("1 || 1 / 0"))
    assert table.failures is not None
    assert table.failures.minutes == 1440
    assert table.open_minutes == 0


def test_a_schedule_knows_no_other_variables() -> None:
    with pytest.raises(ValueError, match="hours and minutes, not days"):
        day_table(Formula("days == 1", variables=("days", "hours")))
