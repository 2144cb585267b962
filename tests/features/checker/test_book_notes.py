"""The checker's book as a note: it comes back as it was, and what is none of ours costs only its own part."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.features.checker.book import book_note, book_of
from balancer.policies.check_options import CheckKind
from balancer.policies.checking import Anomaly, CheckRound, CheckRounds, PastRound, Standing

pytestmark = pytest.mark.quick

FOUND = Anomaly(CheckKind.BOUNDS, "3 rows", "orders", 7, "a", "public.orders", 3, "move them", "x")
ROUND = CheckRound(4, 10.0, CheckKind.BOUNDS, 7, 1, 64, 5, more=True, rows=9, unchecked={"map": (0,)}, why=("why",))
BOOK = CheckRounds(
    ROUND,
    {FOUND.key: Standing(FOUND, 1.0, 2.0, 3, 7)},
    1,
    (PastRound(3, 1.0, 2.0, 5, 6, 0.5, 1, 0),),
    {"map": 2.0},
    {"accounts money 0": "12.50"},
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


def test_a_book_comes_back_as_it_was() -> None:
    assert book_of(json.loads(json.dumps(book_note(BOOK)))) == BOOK
    assert book_of(book_note(CheckRounds())) == CheckRounds()


def test_a_kind_of_another_version_does_not_cost_the_sums() -> None:
    note = json.loads(json.dumps(book_note(BOOK)))
    note["round"]["kind"] = note["standing"][0]["anomaly"]["kind"] = "messages of tomorrow"
    read = book_of(note)
    assert (read.round, dict(read.standing)) == (None, {})
    assert (read.sums, read.past) == (BOOK.sums, BOOK.past)


@given(JSON, st.sampled_from([None, *book_note(BOOK)]))
def test_whatever_stands_there_is_a_book(value: Any, place: str | None) -> None:
    note = value if place is None else {**book_note(BOOK), place: value}
    assert isinstance(book_of(note), CheckRounds)
