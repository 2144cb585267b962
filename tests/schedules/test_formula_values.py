"""What each operator and literal of a formula means."""

import pytest

from balancer.schedules import Formula, FormulaEvaluationError

pytestmark = pytest.mark.quick

SMALLEST = -9223372036854775808
LARGEST = 9223372036854775807


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7 + 5", 12),
        ("7 - 5", 2),
        ("7 * 5", 35),
        ("7 / 5", 1),
        ("7 % 5", 2),
        ("6 & 3", 2),
        ("6 | 3", 7),
        ("6 ^ 3", 5),
        ("-1 & 255", 255),
        ("-2 | 1", -1),
        ("-1 ^ 1", -2),
        ("3 == 3", 1),
        ("3 == 4", 0),
        ("3 != 4", 1),
        ("3 != 3", 0),
        ("3 < 4", 1),
        ("4 < 4", 0),
        ("4 > 3", 1),
        ("4 > 4", 0),
        ("4 <= 4", 1),
        ("5 <= 4", 0),
        ("4 >= 4", 1),
        ("3 >= 4", 0),
        ("5 && -7", 1),
        ("5 && 0", 0),
        ("0 || -7", 1),
        ("0 || 0", 0),
        ("!0", 1),
        ("!5", 0),
        ("!-5", 0),
        ("!!5", 1),
        ("3 in 1, 2, 3", 1),
        ("4 in 1, 2, 3", 0),
        ("3 in 3", 1),
        ("3 in 4", 0),
        ("3 in (1, 2, 3)", 1),
    ],
)
def test_operator(text: str, value: int) -> None:
    result = Formula(text).evaluate()
    assert result == value
    assert type(result) is int


def test_variables_have_the_values_given() -> None:
    assert Formula("hours * 60 + minutes").evaluate(hours=2, minutes=30) == 150


def test_variables_are_a_parameter() -> None:
    formula = Formula("reads / 10 + _W9", variables=("reads", "_W9", "other"))
    assert formula.evaluate(reads=55, _W9=7) == 12
    assert formula.names == {"reads", "_W9"}


def test_a_variable_may_have_any_name_that_is_one() -> None:
    formula = Formula("self + true + inn + index", ("self", "true", "inn", "index"))
    assert formula.evaluate(self=1, true=2, inn=3, index=4) == 10


@pytest.mark.parametrize("name", ["", "in", "1st", "a-b", "größe", "a b"])
def test_a_variable_needs_a_name(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a variable"):
        Formula("1", variables=(name,))


def test_a_used_variable_without_a_value_is_an_evaluation_error() -> None:
    with pytest.raises(FormulaEvaluationError, match="`minutes` has no value"):
        Formula("minutes == 3").evaluate(hours=2)


def test_an_unused_variable_needs_no_value() -> None:
    assert Formula("minutes == 3").evaluate(minutes=3) == 1


def test_a_value_for_an_unknown_variable_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="'minute' is not a variable"):
        Formula("1").evaluate(minute=3)


def test_values_are_64_bit_integers() -> None:
    with pytest.raises(FormulaEvaluationError, match="64 bits"):
        Formula("hours").evaluate(hours=LARGEST + 1)
    with pytest.raises(TypeError, match="not an integer"):
        Formula("hours").evaluate(hours=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("7 / -2", -3),
        ("-7 / -2", 3),
        ("7 % 2", 1),
        ("-7 % 2", -1),
        ("7 % -2", 1),
        ("-7 % -2", -1),
        ("-6 % 3", 0),
        (f"{SMALLEST} / 1", SMALLEST),
        (f"{SMALLEST} / {SMALLEST}", 1),
        (f"{LARGEST} / -1", -LARGEST),
        (f"{SMALLEST} % {LARGEST}", -1),
    ],
)
def test_division_truncates_and_the_remainder_has_the_sign_of_the_dividend(text: str, value: int) -> None:
    assert Formula(text).evaluate() == value


@pytest.mark.parametrize("text", ["1 / 0", "1 % 0", "0 / 0", f"{SMALLEST} / -1", f"{SMALLEST} % -1", "1 / (3 - 3)"])
def test_a_division_without_a_value_is_an_evaluation_error(text: str) -> None:
    formula = Formula(text)
    with pytest.raises(FormulaEvaluationError, match=r"division by zero|64 bits"):
        formula.evaluate()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (f"{LARGEST} + 1", SMALLEST),
        (f"{SMALLEST} - 1", LARGEST),
        (f"{LARGEST} * 2", -2),
        (f"{SMALLEST} * -1", SMALLEST),
        (f"{SMALLEST} + {SMALLEST}", 0),
        (f"{LARGEST} * {LARGEST}", 1),
        (f"0 - {SMALLEST}", SMALLEST),
    ],
)
def test_sums_differences_and_products_wrap_at_64_bits(text: str, value: int) -> None:
    assert Formula(text).evaluate() == value


@pytest.mark.parametrize(
    "text", ["0 && 1/0", "1/0 && 0", "1 || 1/0", "1/0 || 1", "1 in 1, 1/0", "1 in (1, 2, 1 % 0)", "0 * (1/0)"]
)
def test_nothing_short_circuits(text: str) -> None:
    with pytest.raises(FormulaEvaluationError):
        Formula(text).evaluate()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("007", 7),
        ("-0", 0),
        ("-5", -5),
        (f"{LARGEST}", LARGEST),
        (f"{SMALLEST}", SMALLEST),
        ("0" * 5000 + "12", 12),
        ("5-3", 2),
        ("5 -3", 2),
        ("5--3", 8),
        ("5 - -3", 8),
        ("5*-3", -15),
        ("(5)-3", 2),
        ("(-3)", -3),
        ("hours-3", -1),
        ("3 in -3, -4", 0),
        ("-3 in -4, -3", 1),
        ("1 in-1", 0),
    ],
)
def test_a_minus_that_touches_its_digits_is_a_sign_only_where_an_operand_is_expected(text: str, value: int) -> None:
    assert Formula(text).evaluate(hours=2) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("%true", 1),
        ("%false", 0),
        ("10 % %true", 0),
        ("10%%true", 0),
        ("%true+%true", 2),
        ("!%false", 1),
        ("(%true)", 1),
        ("0 in 1, %false", 1),
    ],
)
def test_boolean_literals_stand_in_operand_position(text: str, value: int) -> None:
    assert Formula(text).evaluate() == value


def test_true_after_an_operand_is_a_remainder_by_a_name() -> None:
    assert Formula("123 %true", variables=("true",)).evaluate(true=100) == 23


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 in 2,3 in 0,5", 1),  # (1 in 2,3) is 0, which is among 0, 5
        ("1 in 1,3 in 0,5", 0),
        ("3 in 3 in 1", 1),
        ("3 in (3 in 1)", 0),
        ("1 in 0 in 0 in 0", 0),
    ],
)
def test_in_is_left_associative(text: str, value: int) -> None:
    assert Formula(text).evaluate() == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3 in (1, 2), 3", 1),
        ("3 in ((1, 2), 3), 4", 1),
        ("3 in ((((1, 2, 3))))", 1),
        ("2 in 1 || 1, 1 + 1", 1),
        ("(1 in 1, 2) + 1", 2),
        ("3 in hours + 1, 5", 1),
        ("4 in(4)", 1),
        ("4in 4", 1),
    ],
)
def test_a_set_stands_right_of_in_or_left_of_a_comma(text: str, value: int) -> None:
    assert Formula(text).evaluate(hours=2) == value


def test_any_ascii_white_space_separates() -> None:
    assert Formula(" \t\n\v\f\r1\n+\t2 ").evaluate() == 3
