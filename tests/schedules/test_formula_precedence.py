"""Which operator binds more strongly: every pair, grouped as the language says."""

from itertools import product

import pytest

from balancer.schedules import Formula
from tests.support.formula_trees import NUMERIC, PRECEDENCE

pytestmark = pytest.mark.quick

NAMES = ("a", "b", "c", "d")


def formula(text: str) -> Formula:
    return Formula(text, variables=NAMES)


@pytest.mark.parametrize(("first", "second"), list(product(NUMERIC, NUMERIC)))
def test_pair_of_operators(first: str, second: str) -> None:
    left, right = f"(a {first} b) {second} c", f"a {first} (b {second} c)"
    expected, other = (left, right) if PRECEDENCE[first] >= PRECEDENCE[second] else (right, left)
    assert formula(f"a {first} b {second} c") == formula(expected)
    assert formula(f"a {first} b {second} c") != formula(other)


@pytest.mark.parametrize("symbol", NUMERIC)
def test_not_binds_most_strongly(symbol: str) -> None:
    assert formula(f"!a {symbol} !b") == formula(f"(!a) {symbol} (!b)")
    assert formula(f"!a {symbol} b") != formula(f"!(a {symbol} b)")


@pytest.mark.parametrize("symbol", NUMERIC)
def test_comma_binds_less_than_operators_on_numbers(symbol: str) -> None:
    assert formula(f"a in b {symbol} c, d") == formula(f"a in ((b {symbol} c), d)")
    assert formula(f"a in b, c {symbol} d") == formula(f"a in (b, (c {symbol} d))")


@pytest.mark.parametrize("symbol", NUMERIC)
def test_in_binds_least(symbol: str) -> None:
    assert formula(f"a {symbol} b in c") == formula(f"(a {symbol} b) in c")
    assert formula(f"a in b {symbol} c") == formula(f"a in (b {symbol} c)")
    assert formula(f"a in b, c in d {symbol} a") == formula(f"(a in (b, c)) in (d {symbol} a)")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 + 3 * 4", 14),
        ("20 - 5 - 3", 12),
        ("100 / 10 / 5", 2),
        ("100 / 10 * 5", 50),
        ("7 % 4 * 2", 6),
        ("1 | 2 == 2", 1),  # 1 | (2 == 2), as in C
        ("4 & 6 == 6", 0),  # 4 & (6 == 6)
        ("1 < 2 == 1", 1),
        ("3 > 2 > 1", 0),
        ("1 || 0 && 0", 1),
        ("6 ^ 3 & 1", 7),
        ("!1 + 1", 1),
    ],
)
def test_worked_example(text: str, value: int) -> None:
    assert Formula(text).evaluate() == value
