"""Bundles for the policies' tests, written down briefly: tables as lists of tablets, nodes by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from balancer.policies.bundle_view import BundleView, NodeView, TabletColumns, TableView
from balancer.policies.hash_leaves import Leaf
from balancer.policies.keys import KeyType, encode_key

NOW = 1_700_000_000.0


@dataclass
class Tablets:
    """One table's tablets in key order. What is a single value holds for all of them."""

    sizes: Sequence[float]
    leaves: Sequence[Leaf] | None = None  # a hash table
    nodes: int | Sequence[int] = 0
    writes: float | Sequence[float] = 0.0
    reads: float | Sequence[float] = 0.0
    lowers: Sequence[bytes] | None = None  # a range table's bounds; else the keys 0, 100, 200 …
    key_types: tuple[KeyType, ...] = (KeyType.BIGINT,)


def leaves(modulus: int) -> list[Leaf]:
    """All vbuckets of one modulus, in the order of their positions."""
    return sorted((Leaf(modulus, remainder) for remainder in range(modulus)), key=Leaf.start)


def bundle(tables: Mapping[str, Tablets], nodes: Sequence[NodeView | str] = ("a", "b"), **fields: Any) -> BundleView:
    """A bundle of these tables; tablets are numbered from 1 in the order in which they are written."""
    views, at = [], 0
    for name, tablets in tables.items():
        last = at + len(tablets.sizes)
        views.append(TableView(name, tablets.leaves is not None, tablets.key_types, at, last))
        at = last
    known = tuple(node if isinstance(node, NodeView) else NodeView(node) for node in nodes)
    return BundleView("shop", fields.pop("now", NOW), known, tuple(views), _columns(list(tables.values())), **fields)


def _columns(tables: list[Tablets]) -> TabletColumns:
    total = sum(len(tablets.sizes) for tablets in tables)
    return TabletColumns(
        ids=np.arange(1, total + 1),
        node=_joined(tables, "nodes", np.int64),
        sizes=_joined(tables, "sizes", np.float64),
        memory=np.zeros(total),
        rows=np.zeros(total),
        write_rate=_joined(tables, "writes", np.float64),
        read_rate=_joined(tables, "reads", np.float64),
        lowers=[lower for tablets in tables for lower in _lowers(tablets)],
        moduli=np.array([leaf.modulus for tablets in tables for leaf in _leaves(tablets)], np.int64),
        remainders=np.array([leaf.remainder for tablets in tables for leaf in _leaves(tablets)], np.int64),
    )


def _joined(tables: list[Tablets], name: str, dtype: Any) -> Any:
    parts = [np.broadcast_to(np.asarray(getattr(one, name), dtype), len(one.sizes)) for one in tables]
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _leaves(tablets: Tablets) -> Sequence[Leaf]:
    return [Leaf(0, 0)] * len(tablets.sizes) if tablets.leaves is None else tablets.leaves


def _lowers(tablets: Tablets) -> Sequence[bytes]:
    if tablets.leaves is not None:
        return [b""] * len(tablets.sizes)
    if tablets.lowers is not None:
        return tablets.lowers
    return [b"", *(encode_key((KeyType.BIGINT,), (100 * place,)) for place in range(1, len(tablets.sizes)))]
