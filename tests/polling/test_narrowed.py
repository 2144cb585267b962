"""To leave out the tablets in which a node and the directory agree changes nothing that is found."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.naming import Name
from balancer.nodes.schema.install import NodeIdentity, OwnState
from balancer.polling.node_poll import Claim, Claims, NodeFacts, NodePoll, Partitions, PartitionStats
from balancer.polling.ownership import DirectoryView, Expected, disagreements, narrowed, stale_claims

pytestmark = pytest.mark.quick
NOW = datetime(2026, 1, 1, tzinfo=UTC)
FACTS = NodeFacts(180004, False, NOW, NOW, None, 0, 1, 100)
NUMBERS = st.integers(1, 6)
EPOCHS = st.sampled_from([5, 5, 5, 4, 6])
PLAIN = st.builds(Claim, NUMBERS, EPOCHS, st.just(OwnState.OWNED), st.none())
ANY = st.builds(
    Claim,
    NUMBERS,
    EPOCHS,
    st.sampled_from([*OwnState]),
    st.sampled_from([None, None, "b"]),
    st.sampled_from([None, None, "closed", "m1"]),
)
CLAIMS = st.one_of(PLAIN, PLAIN, ANY)


def place(number: int) -> Name:
    return Name("public", f"orders_t{number}")


def attached(numbers: set[int]) -> Partitions:
    return Partitions.of([PartitionStats(0, *place(number), number, *[0] * 10) for number in sorted(numbers)])


@given(
    mine=st.dictionaries(NUMBERS, EPOCHS, min_size=2),
    others=st.dictionaries(NUMBERS, EPOCHS),
    claims=st.dictionaries(NUMBERS, CLAIMS, min_size=2),
    held=st.sets(NUMBERS),
    busy=st.frozensets(NUMBERS, max_size=2),
    known=st.sampled_from([True, True, True, False]),
)
def test_what_is_found_is_the_same(
    mine: dict[int, int],
    others: dict[int, int],
    claims: dict[int, Claim],
    held: set[int],
    busy: frozenset[int],
    known: bool,
) -> None:
    own = {number: Expected("a", epoch, (place(number),)) for number, epoch in sorted(mine.items())}
    everything = {number: Expected("b", epoch) for number, epoch in others.items()} | own
    world = DirectoryView("shop", "a", 9, own, everything, busy)
    said = Claims.of([claim._replace(tablet=number) for number, claim in claims.items()])
    poll = NodePoll(FACTS, attached(held), NodeIdentity("shop", "a", 8, 1) if known else None, said)
    detached = [number for number in own if number not in held]
    ids, epochs = np.array(list(own), np.int64), np.array([one.epoch for one in own.values()], np.int64)
    few, little = narrowed(poll, world, ids, epochs, detached)
    by_text = {one.text for one in disagreements(poll, world)}
    assert {one.text for one in disagreements(few, little)} == by_text
    assert sorted(stale_claims(few, little)) == sorted(stale_claims(poll, world))


def test_a_node_that_agrees_is_not_looked_at_again() -> None:
    own = {number: Expected("a", 5, (place(number),)) for number in range(1, 5)}
    world = DirectoryView("shop", "a", 9, own, own)
    said = Claims.of([Claim(number, 5, OwnState.OWNED, None) for number in own])
    poll = NodePoll(FACTS, attached(set(own)), NodeIdentity("shop", "a", 8, 1), said)
    few, little = narrowed(poll, world, said.ids, said.epochs, ())
    assert (len(few.claims), len(little.mine)) == (0, 0)
    one_is_fenced = replace(poll, claims=Claims.of([*list(said)[:3], Claim(4, 5, OwnState.FENCED, None)]))
    few, little = narrowed(one_is_fenced, world, said.ids, said.epochs, ())
    assert ([claim.tablet for claim in few.claims], list(little.mine)) == ([4], [4])
