"""Leaves: splits and merges undo each other, and the position order is that of the trie."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.policies.keyspace.hash_leaves import (
    MAX_MODULUS,
    POSITIONS,
    Leaf,
    check_leaf,
    descendants,
    position,
    reverse_bits,
    uncovered,
)

pytestmark = pytest.mark.quick

HASHES = st.integers(0, POSITIONS - 1)


@st.composite
def leaves(draw: st.DrawFn) -> Leaf:
    bits = draw(st.integers(0, 29))
    return Leaf(1 << bits, draw(st.integers(0, (1 << bits) - 1)))


@st.composite
def tries(draw: st.DrawFn) -> list[Leaf]:
    """The leaves of a table that was split at random, in no order."""
    chance = random.Random(draw(st.integers(0, 1 << 32)))
    found = [Leaf(1, 0)]
    for _ in range(draw(st.integers(0, 40))):
        leaf = found.pop(chance.randrange(len(found)))
        found += leaf.children() if leaf.modulus < MAX_MODULUS else (leaf,)
    return found


@given(leaves())
def test_a_merge_undoes_a_split(leaf: Leaf) -> None:
    left, right = leaf.children()
    assert left.sibling() == right
    assert right.sibling() == left
    assert left.parent() == right.parent() == leaf


@given(leaves())
def test_children_divide_the_interval_of_their_parent(leaf: Leaf) -> None:
    left, right = leaf.children()
    assert left.start() == leaf.start()
    assert left.start() + left.width() == right.start()
    assert left.width() + right.width() == leaf.width()


@given(leaves(), HASHES)
def test_a_leaf_owns_a_hash_where_the_position_is_in_its_interval(leaf: Leaf, hashed: int) -> None:
    inside = leaf.start() <= position(hashed) < leaf.start() + leaf.width()
    assert inside == (hashed % leaf.modulus == leaf.remainder)


@given(HASHES)
def test_reversing_bits_twice_changes_nothing(number: int) -> None:
    assert reverse_bits(reverse_bits(number)) == number


@given(tries())
def test_any_sequence_of_splits_covers_every_hash_once(trie: list[Leaf]) -> None:
    assert uncovered(trie) is None


@given(tries(), st.data())
def test_a_missing_or_doubled_leaf_is_found(trie: list[Leaf], data: st.DataObject) -> None:
    victim = data.draw(st.sampled_from(trie))
    assert "gap" in (uncovered([leaf for leaf in trie if leaf != victim]) or "")
    assert "overlap" in (uncovered([*trie, victim]) or "")


@given(leaves(), st.integers(0, 5))
def test_descendants_share_the_interval_evenly_in_order(leaf: Leaf, levels: int) -> None:
    found = descendants(leaf, 1 << levels)
    width = leaf.width() // len(found)
    assert [part.start() for part in found] == [leaf.start() + place * width for place in range(1 << levels)]
    assert {part.modulus for part in found} == {leaf.modulus << levels}


def test_the_root_has_neither_sibling_nor_parent() -> None:
    assert Leaf(1, 0).sibling() is None
    assert Leaf(1, 0).parent() is None


@pytest.mark.parametrize(("modulus", "remainder"), [(0, 0), (3, 0), (MAX_MODULUS * 2, 0), (4, 4), (4, -1)])
def test_what_is_no_leaf_is_refused(modulus: int, remainder: int) -> None:
    with pytest.raises(ValueError, match="not"):
        check_leaf(modulus, remainder)
