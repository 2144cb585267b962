"""Key samples for the tests of heat, as plain numbers."""

from collections.abc import Sequence
from typing import Any

from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import KeyType, encode_key
from balancer.policies.view import KeySamples, SampleSource

TYPES = (KeyType.BIGINT,)


def encoded(*numbers: int) -> tuple[bytes, ...]:
    """Keys of one bigint column."""
    return tuple(encode_key(TYPES, (number,)) for number in numbers)


def samples(numbers: Sequence[int], weights: Sequence[float] | None = None, **fields: Any) -> KeySamples:
    """Requests to single bigint keys, as clients report them."""
    keys = encoded(*numbers)
    return KeySamples(SampleSource.CLIENTS, keys, tuple(weights or [1.0] * len(keys)), **fields)


def scans(pairs: Sequence[tuple[int, int]]) -> KeySamples:
    """Requests from a first to a last key."""
    firsts, lasts = zip(*pairs, strict=True)
    return samples(firsts, spans=encoded(*lasts))


def positions(leaf: Leaf, shares: Sequence[float], count: int = 400) -> KeySamples:
    """Requests to a vbucket: the shares fall on single keys, the rest is spread evenly over its positions."""
    keys, weights = [], []
    for place, share in enumerate(shares):
        keys.append(leaf.start() + leaf.width() * (3 * place + 1) // 31)
        weights.append(share * count)
    rest = max(0.0, 1 - sum(shares))
    keys += [leaf.start() + leaf.width() * (2 * place + 1) // (2 * count) for place in range(count)]
    weights += [rest] * count
    return KeySamples(SampleSource.CLIENTS, tuple(key.to_bytes(8, "big") for key in keys), tuple(weights))
