"""Key samples in order: how heavy each key is, and where a cut divides the load best.

Called by `heat_judge`. Keys are bytes that compare: encoded keys of a range table or positions of a hash table.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from balancer.policies.bundle_view import KeySamples
from balancer.policies.keys import HIGHEST


class Request(NamedTuple):
    """One sample: the keys from `first` to `last`, both included."""

    first: bytes
    last: bytes
    weight: float
    write: bool


class Cut(NamedTuple):
    """A place to cut, and what each side would carry, as shares of the whole. Keys from `key` on go to the right."""

    key: bytes
    left: float
    right: float
    crossing: float

    @property
    def hotter(self) -> float:
        """Share of the heavier side; a request that crosses the cut costs both sides."""
        return max(self.left, self.right) + self.crossing


class Requests:
    """The samples of one tablet that lie inside it, in the order of their first keys."""

    def __init__(self, samples: KeySamples, lower: bytes, upper: bytes = HIGHEST) -> None:
        lasts = samples.spans or samples.keys
        writes = samples.writes or (True,) * len(samples.keys)
        given = zip(samples.keys, lasts, samples.weights, writes, strict=True)
        self.requests = sorted(
            (
                Request(first, max(first, last), weight, write)
                for first, last, weight, write in given
                if lower <= first < upper and weight > 0
            ),
            key=lambda request: request.first,
        )
        self.lower, self.upper = lower, upper
        self.total = sum(request.weight for request in self.requests)

    def __len__(self) -> int:
        return len(self.requests)

    def key_shares(self) -> dict[bytes, float]:
        """Key → share of the load on that single key. Requests over a range count for no key."""
        weights: dict[bytes, float] = {}
        for request in self.requests:
            if request.first == request.last:
                weights[request.first] = weights.get(request.first, 0.0) + request.weight
        return {key: weight / self.total for key, weight in weights.items()}

    def following(self, key: bytes) -> bytes | None:
        """The next sampled key."""
        return next((request.first for request in self.requests if request.first > key), None)

    def cuts(self) -> list[Cut]:
        """Every place between two sampled keys, in order."""
        starts = sorted({request.first for request in self.requests})
        firsts = _Weights([(request.first, request.weight) for request in self.requests])
        lasts = _Weights(sorted((request.last, request.weight) for request in self.requests))
        found = []
        for key in starts[1:]:
            left, right = lasts.below(key) / self.total, 1.0 - firsts.below(key) / self.total
            found.append(Cut(key, left, right, max(0.0, 1.0 - left - right)))
        return found

    def part_shares(self, cuts: Sequence[bytes]) -> tuple[float, ...]:
        """What each part would carry, as shares of the whole, if all were cut at these keys, in order."""
        shares = [0.0] * (len(cuts) + 1)
        for request in self.requests:
            for part in range(bisect_right(cuts, request.first), bisect_right(cuts, request.last) + 1):
                shares[part] += request.weight / self.total
        return tuple(shares)


def best_cut(cuts: Sequence[Cut]) -> Cut:
    """The cut whose hotter side is coolest; among equals the one with the fewest crossing requests.

    That is the weighted median where every request has one key. A heavy key at the median goes to the side where it
    does less harm, and a cut through many scans must win more by balance than it loses by doubling them.
    """
    return min(cuts, key=lambda cut: (cut.hotter, cut.crossing, cut.key))


def quantile_cuts(cuts: Sequence[Cut], parts: int) -> tuple[bytes, ...]:
    """The keys that cut the load into this many parts of about the same weight; fewer if heavy keys are in the way."""
    middles = [
        (1.0 + cut.left - cut.right) / 2 for cut in cuts
    ]  # ascending: how much lies before, half of what crosses
    found = []
    for quantile in (part / parts for part in range(1, parts)):
        at = bisect_left(middles, quantile)
        near = [place for place in (at - 1, at) if 0 <= place < len(cuts)]
        found.append(cuts[min(near, key=lambda place: abs(middles[place] - quantile))].key)
    return tuple(sorted(set(found)))


class _Weights:
    """Weights of ascending keys, summed up once."""

    def __init__(self, pairs: Sequence[tuple[bytes, float]]) -> None:
        self._keys = [key for key, _ in pairs]
        self._sums = [0.0, *accumulate(weight for _, weight in pairs)]

    def below(self, key: bytes) -> float:
        """The weight of all keys less than this one."""
        return self._sums[bisect_left(self._keys, key)]
