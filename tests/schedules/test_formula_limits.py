"""Formulas of absurd size end in a clear error or work; none meets Python's own limits."""

import inspect
import sys

import pytest

from balancer.schedules import Formula, FormulaSyntaxError, day_table

pytestmark = pytest.mark.quick

HUGE = {
    "parentheses": "(" * 100_000 + "1" + ")" * 100_000,
    "open parentheses": "(" * 100_000,
    "negations": "!" * 100_000 + "1",
    "a flat sum": "1" + " + 1" * 100_000,
    "a long set": "1 in 0" + ", 1" * 100_000,
    "a chain to the right": "1 || (" * 100_000 + "1" + ")" * 100_000,
    "digits": "1" * 100_000,
    "a long name": "h" * 100_000,
}


@pytest.mark.parametrize("text", HUGE.values(), ids=HUGE.keys())
def test_a_huge_formula_is_refused_for_its_length(text: str) -> None:
    with pytest.raises(FormulaSyntaxError, match="may have 10,000") as caught:
        Formula(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", ["(" * 4000 + "1" + ")" * 4000, "!" * 9000 + "1", "1 || (" * 1000 + "1" + ")" * 1000])
def test_a_deep_formula_is_refused_for_its_depth(text: str) -> None:
    with pytest.raises(FormulaSyntaxError, match="nested more than 200 deep"):
        Formula(text)


def test_two_hundred_levels_work() -> None:
    assert Formula("(" * 200 + "7" + ")" * 200).evaluate() == 7
    assert Formula("!" * 200 + "7").evaluate() == 1
    with pytest.raises(FormulaSyntaxError, match="nested"):
        Formula("(" * 201 + "7" + ")" * 201)


def test_a_flat_chain_as_long_as_is_allowed_works() -> None:
    links = 2499
    chain = Formula("1" + " + 1" * links)
    assert chain.evaluate() == links + 1
    assert str(chain) == chain.text
    assert chain == Formula("1" + "  +1" * links)
    assert day_table(chain).open_minutes == 1440


def test_a_long_set_works() -> None:
    assert Formula("3333 in " + ",".join(str(number) for number in range(0, 4000, 3))).evaluate() == 1


def test_nothing_recurses() -> None:
    text = "(" * 150 + "minutes" + " + 1)" * 150
    limit = sys.getrecursionlimit()
    depth = len(inspect.stack())
    sys.setrecursionlimit(depth + 40)
    try:
        formula = Formula(text)
        assert (str(formula), formula.evaluate(minutes=3)) == ("minutes" + " + 1" * 150, 153)
    finally:
        sys.setrecursionlimit(limit)
