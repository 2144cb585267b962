"""How evenly the split key divides the load: Zipf(0.99) requests, as CockroachDB measures its own splitter.

The difference between left and right is counted over the requests themselves and over as many fresh ones of the same
distribution. Keys are as popular as they are small (`by rank`, what CockroachDB publishes), or the popular ones lie
anywhere (`scattered`).
"""

import time

import numpy as np
import numpy.typing as npt
import pytest

from balancer.policies.keyspace.keys import KeyType, decode_key, encode_key
from balancer.policies.options import HeatOptions
from balancer.policies.resize.heat_judge import Facts, HeatWord, judge
from balancer.policies.view import KeySamples, SampleSource
from tests.support.tables import show_table

pytestmark = pytest.mark.bench

SEED = 99
RUNS = 100
REQUESTS = 10_000
EXPONENT = 0.99
TYPES = (KeyType.BIGINT,)
PREFIX = encode_key(TYPES, (0,))[:1]
Numbers = npt.NDArray[np.int64]


class Zipf:
    """Ranks with probability 1 / rank ** 0.99: exact for the first million, by the integral beyond it."""

    HEAD = 1_000_000

    def __init__(self, space: int) -> None:
        self.space = space
        head = np.arange(1, min(space, self.HEAD) + 1, dtype=np.float64) ** -EXPONENT
        self._sums = np.cumsum(head)
        power = 1 - EXPONENT
        tail = (space**power - self.HEAD**power) / power if space > self.HEAD else 0.0
        self._total = float(self._sums[-1]) + tail

    def draw(self, chance: np.random.Generator, count: int) -> Numbers:
        wanted = chance.random(count) * self._total
        ranks = np.searchsorted(self._sums, wanted).astype(np.float64)
        power, beyond = 1 - EXPONENT, wanted - self._sums[-1]
        tail = np.maximum(beyond, 0) * power + float(len(self._sums)) ** power
        return np.where(beyond > 0, tail ** (1 / power), ranks).astype(np.int64)


def _scattered(numbers: Numbers) -> Numbers:
    """Ranks at places that have nothing to do with their popularity."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed ^ (mixed >> np.uint64(29))) >> np.uint64(1)).astype(np.int64)


def _split(numbers: Numbers) -> tuple[int, float]:
    """The key of the cut, and the seconds it took to find it."""
    stored = (numbers.astype(np.uint64) ^ np.uint64(1 << 63)).astype(">u8").tobytes()
    keys = tuple(PREFIX + stored[at : at + 8] for at in range(0, len(stored), 8))
    samples = KeySamples(SampleSource.CLIENTS, keys, (1.0,) * len(keys))
    began = time.perf_counter()
    verdict = judge(Facts(1, TYPES), samples, HeatOptions())
    taken = time.perf_counter() - began
    assert verdict.word is HeatWord.SPLIT
    (number,) = decode_key(TYPES, verdict.cuts[0])
    assert isinstance(number, int)
    return number, taken


def _difference(numbers: Numbers, cut: int) -> float:
    left = float((numbers < cut).mean())
    return abs(2 * left - 1)


def _measure(space: int, scattered: bool) -> tuple[object, ...]:
    zipf, same, fresh, seconds = Zipf(space), [], [], 0.0
    for run in range(RUNS):
        chance = np.random.default_rng([SEED, space, run])
        requests, later = zipf.draw(chance, REQUESTS), zipf.draw(chance, REQUESTS)
        if scattered:
            requests, later = _scattered(requests), _scattered(later)
        cut, taken = _split(requests)
        seconds += taken
        same.append(100 * _difference(requests, cut))
        fresh.append(100 * _difference(later, cut))
    name = f"{space:,} keys, {'scattered' if scattered else 'by rank'}"
    return name, np.mean(same), max(same), np.mean(fresh), max(fresh), 1000 * seconds / RUNS


def test_split_points_of_zipf_requests() -> None:
    rows: list[tuple[object, ...]] = [
        tuple(float(figure) if isinstance(figure, np.floating) else figure for figure in _measure(space, scattered))
        for scattered in (False, True)
        for space in (10**10, 10**5, 1000)
    ]
    rows.append(("CockroachDB publishes", "3.3 to 8.0", "28", "", "", ""))
    columns = ("left/right difference, %", "average", "worst", "average, fresh", "worst, fresh", "ms per judgement")
    show_table(
        f"split points, Zipf({EXPONENT}), {REQUESTS} requests, {RUNS} runs (seed {SEED})",
        columns,
        rows,
    )
