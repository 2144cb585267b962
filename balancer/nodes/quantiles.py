"""Cuts through weighted keys. Pure arithmetic on what `key_samples` has read."""

from collections.abc import Sequence
from typing import NamedTuple


class Point(NamedTuple):
    """An encoded key and how much of the tablet it stands for."""

    key: bytes
    weight: float


def cuts(points: Sequence[Point], parts: int) -> tuple[bytes, ...]:
    """Keys that cut sorted points into parts of equal weight; never the first key, never the same one twice."""
    total = sum(point.weight for point in points)
    found: list[bytes] = []
    reached = 0.0
    wanted = 1
    for point in points:
        # A cut is the first key of the part above it, so it comes before its own weight is counted.
        while wanted < parts and reached >= total * wanted / parts:
            wanted += 1
            if point.key > points[0].key and (not found or point.key > found[-1]):
                found.append(point.key)
        reached += point.weight
    return tuple(found)
