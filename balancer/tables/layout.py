"""The tablets of a new table: how its key space is cut, and which node gets which. Pure.

Neighbours go to the same node as far as possible, because only neighbours on one node can be merged later.
"""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

from balancer.errors import UserError
from balancer.nodes.bounds import KeyRange, Part
from balancer.policies.hash_leaves import Leaf
from balancer.policies.key_text import parse_value
from balancer.policies.keys import HIGHEST, LOWEST, KeyMismatch, KeyType, KeyValue, encode_key


def hash_parts(count: int) -> list[Part]:
    """`count` equal leaves in position order."""
    leaves = sorted((Leaf(count, remainder) for remainder in range(count)), key=Leaf.start)
    return [*leaves]


def range_parts(types: Sequence[KeyType], splits: Sequence[Any]) -> list[Part]:
    """The ranges between the split keys; each split is a value, or a list of values for a longer key."""
    bounds = [LOWEST, *(_encode_split(types, split) for split in splits), HIGHEST]
    for (before, after), split in zip(pairwise(bounds), [*splits, None], strict=True):
        if before >= after:
            raise UserError(f"splits: {split!r} does not come after the one before it")
    return [KeyRange(lower, upper) for lower, upper in pairwise(bounds)]


def spread(parts: Sequence[Part], weights: Mapping[str, float]) -> list[str]:
    """A node for each part, in blocks in key order, as many as its weight's share."""
    total = sum(weights.values())
    reached = 0.0
    result: list[str] = []
    for node, weight in weights.items():
        reached += weight
        result += [node] * (round(len(parts) * reached / total) - len(result))
    return result


def _encode_split(types: Sequence[KeyType], split: Any) -> bytes:
    values = split if isinstance(split, list | tuple) else [split]
    try:
        key = [_to_key(kind, value) for kind, value in zip(types, values, strict=False)]
        return encode_key(types, key if len(values) <= len(types) else values, prefix=True)
    except KeyMismatch as error:
        raise UserError(f"splits: {split!r} is not a key of this table: {error}") from error


def _to_key(kind: KeyType, value: Any) -> KeyValue:
    """A value of a TOML file as a key; dates and numbers may also be written as text."""
    if isinstance(value, str):
        return parse_value(kind, value)
    if kind is KeyType.NUMERIC and isinstance(value, float):
        return Decimal(str(value))
    if isinstance(value, int | date | datetime) and not isinstance(value, bool):
        return value
    raise KeyMismatch(f"{value!r} is not a value of type {kind}")
