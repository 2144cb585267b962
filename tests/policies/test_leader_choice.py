"""Who should lead a group: the same answer for everybody, even over many groups, and few changes when one is lost."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.policies.leader_choice import (
    LONGEST_REST,
    Contender,
    Pace,
    Term,
    hand_over,
    patience,
    rest_after,
    stands,
    wanted_leader,
)

pytestmark = pytest.mark.quick

names = st.text(min_size=1, max_size=12)
contenders = st.builds(Contender, names, st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.booleans())
halls = st.lists(contenders, min_size=1, max_size=8, unique_by=lambda one: one.name)
PACE = Pace(settle=30.0, lead_at_least=120.0)
ANSWERS = [f"host-{letter}" for letter in "ccabacbab"]


@given(names, halls, st.randoms(use_true_random=False))
def test_everybody_gets_the_same_answer_whatever_the_order(group: str, hall: list[Contender], chance: Random) -> None:
    mixed = list(hall)
    chance.shuffle(mixed)
    assert wanted_leader(group, hall) == wanted_leader(group, mixed)


@given(names, halls)
def test_one_that_is_not_fit_or_has_no_weight_comes_last(group: str, hall: list[Contender]) -> None:
    chosen = next(one for one in hall if one.name == wanted_leader(group, hall))
    assert chosen.fit or not any(one.fit for one in hall)
    assert chosen.weight or not any(one.weight for one in hall if one.fit == chosen.fit)


@given(names, halls)
def test_only_the_groups_of_one_that_is_lost_go_elsewhere(group: str, hall: list[Contender]) -> None:
    before = wanted_leader(group, hall)
    for lost in hall:
        if lost.name != before:
            assert wanted_leader(group, [one for one in hall if one != lost]) == before


@given(names, halls, contenders)
def test_one_that_comes_takes_groups_to_itself_alone(group: str, hall: list[Contender], new: Contender) -> None:
    grown = [one for one in hall if one.name != new.name]
    if grown and all(one.fit and one.weight for one in (*grown, new)):
        assert wanted_leader(group, [*grown, new]) in (wanted_leader(group, grown), new.name)


def test_many_groups_are_spread_evenly() -> None:
    """3,000 groups on six instances: 500 each, and a deviation of 20; a hundred is five of these."""
    hall = [Contender(f"host-{letter}") for letter in "abcdef"]
    led = Counter(wanted_leader(f"tablets/group-{number}", hall) for number in range(3000))
    assert all(abs(count - 500) < 100 for count in led.values()), led


def test_weights_are_shares() -> None:
    hall = [Contender("small", 1.0), Contender("large", 3.0), Contender("idle", 0.0)]
    led = Counter(wanted_leader(f"g{number}", hall) for number in range(4000))
    assert abs(led["large"] - 3000) < 140
    assert led["idle"] == 0


def test_the_choice_is_the_one_that_other_versions_make() -> None:
    """Instances of two versions must agree, or each would wait for the other: these answers never change."""
    hall = [Contender(name) for name in ("host-a", "host-b", "host-c")]
    assert [wanted_leader(f"shop/g{number}", hall) for number in range(9)] == ANSWERS
    assert wanted_leader("Bücher", [Contender("\udcff"), Contender("ñ")]) == "ñ"
    assert wanted_leader("shop", []) is None


@pytest.mark.parametrize(
    ("term", "waits_for"),
    [
        (Term("a", "a", 1e9, 1e9, "move m1"), None),
        (Term("a", "b", 1e9, 1e9, "move m1"), "move m1 has ended"),
        (Term("a", "b", 1e9, 119.0), "a has led for 120 s"),
        (Term("a", "b", 1e9, 400.0, declined=2), "a has led for 480 s"),
        (Term("a", "b", 29.0, 1e9), "b has been there for 30 s"),
        (Term("a", "b", 30.0, 120.0), ""),
        (Term("a", "b", 30.0, 480.0, declined=2), ""),
    ],
)
def test_a_leader_hands_over_when_nothing_is_in_the_way(term: Term, waits_for: str | None) -> None:
    verdict = hand_over(term, PACE)
    assert (verdict.now, verdict.waits_for) == (waits_for == "", waits_for or "")


def test_all_but_the_wanted_one_stay_back() -> None:
    assert stands("a", "a", 0.0, 5.0)
    assert stands("a", None, 0.0, 5.0)
    assert not stands("a", "b", 4.9, 5.0)
    assert stands("a", "b", 5.0, 5.0)
    assert not stands("a", "a", 9.9, 5.0, resting=True)
    assert stands("a", "b", 10.0, 5.0, resting=True)


@given(st.integers(0, 2000), st.floats(0.1, 10_000.0))
def test_rests_grow_to_an_hour_and_end(failures: int, settle: float) -> None:
    assert rest_after(0, settle) == 0.0
    rest, longer = rest_after(failures, settle), rest_after(failures + 1, settle)
    assert rest <= longer <= max(settle, LONGEST_REST)
    assert settle <= patience(settle, failures) <= patience(settle, failures + 1) <= max(settle, LONGEST_REST)
