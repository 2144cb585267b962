"""The canonical text, equality and hash."""

import pytest

from balancer.schedules import Formula

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("minutes%20==0", "minutes % 20 == 0"),
        ("((hours*60)+minutes)%40==10", "(hours * 60 + minutes) % 40 == 10"),
        ("hours in(1,2,3)", "hours in 1, 2, 3"),
        ("hours in ((1,2),3)", "hours in 1, 2, 3"),
        ("(hours in 1,2)&&minutes", "(hours in 1, 2) && minutes"),
        ("hours in (minutes in 2)", "hours in (minutes in 2)"),
        ("hours in ((minutes in 2), 3)", "hours in (minutes in 2), 3"),
        ("(hours in 1) in 2", "hours in 1 in 2"),
        ("1-(2-3)", "1 - (2 - 3)"),
        ("(1-2)-3", "1 - 2 - 3"),
        ("! ! (hours)", "!!hours"),
        ("!(hours==1)", "!(hours == 1)"),
        ("5--3", "5 - -3"),
        ("007", "7"),
        ("-0", "0"),
        ("10%%true", "10 % %true"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    formula = Formula(text)
    assert str(formula) == canonical
    assert formula.text == text
    assert repr(formula) == f"Formula({canonical!r})"
    assert Formula(canonical) == formula
    assert hash(Formula(canonical)) == hash(formula)


@pytest.mark.parametrize(
    ("one", "other"), [("1 + 2", "2 + 1"), ("1 - (2 - 3)", "1 - 2 - 3"), ("%true", "1"), ("hours", "minutes")]
)
def test_other_text_is_another_formula(one: str, other: str) -> None:
    assert Formula(one) != Formula(other)


def test_a_formula_is_not_its_text() -> None:
    assert Formula("1") != "1"
    assert len({Formula("1+1"), Formula("(1)+1"), Formula("2")}) == 2
