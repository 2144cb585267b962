"""Rates follow the formula, survive resets and moves, and forget what no longer exists."""

from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.polling.rates import COUNTERS, INDEX, WINDOWS, CounterSample, Heir, Rates, advance, first_rates

pytestmark = pytest.mark.quick


def sample(at: float, counters: dict[int, float], source: int = 1) -> CounterSample:
    """Tablets whose counters all stand at the same number."""
    ids = sorted(counters)
    return CounterSample(
        np.array(ids, np.int64),
        np.full(len(ids), source, np.int64),
        np.full(len(ids), at),
        np.array([[counters[i] for i in ids]] * len(COUNTERS), np.float64),
        np.array([counters[i] * 8 for i in ids], np.float64),
        np.array([counters[i] for i in ids], np.float64),
    )


def run(*samples: CounterSample, known: tuple[int, ...] = (1, 2)) -> Rates:
    rates = first_rates()
    for one in samples:
        rates = advance(rates, one, np.array(known, np.int64))
    return rates


def test_the_first_interval_stands_for_itself_and_later_ones_are_averaged() -> None:
    first = run(sample(0, {1: 100}), sample(10, {1: 200}))
    assert first.rates[INDEX, :, 0] == pytest.approx([10.0] * len(WINDOWS))
    rates = run(sample(0, {1: 100}), sample(10, {1: 200}), sample(20, {1: 500}))
    for number, window in enumerate(WINDOWS):
        k = exp(-10 / (window / 2))
        assert rates.rates[INDEX, number, 0] == pytest.approx((30 * (1 - k) + 10 * k * (1 - k)) / (1 - k * k))
    assert rates.write_rate(0)[0] == pytest.approx(3 * rates.rates[INDEX, 0, 0])
    assert rates.read_rate(0)[0] == pytest.approx(2 * rates.rates[INDEX, 0, 0])


def test_after_a_window_the_rate_is_the_plain_exponential_average() -> None:
    samples = [sample(at, {1: at * 10.0}) for at in range(0, 36_000, 60)]
    rates = run(*samples)
    after = advance(rates, sample(36_000, {1: 35_940 * 10.0 + 60 * 30}), np.array([1], np.int64))
    for number, window in enumerate(WINDOWS):
        k = exp(-60 / (window / 2))
        assert after.rates[INDEX, number, 0] == pytest.approx(30 * (1 - k) + 10 * k, rel=1e-4)


def test_a_pause_at_the_start_does_not_outweigh_what_follows() -> None:
    idle = [sample(0, {1: 0}), sample(2, {1: 0})]
    busy = [sample(2 + 2 * n, {1: 200.0 * n}) for n in range(1, 20)]
    rates = run(*idle, *busy)
    assert rates.rates[INDEX, :, 0].min() > 90, "nineteen intervals of 100 a second, and one of none"


def test_one_sample_is_no_rate() -> None:
    rates = run(sample(0, {1: 100}))
    assert not rates.measured[0]
    assert rates.write_rate()[0] == 0
    assert rates.last.sizes[0] == 800


def test_a_counter_that_went_down_was_reset() -> None:
    rates = run(sample(0, {1: 100}), sample(10, {1: 50}))
    assert rates.rates[INDEX, 0, 0] == 5


def test_a_moved_tablet_keeps_its_rates_and_starts_a_new_baseline() -> None:
    rates = run(sample(0, {1: 100}), sample(10, {1: 200}), sample(20, {1: 1_000_000}, source=2))
    assert rates.rates[INDEX, 0, 0] == 10
    after = advance(rates, sample(30, {1: 1_000_200}, source=2), np.array([1], np.int64))
    assert 10 < after.rates[INDEX, 0, 0] < 20


def test_a_silent_node_keeps_what_was_known_and_its_gap_is_averaged_over() -> None:
    rates = run(sample(0, {1: 0, 2: 0}), sample(10, {1: 100, 2: 100}), sample(20, {2: 200}))
    assert list(rates.ids) == [1, 2]
    assert rates.last.sizes[0] == 800
    assert rates.rates[INDEX, 0, 0] == 10
    back = advance(rates, sample(30, {1: 300, 2: 300}), np.array([1, 2], np.int64))
    assert back.rates[INDEX, 0, 0] == pytest.approx(10)


def test_what_a_split_made_has_its_parents_rates_until_it_is_measured() -> None:
    rates = run(sample(0, {1: 0}), sample(10, {1: 100}), known=(1,))
    heirs = {2: Heir((1,), 2), 3: Heir((1,), 2)}
    children = advance(rates, sample(20, {2: 0, 3: 0}), np.array([2, 3], np.int64), heirs)
    assert children.rates[INDEX, 0] == pytest.approx([5, 5])
    measured = advance(children, sample(30, {2: 80, 3: 20}), np.array([2, 3], np.int64), heirs)
    assert measured.rates[INDEX, 0] == pytest.approx([8, 2], rel=1e-3)


def test_what_no_longer_exists_is_forgotten_and_unknown_partitions_do_not_count() -> None:
    rates = run(sample(0, {1: 0, 2: 0, 9: 5}), known=(1, 2))
    assert list(rates.ids) == [1, 2]
    assert list(advance(rates, sample(10, {2: 5}), np.array([2], np.int64)).ids) == [2]


def test_a_clock_that_stands_still_changes_nothing() -> None:
    rates = run(sample(0, {1: 0}), sample(10, {1: 100}), sample(10, {1: 200}))
    assert rates.rates[INDEX, 0, 0] == 10


@given(st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 10_000)), min_size=2, max_size=20))
def test_an_average_stays_within_what_was_measured(steps: list[tuple[float, int]]) -> None:
    at, count = 0.0, 0.0
    samples, measured = [sample(at, {1: count})], []
    for seconds, increase in steps:
        at, count = at + seconds, count + increase
        samples.append(sample(at, {1: count}))
        measured.append(increase / seconds)
    rates = run(*samples).rates[INDEX, :, 0]
    assert min(measured) * 0.999 - 1e-6 <= rates.min()
    assert rates.max() <= max(measured) * 1.001 + 1e-6


def test_a_poll_of_all_tablets_comes_to_the_same_as_one_that_lacks_some() -> None:
    """All at once is a shorter way through: neither the answer nor what was known before may differ."""
    ids = np.arange(1, 51)

    def polled(at: float, *, also: bool) -> CounterSample:
        seen = np.append(ids, 99) if also else ids
        counters = np.random.default_rng(5).lognormal(0, 1, (len(COUNTERS), 51))[:, : len(seen)] * at
        flat = np.ones(len(seen))
        return CounterSample(seen, seen, flat * at, counters, flat, flat)

    whole, partly = first_rates(), first_rates()
    for number, at in enumerate((10.0, 25.0, 31.0, 60.0)):
        before = whole.rates.copy()
        former = whole
        whole = advance(whole, polled(at, also=False), ids)
        partly = advance(partly, polled(at, also=number % 2 == 0), np.append(ids, 99))
        assert np.array_equal(former.rates, before), "a value is not written to"
    kept = np.isin(partly.ids, ids)
    assert np.array_equal(partly.rates[..., kept], whole.rates)
    assert np.array_equal(partly.seen[:, kept], whole.seen)
