"""What a simulated table contains: points in its key space, each with bytes and a part of the load.

A tablet's size and rates are sums over the points in its part of the key space, so splits and merges keep everything,
wherever they cut. Keys of hash tables are positions (see `hash_leaves`), halved so that they fit a signed 64 bits.
"""

from dataclasses import dataclass, field

import numpy as np

from balancer.policies.bundle_view import Floats, Ints
from balancer.policies.hash_leaves import Leaf

POINTS = 2048
STEP = 1000  # distance between a range table's keys
HASH_STEP = (1 << 63) // POINTS
_END = np.iinfo(np.int64).max
_DAY = 86400.0
_BLOCK = 8  # points that have their peak at the same time: a 256th of the keys


@dataclass(slots=True)
class Content:
    """One table's points, in key order."""

    hash: bool
    keys: Ints
    sizes: Floats
    writes: float = 0.0
    reads: float = 0.0
    load: str = "even"
    growth: float = 0.0  # bytes per second
    ranks: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # a fixed shuffle: which is the biggest

    @property
    def gap(self) -> int:
        """How many keys a point stands for."""
        return HASH_STEP if self.hash else STEP

    def weights(self, now: float) -> Floats:
        """Each point's part of the load at a moment; they add up to 1."""
        kind, *numbers = self.load.split(":")
        count = len(self.keys)
        place = np.arange(count) / count
        match kind:
            case "zipf":
                raw = 1.0 / (1.0 + self.ranks[:count]) ** float(numbers[0])
            case "hot":
                raw = _hot(place, float(numbers[0]), float(numbers[1]), float(numbers[2]))
            case "daily":
                raw = _hot(place, float(numbers[0]), float(numbers[1]), (now % _DAY) / _DAY)
            case "peaks":
                raw = _peaks(
                    self.ranks[np.arange(count) // _BLOCK], int(numbers[0]), float(numbers[1]), (now % _DAY) / _DAY
                )
            case "tail":
                raw = np.append(np.full(count - 1, 0.05 / (count - 1)), 0.95)
            case _:
                raw = np.ones(count)
        weights: Floats = raw / raw.sum()
        return weights

    def loads(self, now: float) -> tuple[Floats, Floats]:
        """Rows written and read per second at each point at a moment."""
        weights = self.weights(now)
        return weights * self.writes, weights * self.reads

    def grow(self, seconds: float) -> None:
        """New rows: at the end of a range, everywhere in a hash table."""
        if not self.growth:
            return
        if self.hash:
            self.sizes += self.growth * seconds / len(self.sizes)
        else:
            self.keys = np.append(self.keys, self.keys[-1] + STEP)
            self.sizes = np.append(self.sizes, self.growth * seconds)
            self.ranks = np.append(self.ranks, len(self.ranks))

    def cuts(self, lower: int, upper: int, count: int) -> list[int]:
        """Keys that cut an interval into parts of equal bytes; fewer if there are too few points."""
        first, last = np.searchsorted(self.keys, [lower, upper])
        sums = np.cumsum(self.sizes[first:last])
        wanted = sums[-1] * np.arange(1, count) / count
        at = np.unique(np.clip(np.searchsorted(sums, wanted) + 1, 1, len(sums) - 1))
        return [int(key) for key in self.keys[first + at]]


def make_content(*, hashed: bool, total: float, load: str, data: str, seed: int) -> Content:
    """A table's points. `data`: `even`, or `load` for bytes where the load is."""
    spaced = np.arange(POINTS, dtype=np.int64)
    keys = spaced * (HASH_STEP if hashed else STEP)
    content = Content(hashed, keys, np.full(POINTS, total / POINTS), load=load, ranks=shuffle(POINTS, seed))
    if data == "load":
        content.sizes = content.weights(0.0) * total
    return content


def interval(leaf: Leaf) -> tuple[int, int]:
    """A vbucket's part of the halved positions."""
    start = leaf.start() >> 1
    return start, min(start + (leaf.width() >> 1), _END)


def shuffle(count: int, seed: int) -> Ints:
    """A permutation from a seed, by a small generator of our own: scenarios must replay anywhere."""
    order = list(range(count))
    state = seed & 0xFFFFFFFF
    for at in range(count - 1, 0, -1):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        other = (state >> 8) % (at + 1)
        order[at], order[other] = order[other], order[at]
    return np.array(order, dtype=np.int64)


def _peaks(ranks: Ints, count: int, times: float, at: float) -> Floats:
    """Every point has its peak at one of this many moments of the day; three hours before and after, it is at half."""
    away = np.abs((at - ranks % count / count + 0.5) % 1.0 - 0.5)
    shape: Floats = 1.0 + (times - 1.0) * np.exp2(-((away * 8.0) ** 2))
    return shape


def _hot(place: Floats, share: float, width: float, at: float) -> Floats:
    inside = ((place - at) % 1.0) < width
    count = max(int(inside.sum()), 1)
    rest = max(len(place) - count, 1)
    return np.where(inside, share / count, (1.0 - share) / rest)
