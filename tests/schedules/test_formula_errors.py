"""What is not a formula, where the caret stands, and what the sentence says."""

import pytest

from balancer.schedules import Formula, FormulaSyntaxError

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("", 0, "empty"),
        ("   ", 3, "empty"),
        ("1 +", 3, "ends too early"),
        ("!", 1, "ends too early"),
        ("1 2", 2, "operator"),
        ("1 hours", 2, "operator"),
        ("hours minutes", 6, "operator"),
        ("(1 2)", 3, "`)`"),
        ("1 (2)", 2, "operator"),
        ("1 !2", 2, "operator"),
        ("(1", 0, "never closed"),
        ("((1)", 0, "never closed"),
        ("1)", 1, "closes nothing"),
        ("()", 1, "`)` cannot stand here"),
        ("(1 +)", 4, "`)` cannot stand here"),
        ("* 2", 0, "`*` cannot stand here"),
        ("1 + * 2", 4, "`*` cannot stand here"),
        ("in 2", 0, "`in` cannot stand here"),
        ("1 in", 4, "ends too early"),
        ("1 in 2,", 7, "ends too early"),
        ("1 in , 2", 5, "`,` cannot stand here"),
        ("1 = 2", 2, "equality is `==`"),
        ("hours =! 2", 6, "equality is `==`"),
        ("in", 0, "cannot stand here"),
        ("1 @ 2", 2, "'@' means nothing"),
        ("1 \u00a0+ 2", 2, "means nothing"),
        ("\u0661", 0, "means nothing"),
        ("\0", 0, "means nothing"),
    ],
)
def test_syntax_error(text: str, position: int, words: str) -> None:
    with pytest.raises(FormulaSyntaxError) as caught:
        Formula(text)
    assert caught.value.position == position
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("1 << 2", 3, "no shifts"),
        ("8 >> 2", 3, "no shifts"),
        ("~1", 0, "there is no `~`"),
        ("+1", 0, "no `+` before an operand"),
        ("2 * +1", 4, "no `+` before an operand"),
        ("-(1)", 0, "must touch the digits"),
        ("- 1", 0, "must touch the digits"),
        ("-hours", 0, "must touch the digits"),
        ("1 - - 1", 4, "must touch the digits"),
        ("--1", 0, "must touch the digits"),
        ("0x10", 1, "no hexadecimal"),
        ("10u", 2, "no suffixes"),
        ("10 l", 3, "operator"),
        ("1.5", 1, "no floating-point"),
        (".5", 0, "no floating-point"),
        ("1e5", 1, "no suffixes"),
        ("1 ? 2 : 3", 2, "no `?:`"),
        ("1 : 2", 2, "no `?:`"),
    ],
)
def test_what_the_language_does_not_have(text: str, position: int, words: str) -> None:
    with pytest.raises(FormulaSyntaxError) as caught:
        Formula(text)
    assert caught.value.position == position
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("hour == 2", 0, "unknown name `hour`; expected hours or minutes"),
        ("Hours", 0, "unknown name `Hours`"),
        ("123 %true", 5, "unknown name `true`"),
        ("123 %false", 5, "unknown name `false`"),
        ("true", 0, "unknown name `true`; expected a name or, where an operand stands, `%true`"),
        ("%maybe", 0, "`%maybe` is not an operand"),
        ("%trueish", 0, "`%trueish` is not an operand"),
        ("%", 0, "`%` is not an operand"),
        ("% true", 0, "`%` is not an operand"),
        ("%true1", 5, "`1` cannot stand here"),
        ("1 in hours, mins", 12, "unknown name `mins`"),
        ("hours and 1", 6, "the operator `&&`"),
        ("not 1", 0, "the operator `!`"),
    ],
)
def test_unknown_name_is_an_error_when_the_formula_is_parsed(text: str, position: int, words: str) -> None:
    with pytest.raises(FormulaSyntaxError) as caught:
        Formula(text)
    assert caught.value.position == position
    assert words in str(caught.value)


def test_a_formula_without_variables_says_so() -> None:
    with pytest.raises(FormulaSyntaxError, match="has no variables"):
        Formula("x", variables=())


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("1, 2", 1),
        ("1, 2, 3", 4),
        ("(1, 2)", 2),
        ("(1, 2) + 3", 2),
        ("3 + (1, 2)", 6),
        ("!(1, 2)", 3),
        ("(1, 2) in 3", 2),
        ("1 in (2, (3, 4))", 11),
        ("1 in 2, (3, 4)", 10),
        ("(1, 2) && 1", 2),
        ("(1, 2) == (1, 2)", 12),
        ("1 in 2, 3 in (4, 5), (6, 7)", 23),
        ("5, 3 in 1", 1),
    ],
)
def test_a_set_in_a_numbers_place(text: str, position: int) -> None:
    with pytest.raises(FormulaSyntaxError, match="a set") as caught:
        Formula(text)
    assert caught.value.position == position


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775809", "1" * 30, "-" + "9" * 9000])
def test_a_literal_that_does_not_fit(text: str) -> None:
    with pytest.raises(FormulaSyntaxError, match="64 bits") as caught:
        Formula(text)
    assert caught.value.position == 0


def test_the_error_is_a_value_error_with_a_caret_line() -> None:
    with pytest.raises(ValueError, match="character") as caught:
        Formula("minutes % 20 == + 1")
    assert str(caught.value).splitlines() == [
        "character 17: there is no `+` before an operand; expected a number, a name, %true, %false, `!` or `(`",
        "  minutes % 20 == + 1",
        "                  ^",
    ]


def test_the_caret_stays_in_its_place_after_odd_characters() -> None:
    with pytest.raises(FormulaSyntaxError) as caught:
        Formula("1\n+\t2 日")
    _, line, caret = str(caught.value).splitlines()
    assert line == "  1 + 2 日"
    assert caret == "        ^"


def test_a_long_formula_is_shown_around_the_caret_only() -> None:
    with pytest.raises(FormulaSyntaxError) as caught:
        Formula("1 + " * 1000 + "?" + " + 1" * 1000)
    _, line, caret = str(caught.value).splitlines()
    assert len(line) < 100
    assert line[len(caret) - 1] == "?"


def test_wide_characters_move_the_caret_by_two_columns() -> None:
    error = FormulaSyntaxError("wrong", "日本 x", 3)
    assert error.excerpt().splitlines() == ["  日本 x", "       ^"]
