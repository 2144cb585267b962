"""Formulas as trees, with an evaluator and a printer of their own: what the real ones are compared with.

The values come from ctypes and exact fractions, not from the code under test; precedences are written out again.
"""

import re
from collections.abc import Mapping
from ctypes import c_int64
from dataclasses import dataclass
from fractions import Fraction
from math import trunc

from hypothesis import strategies as st

SMALLEST = -(2**63)
LARGEST = 2**63 - 1

LEVELS = (
    ("in",),
    (",",),
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("+", "-"),
    ("*", "/", "%"),
)
PRECEDENCE = {symbol: level for level, symbols in enumerate(LEVELS) for symbol in symbols}
NOT_LEVEL = len(LEVELS)
NUMERIC = tuple(symbol for symbols in LEVELS[2:] for symbol in symbols)


@dataclass(frozen=True)
class Leaf:
    """A literal or a name."""

    text: str


@dataclass(frozen=True)
class Not:
    operand: "Tree"


@dataclass(frozen=True)
class Pair:
    symbol: str
    left: "Tree"
    right: "Tree"


@dataclass(frozen=True)
class Member:
    element: "Tree"
    members: tuple["Tree", ...]


Tree = Leaf | Not | Pair | Member


class NoValue(Exception):
    """The tree has no value here."""


def value_of(tree: Tree, names: Mapping[str, int]) -> int:
    """What the formula must give."""
    match tree:
        case Leaf("%true"):
            return 1
        case Leaf("%false"):
            return 0
        case Leaf(text):
            return names[text] if text in names else int(text)
        case Not(operand):
            return 1 if value_of(operand, names) == 0 else 0
        case Member(element, members):
            wanted = value_of(element, names)
            return sum({value_of(member, names) == wanted for member in members})
        case Pair(symbol, left, right):
            return _pair(symbol, value_of(left, names), value_of(right, names))


def _pair(symbol: str, left: int, right: int) -> int:
    truths = {
        "||": left != 0 or right != 0,
        "&&": left != 0 and right != 0,
        "==": left == right,
        "!=": left != right,
        "<": left < right,
        ">": left > right,
        "<=": left <= right,
        ">=": left >= right,
    }
    if symbol in truths:
        return 1 if truths[symbol] else 0
    if symbol in "/%":
        return _division(symbol, left, right)
    exact = {"|": left | right, "^": left ^ right, "&": left & right}
    exact |= {"+": left + right, "-": left - right, "*": left * right}
    return c_int64(exact[symbol]).value


def _division(symbol: str, left: int, right: int) -> int:
    if right == 0 or (left == SMALLEST and right == -1):
        raise NoValue
    quotient = trunc(Fraction(left, right))
    return quotient if symbol == "/" else left - quotient * right


def tokens_of(tree: Tree, spare: "list[bool]") -> list[str]:
    """The tree's tokens with the parentheses it needs, and with redundant ones as `spare` has them (used up)."""
    tokens = _tokens(tree, spare)
    return ["(", *tokens, ")"] if spare and spare.pop() else tokens


def _tokens(tree: Tree, spare: list[bool]) -> list[str]:
    match tree:
        case Leaf(text):
            return [text]
        case Not(operand):
            return ["!", *_inside(operand, NOT_LEVEL, spare)]
        case Member(element, members):
            return [*_inside(element, 0, spare), "in", *_set(members, spare)]
        case Pair(symbol, left, right):
            level = PRECEDENCE[symbol]
            return [*_inside(left, level, spare), symbol, *_inside(right, level + 1, spare)]


def _set(members: tuple[Tree, ...], spare: list[bool]) -> list[str]:
    tokens = _inside(members[0], 1 if len(members) == 1 else 2, spare)
    for member in members[1:]:
        # The set so far may be in parentheses: a set may be to the left of a comma.
        tokens = ["(", *tokens, ")"] if spare and spare.pop() else tokens
        tokens = [*tokens, ",", *_inside(member, 2, spare)]
    return ["(", *tokens, ")"] if spare and spare.pop() else tokens


def _inside(tree: Tree, least: int, spare: list[bool]) -> list[str]:
    tokens = tokens_of(tree, spare)
    return tokens if _level(tree) >= least else ["(", *tokens, ")"]


def _level(tree: Tree) -> int:
    match tree:
        case Leaf():
            return NOT_LEVEL + 1
        case Not():
            return NOT_LEVEL
        case Member():
            return 0
        case Pair(symbol):
            return PRECEDENCE[symbol]


def joined(tokens: list[str], spaces: list[str]) -> str:
    """The tokens with these spaces between them, and one wherever two words would run together."""
    text = ""
    for token in tokens:
        space = spaces.pop() if spaces else " "
        if not space and re.search(r"\w$", text) and re.match(r"\w", token):
            space = " "
        text += space + token
    return text


_NUMBERS = st.one_of(
    st.integers(-70, 70),
    st.sampled_from([SMALLEST, SMALLEST + 1, LARGEST, LARGEST - 1, -(2**32), 2**32]),
    st.integers(SMALLEST, LARGEST),
)
_LEAVES = st.one_of(_NUMBERS.map(str), st.sampled_from(["hours", "minutes", "%true", "%false"])).map(Leaf)


def trees() -> st.SearchStrategy[Tree]:
    """Trees with every operator."""
    return st.recursive(
        _LEAVES,
        lambda inner: st.one_of(
            st.builds(Pair, st.sampled_from(NUMERIC), inner, inner),
            st.builds(Not, inner),
            st.builds(Member, inner, st.lists(inner, min_size=1, max_size=4).map(tuple)),
        ),
        max_leaves=20,
    )


SPACES = st.lists(st.sampled_from(["", " ", "  ", "\t", "\n", "\r", "\v", "\f"]), max_size=80)
SPARE = st.lists(st.booleans(), max_size=40)
