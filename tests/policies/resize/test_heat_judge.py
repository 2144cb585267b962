"""The verdicts on hot tablets, and the evidence each of them carries."""

from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.policies.keyspace.hash_leaves import MAX_MODULUS, Leaf, uncovered
from balancer.policies.keyspace.keys import HIGHEST, KeyType, decode_bound, decode_key, encode_key
from balancer.policies.options import HeatOptions
from balancer.policies.resize.heat_judge import Facts, HeatWord, Requests, best_cut, judge
from balancer.policies.view import KeySamples, SampleSource
from tests.support.samples import TYPES, encoded, positions, samples, scans

pytestmark = pytest.mark.quick

OPTIONS = HeatOptions()
WHOLE = Facts(7, TYPES)
# 100 to 200 pairs of a key up to 60 and up to 5 more; drawn one by one they would take most of the test's time.
PAIRS = st.binary(min_size=200, max_size=400).map(
    lambda drawn: [(low % 61, more % 6) for low, more in zip(drawn[::2], drawn[1::2], strict=False)]
)


def test_an_even_load_is_cut_in_the_middle() -> None:
    verdict = judge(WHOLE, samples(range(1000)), OPTIONS)
    assert verdict.word is HeatWord.SPLIT
    assert verdict.cuts == encoded(500)
    assert verdict.evidence.figures == pytest.approx({"left": 0.5, "right": 0.5, "crossing": 0.0})
    assert "50 % of the load is before 500" in verdict.reason
    assert "1000 client samples" in verdict.reason


def test_weights_count() -> None:
    verdict = judge(WHOLE, samples(range(200), [3.0] * 100 + [1.0] * 100), OPTIONS)
    assert verdict.cuts == encoded(67)


@pytest.mark.parametrize(("before", "cut"), [(44, 50), (36, 51)])
def test_a_heavy_key_at_the_median_goes_to_the_side_where_it_does_less_harm(before: int, cut: int) -> None:
    numbers = [*range(before), *[50] * 20, *range(51, 131 - before)]
    assert judge(WHOLE, samples(numbers), OPTIONS).cuts == encoded(cut)


def test_a_load_is_cut_into_as_many_parts_as_are_wanted() -> None:
    verdict = judge(replace(WHOLE, wanted=0.15), samples(range(700)), OPTIONS)
    assert verdict.cuts == encoded(100, 200, 300, 400, 500, 600)
    assert verdict.shares == pytest.approx((1 / 7,) * 7)
    assert "7 parts of 14 % of the load at most" in verdict.reason


def test_parts_rest_on_ten_samples_each_and_are_sixteen_at_most() -> None:
    assert len(judge(replace(WHOLE, wanted=0.01), samples(range(120)), OPTIONS).cuts) == 11
    assert len(judge(replace(WHOLE, wanted=0.01), samples(range(1200)), OPTIONS).cuts) == 15


def test_where_one_key_is_too_heavy_for_many_parts_one_cut_must_do() -> None:
    numbers = [*range(300), *[150] * 90]  # 23 %: no hot key, but more than two of ten parts
    assert len(judge(replace(WHOLE, wanted=0.1), samples(numbers), OPTIONS).cuts) == 1
    assert len(judge(replace(WHOLE, wanted=0.3), samples(numbers), OPTIONS).cuts) == 3


def test_scans_are_not_cut_into_many_parts() -> None:
    long = scans([(start, start + 300) for start in range(0, 1000, 2)])
    verdict = judge(replace(WHOLE, wanted=0.1), long, OPTIONS)
    assert len(verdict.cuts) == 1
    assert sum(verdict.shares) == pytest.approx(1.0 + verdict.evidence.figures["crossing"])


@given(PAIRS, st.floats(0.05, 0.5))
def test_shares_of_parts_are_those_of_a_slow_count(pairs: list[tuple[int, int]], wanted: float) -> None:
    found = judge(replace(WHOLE, wanted=wanted), scans([(low, low + more) for low, more in pairs]), OPTIONS)
    if found.cuts:
        edges = [-1, *(int(str(decode_key(TYPES, cut)[0])) for cut in found.cuts), 1000]
        slow = [sum(low < high and low + more >= start for low, more in pairs) for start, high in pairwise(edges)]
        assert found.shares == pytest.approx([count / len(pairs) for count in slow])


def test_too_few_samples_decide_nothing() -> None:
    for given_samples in (None, samples(range(99))):
        verdict = judge(WHOLE, given_samples, OPTIONS)
        assert verdict.word is HeatWord.TOO_FEW
        assert not verdict.cuts
        assert "100 are needed" in verdict.reason
    assert judge(WHOLE, samples(range(100)), OPTIONS).word is HeatWord.SPLIT


def test_samples_outside_the_tablet_do_not_count() -> None:
    lower, upper = encoded(1000, 2000)
    facts = Facts(7, TYPES, lower, upper)
    verdict = judge(facts, samples([*range(900), *range(1000, 1099), *range(2000, 2900)]), OPTIONS)
    assert verdict.word is HeatWord.TOO_FEW
    assert verdict.evidence.samples == 99


def test_a_key_with_a_quarter_of_the_load_is_named_and_isolated() -> None:
    verdict = judge(WHOLE, samples([*range(300), *[150] * 99]), OPTIONS)
    assert verdict.word is HeatWord.HOT_KEY
    assert verdict.key == encoded(150)[0]
    assert verdict.cuts == encoded(150, 151)
    assert "key 150 has 25 %" in verdict.reason
    assert verdict.evidence.figures["key"] == pytest.approx(100 / 399)


def test_a_key_below_a_quarter_is_not_called_hot() -> None:
    assert judge(WHOLE, samples([*range(302), *[150] * 99]), OPTIONS).word is HeatWord.SPLIT


def test_a_hot_key_at_the_edge_needs_one_cut() -> None:
    lower, upper = encoded(150, 300)
    hot = [*range(150, 300), *[150] * 100]
    assert judge(Facts(7, TYPES, lower, upper), samples(hot), OPTIONS).cuts == encoded(151)
    hot = [*range(150, 300), *[299] * 100]
    assert judge(Facts(7, TYPES, lower, upper), samples(hot), OPTIONS).cuts == encoded(299)


def test_a_hot_key_that_has_a_tablet_of_its_own_cannot_be_split() -> None:
    lower, upper = encoded(150, 151)
    verdict = judge(Facts(7, TYPES, lower, upper), samples([150] * 200), OPTIONS)
    assert verdict.word is HeatWord.HOT_KEY
    assert not verdict.cuts
    assert "of its own already" in verdict.reason


def test_a_hot_numeric_is_cut_off_at_the_next_sampled_key() -> None:
    types = (KeyType.NUMERIC,)
    values = [Decimal(number) for number in [*range(100), *[50] * 60]]
    keys = tuple(encode_key(types, (value,)) for value in values)
    verdict = judge(Facts(7, types), KeySamples(SampleSource.CLIENTS, keys, (1.0,) * len(keys)), OPTIONS)
    assert verdict.cuts == tuple(encode_key(types, (Decimal(number),)) for number in (50, 51))
    assert "no next value" in verdict.reason


def test_a_hot_key_of_several_columns_is_isolated_by_its_last_column() -> None:
    types = (KeyType.TEXT, KeyType.BIGINT)
    values = [*[("a", number) for number in range(100)], *[("a", (1 << 63) - 1)] * 60, ("b", 0)]
    keys = tuple(encode_key(types, value) for value in values)
    verdict = judge(Facts(7, types), KeySamples(SampleSource.CLIENTS, keys, (1.0,) * len(keys)), OPTIONS)
    assert [decode_bound(types, cut) for cut in verdict.cuts] == [(("a", (1 << 63) - 1), False), (("a",), True)]


def test_writes_at_the_upper_end_are_a_moving_front() -> None:
    rows = encoded(*range(0, 10_000, 100))
    verdict = judge(WHOLE, samples([*range(9_990, 10_190), *range(0, 9000, 200)], row_keys=rows), OPTIONS)
    assert verdict.word is HeatWord.FRONT
    assert verdict.front == -1
    assert verdict.cuts == encoded(9990)
    assert verdict.evidence.figures["front"] == pytest.approx(200 / 245)
    assert "at the upper end, from 9990" in verdict.reason


def test_writes_at_the_lower_end_are_a_front_too() -> None:
    rows = encoded(*range(0, 10_000, 100))
    verdict = judge(WHOLE, samples(range(-150, 50), row_keys=rows), OPTIONS)
    assert (verdict.word, verdict.front, verdict.cuts) == (HeatWord.FRONT, 0, encoded(50))


def test_without_a_histogram_the_end_is_found_between_the_bounds() -> None:
    facts = Facts(7, TYPES, encoded(0)[0])
    verdict = judge(facts, samples(range(100_000, 100_200)), OPTIONS)
    assert (verdict.word, verdict.cuts) == (HeatWord.FRONT, encoded(100_000))


def test_a_popular_end_is_no_moving_front() -> None:
    rows = encoded(*range(0, 10_000, 100))
    numbers = [number for number in range(9_950, 9_990) for _ in range(5)]
    assert judge(WHOLE, samples(numbers, row_keys=rows), OPTIONS).word is HeatWord.SPLIT


def test_reads_do_not_make_a_front() -> None:
    rows = encoded(*range(0, 10_000, 100))
    numbers = [*range(9_800, 10_000), *range(0, 9800, 98)]
    writes = (False,) * 200 + (True,) * 100
    assert judge(WHOLE, samples(numbers, row_keys=rows, writes=writes), OPTIONS).word is HeatWord.SPLIT


def test_less_than_the_share_of_writes_is_no_front() -> None:
    rows = encoded(*range(0, 10_000, 100))
    numbers = [*range(9_800, 9_958), *range(0, 8_000, 200)]
    assert judge(WHOLE, samples(numbers, row_keys=rows), OPTIONS).word is HeatWord.SPLIT


def test_scans_over_everything_cannot_be_divided() -> None:
    verdict = judge(WHOLE, scans([(number, 10_000) for number in range(200)]), OPTIONS)
    assert verdict.word is HeatWord.SCAN
    assert not verdict.cuts
    assert verdict.evidence.figures["crossing"] > 0.4


def test_scans_from_one_key_have_no_cut_at_all() -> None:
    assert judge(WHOLE, scans([(0, 1000)] * 200), OPTIONS).word is HeatWord.SCAN


def test_a_cut_between_scans_is_better_than_one_through_them() -> None:
    blocks = [(start, start + 99) for start in range(0, 1000, 100) for _ in range(20)]
    inner = [(start + 5, start + 90) for start in range(0, 1000, 100) for _ in range(10)]
    verdict = judge(WHOLE, scans([*blocks, *inner]), OPTIONS)
    assert verdict.word is HeatWord.SPLIT
    assert verdict.cuts == encoded(500)
    assert verdict.evidence.figures["crossing"] == 0


def test_confidence_grows_with_the_samples_and_never_beyond_their_source() -> None:
    few = judge(WHOLE, samples(range(100), confidence=0.5), OPTIONS).evidence
    many = judge(WHOLE, samples(range(10_000), confidence=0.5), OPTIONS).evidence
    assert 0 < few.confidence < many.confidence < 0.5


LEAF = Leaf(8, 3)
HASHED = Facts(7, TYPES, leaf=LEAF)


def test_a_hot_vbucket_is_split_into_its_children() -> None:
    verdict = judge(HASHED, positions(LEAF, []), OPTIONS)
    assert verdict.word is HeatWord.SPLIT
    assert verdict.parts == LEAF.children()
    assert verdict.evidence.figures["hottest"] == pytest.approx(0.5)


@pytest.mark.parametrize(("wanted", "parts"), [(0.5, 2), (0.3, 4), (0.21, 4), (0.11, 8), (0.01, 16)])
def test_a_vbucket_becomes_as_many_parts_as_are_wanted(wanted: float, parts: int) -> None:
    verdict = judge(replace(HASHED, wanted=wanted), positions(LEAF, []), OPTIONS)
    assert (len(verdict.parts), len(verdict.shares)) == (parts, parts)


def test_a_vbucket_is_split_no_further_than_it_helps() -> None:
    """A fifth of the load is on one key: no leaf with it has less."""
    verdict = judge(replace(HASHED, wanted=0.05), positions(LEAF, [0.2]), OPTIONS)
    assert (verdict.word, len(verdict.parts)) == (HeatWord.SPLIT, 8)


def test_a_vbucket_is_split_towards_a_hot_key_while_others_can_be_taken_away() -> None:
    verdict = judge(HASHED, positions(LEAF, [0.6]), OPTIONS)
    assert verdict.word is HeatWord.HOT_KEY
    assert len(verdict.parts) == 4
    assert verdict.evidence.figures["hottest"] == pytest.approx(0.7, abs=0.02)


def test_a_vbucket_with_nothing_but_a_hot_key_is_left_and_the_key_is_named() -> None:
    verdict = judge(HASHED, positions(LEAF, [0.9]), OPTIONS)
    assert verdict.word is HeatWord.HOT_KEY
    assert not verdict.parts
    assert verdict.key is not None
    assert f"position 0x{verdict.key.hex()}" in verdict.reason


def test_a_vbucket_of_the_last_modulus_is_left() -> None:
    leaf = Leaf(MAX_MODULUS, MAX_MODULUS - 1)
    verdict = judge(Facts(7, TYPES, leaf=leaf), positions(leaf, []), OPTIONS)
    assert not verdict.parts


def test_the_last_vbucket_reaches_to_the_last_position() -> None:
    leaf = Leaf(2, 1)
    last = ((1 << 64) - 1).to_bytes(8, "big")
    requests = KeySamples(SampleSource.CLIENTS, (last,) * 100, (1.0,) * 100)
    assert judge(Facts(7, TYPES, leaf=leaf), requests, OPTIONS).evidence.samples == 100


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10), st.floats(0.01, 10)), min_size=2, max_size=60))
def test_the_best_cut_is_the_best_of_all(requests: list[tuple[int, int, float]]) -> None:
    """Against a slow count of every cut."""
    firsts = [first for first, _, _ in requests]
    lasts = [first + length for first, length, _ in requests]
    given_samples = samples(firsts, [weight for _, _, weight in requests], spans=encoded(*lasts))
    total = sum(weight for _, _, weight in requests)
    hotter = []
    for cut in sorted(set(firsts))[1:]:
        left = sum(weight for first, length, weight in requests if first + length < cut)
        right = sum(weight for first, _, weight in requests if first >= cut)
        hotter.append((total - min(left, right)) / total)
    cuts = Requests(given_samples, b"").cuts()
    assert [cut.hotter for cut in cuts] == pytest.approx(hotter)
    assert not cuts or best_cut(cuts).hotter == pytest.approx(min(hotter))


@settings(max_examples=30)
@given(
    st.lists(st.floats(0, 0.5), max_size=2).filter(lambda shares: sum(shares) <= 1), st.sampled_from([1, 2, 8, 1024])
)
def test_parts_of_a_vbucket_cover_it(shares: list[float], modulus: int) -> None:
    leaf = Leaf(modulus, modulus - 1)
    verdict = judge(Facts(7, TYPES, leaf=leaf), positions(leaf, shares), OPTIONS)
    if verdict.parts:
        others = [other for other in (Leaf(modulus, remainder) for remainder in range(modulus)) if other != leaf]
        assert uncovered([*verdict.parts, *others]) is None


@settings(max_examples=30)
@given(st.lists(st.integers(-1000, 1000), min_size=100, max_size=150), st.integers(-500, 0), st.integers(1, 500))
def test_cuts_lie_inside_the_tablet_in_order(numbers: list[int], low: int, high: int) -> None:
    lower, upper = encoded(low, high)
    cuts = judge(Facts(7, TYPES, lower, upper), samples(numbers), HeatOptions(min_samples=10)).cuts
    assert list(cuts) == sorted(set(cuts))
    assert all(lower < cut < upper for cut in cuts)
    assert all(cut < HIGHEST for cut in judge(WHOLE, samples(numbers), OPTIONS).cuts)
