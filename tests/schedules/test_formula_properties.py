"""Laws of the language, checked on generated formulas and on random text."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from balancer.schedules import Formula, FormulaEvaluationError, FormulaSyntaxError, day_table
from tests.support.formula_trees import SPACES, SPARE, NoValue, Tree, joined, tokens_of, trees, value_of

pytestmark = pytest.mark.quick

HOURS = st.integers(0, 23)
MINUTES = st.integers(0, 59)
WORDS = "hours minutes in %true %false true 0 1 60 -1 -9223372036854775808 x in1 inn 0x1 1.5"
SYMBOLS = "+ - * / % & | ^ && || == != < > <= >= ! ( ) , = ~ ? : . << >> $"
ODD = ["\u0663", "\u00e9", "\u00a0", "\u2028", "\ud800", "\0"]
FRAGMENTS = st.sampled_from([*WORDS.split(), *SYMBOLS.split(), *ODD])


def expected(tree: Tree, hours: int, minutes: int) -> int | None:
    try:
        return value_of(tree, {"hours": hours, "minutes": minutes})
    except NoValue:
        return None


def actual(formula: Formula, hours: int, minutes: int) -> int | None:
    try:
        return formula.evaluate(hours=hours, minutes=minutes)
    except FormulaEvaluationError:
        return None


@settings(max_examples=250, deadline=None)
@given(trees(), SPARE, SPACES, HOURS, MINUTES)
def test_a_printed_tree_has_the_value_that_an_independent_evaluator_gives(
    tree: Tree, spare: list[bool], spaces: list[str], hours: int, minutes: int
) -> None:
    formula = Formula(joined(tokens_of(tree, list(spare)), list(spaces)))
    assert actual(formula, hours, minutes) == expected(tree, hours, minutes)


@settings(max_examples=100, deadline=None)
@given(trees(), SPARE, SPACES)
def test_spaces_and_needless_parentheses_do_not_matter(tree: Tree, spare: list[bool], spaces: list[str]) -> None:
    plain = Formula(joined(tokens_of(tree, []), []))
    dressed = Formula(joined(tokens_of(tree, list(spare)), list(spaces)))
    assert dressed == plain
    assert hash(dressed) == hash(plain)
    assert str(Formula(str(dressed))) == str(plain)


@settings(max_examples=40, deadline=None)
@given(trees())
def test_the_day_table_agrees_with_every_single_minute(tree: Tree) -> None:
    formula = Formula(joined(tokens_of(tree, []), []))
    table = day_table(formula)
    values = [actual(formula, minute // 60, minute % 60) for minute in range(1440)]
    assert list(table.minutes) == [int(bool(value)) for value in values]
    failed = sum(value is None for value in values)
    assert (table.failures.minutes if table.failures else 0) == failed


def survives(text: str) -> None:
    """Any error but the two ends the test."""
    error = error_of(text)
    if isinstance(error, FormulaSyntaxError):
        assert 0 <= error.position <= len(text)
        assert len(str(error).splitlines()) == 3
    elif error is not None:
        assert str(error)


def error_of(text: str) -> FormulaSyntaxError | FormulaEvaluationError | None:
    try:
        Formula(text).evaluate(hours=3, minutes=20)
    except (FormulaSyntaxError, FormulaEvaluationError) as error:
        return error
    return None


@settings(max_examples=400, deadline=None)
@given(st.text(max_size=40))
@example("\ud800")
@example("1\u2028+")
def test_random_text_raises_nothing_but_the_two_errors(text: str) -> None:
    survives(text)


@settings(max_examples=500, deadline=None)
@given(st.lists(FRAGMENTS, max_size=14), st.sampled_from(["", " "]))
def test_random_fragments_raise_nothing_but_the_two_errors(fragments: list[str], space: str) -> None:
    survives(space.join(fragments))
