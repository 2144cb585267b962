"""The pages of a snapshot by number, and the search for a number in a column."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.directory.store.pages import Draft, PageMap, find_number

pytestmark = pytest.mark.quick

numbers = st.integers(1, 300)
Updates = dict[int, str | None]


@given(st.dictionaries(numbers, st.text()), st.lists(st.dictionaries(numbers, st.none() | st.text())))
def test_a_map_of_pages_is_a_dictionary_whose_former_states_stay(first: dict[int, str], steps: list[Updates]) -> None:
    states = [(PageMap(first), dict(first))]
    for updates in steps:
        before, plain = states[-1]
        states.append((before.changed(updates), {k: v for k, v in {**plain, **updates}.items() if v is not None}))
    for pages, plain in states:
        assert dict(pages) == plain
        assert len(pages) == len(plain)
        assert all((number in pages) == (number in plain) for number in range(310))


def test_a_draft_leaves_what_it_was_made_from_alone() -> None:
    before = PageMap({1: "a", 2: "b", 100: "c"})
    draft = Draft(before)
    draft[2] = "B"
    del draft[100]
    draft[7] = "new"
    assert (draft.get(1), draft[2], draft.get(100), 7 in draft, 100 in draft) == ("a", "B", None, True, False)
    with pytest.raises(KeyError):
        draft[100]
    assert dict(draft.finished()) == {1: "a", 2: "B", 7: "new"}
    assert dict(before) == {1: "a", 2: "b", 100: "c"}
    assert Draft(before).finished() is before


@given(st.lists(st.sampled_from([0, 1, 2, 255, 256, 257, 511, 65535])), st.sampled_from([0, 1, 256, 65535, 65536, -1]))
def test_a_number_is_found_where_the_array_would_find_it(rows: list[int], number: int) -> None:
    assert find_number(array("H", rows), number) == (rows.index(number) if number in rows else None)
