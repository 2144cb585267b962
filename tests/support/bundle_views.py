"""Bundles for the policies' tests, in a few words: by the owners of their tablets, or by tables as lists of tablets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from balancer.policies.keyspace.hash_leaves import Leaf, descendants
from balancer.policies.keyspace.keys import KeyType, encode_key
from balancer.policies.view import BundleView, Floats, NodeView, TabletColumns, TableView

GB = float(1 << 30)


def nodes(count: int, **settings: Any) -> tuple[NodeView, ...]:
    """Nodes n0, n1 … with the same settings."""
    return tuple(NodeView(f"n{at}", **settings) for at in range(count))


def columns(
    owner: Sequence[int],
    *,
    sizes: Sequence[float] | float = 10 * GB,
    writes: Sequence[float] | float = 0.0,
    reads: Sequence[float] | float = 0.0,
    memory: Sequence[float] | float = 0.0,
    first_id: int = 1,
) -> TabletColumns:
    """Tablets of hash tables: one entry of `owner` (an index of nodes) per tablet."""
    count = len(owner)

    def full(values: Sequence[float] | float) -> Floats:
        return np.broadcast_to(np.asarray(values, dtype=np.float64), (count,)).copy()

    return TabletColumns(
        ids=np.arange(first_id, first_id + count, dtype=np.int64),
        node=np.asarray(owner, dtype=np.int64),
        sizes=full(sizes),
        memory=full(memory),
        rows=full(1000.0),
        write_rate=full(writes),
        read_rate=full(reads),
        lowers=[b""] * count,
        moduli=np.full(count, 1 << max(count - 1, 1).bit_length(), dtype=np.int64),
        remainders=np.arange(count, dtype=np.int64),
    )


def bundle(
    owner: Sequence[int],
    of: Sequence[NodeView] | int,
    tables: Sequence[tuple[str, int]] = (),
    now: float = 1_000_000.0,
    **figures: Any,
) -> BundleView:
    """A view of hash tables. `tables`: (name, number of tablets), one table `t` of all if left out."""
    made = nodes(of) if isinstance(of, int) else tuple(of)
    views, first = [], 0
    for name, count in tables or (("t", len(owner)),):
        views.append(TableView(name, True, (KeyType.BIGINT,), first, first + count))
        first += count
    return BundleView("b", now, made, tuple(views), columns(owner, **figures))


def moved(view: BundleView, moves: dict[int, str]) -> BundleView:
    """The same bundle after tablets (by id) have gone to other nodes (by id)."""
    index = {node.id: at for at, node in enumerate(view.nodes)}
    owner = view.tablets.node.copy()
    for tablet, target in moves.items():
        owner[int(np.flatnonzero(view.tablets.ids == tablet)[0])] = index[target]
    return replace(view, tablets=replace(view.tablets, node=owner))


def skewed(tablets: int, node_count: int, seed: int) -> BundleView:
    """A large bundle out of balance in bytes, writes and reads, each in its own way."""
    chance = np.random.default_rng(seed)
    pull = 0.6 + 0.8 * chance.random(node_count)
    owner = chance.choice(node_count, tablets, p=pull / pull.sum())
    heat = np.exp(0.25 * chance.standard_normal(node_count))
    writes = chance.lognormal(1.0, 1.0, tablets) * heat[owner]
    reads = chance.lognormal(1.0, 1.0, tablets) * heat[::-1][owner]
    sizes = chance.lognormal(0.0, 0.7, tablets) * 5 * GB
    return bundle(owner.tolist(), node_count, sizes=sizes, writes=writes, reads=reads)


NOW = 1_700_000_000.0


def rough(tablets: int, node_count: int, sigma: float, seed: int) -> BundleView:
    """A bundle that is hard to balance: tablets distributed at random, rates lognormal, so that a few carry most."""
    chance = np.random.default_rng(seed)
    owner = chance.integers(0, node_count, tablets)
    sizes = chance.lognormal(0.0, 0.7, tablets) * 5 * GB
    writes, reads = (chance.lognormal(3.0, sigma, tablets) for _ in range(2))
    return bundle(owner.tolist(), node_count, sizes=sizes, writes=writes, reads=reads)


def small(seed: int) -> BundleView:
    """Some large tablets on a few nodes: few single moves help, so it searches for exchanges and chains."""
    chance = np.random.default_rng(seed)
    tablets, node_count = int(chance.integers(6, 41)), int(chance.integers(2, 6))
    owner = chance.integers(0, node_count, tablets)
    sizes, writes, reads = (chance.lognormal(0.0, 1.0, tablets) * scale for scale in (10 * GB, 100.0, 100.0))
    return bundle(owner.tolist(), node_count, sizes=sizes, writes=writes, reads=reads)


def in_tables(view: BundleView, each: int = 4096) -> BundleView:
    """The same tablets as vbuckets of tables with this many each: every table covers its key space."""
    views, moduli, remainders = [], [], []
    for at, first in enumerate(range(0, len(view.tablets), each)):
        last = min(first + each, len(view.tablets))
        views.append(TableView(f"t{at:04}", True, (KeyType.BIGINT,), first, last))
        leaves = _dealt_leaves(last - first)
        moduli += [leaf.modulus for leaf in leaves]
        remainders += [leaf.remainder for leaf in leaves]
    columns = replace(view.tablets, moduli=np.array(moduli), remainders=np.array(remainders))
    return replace(view, tables=tuple(views), tablets=columns)


def _dealt_leaves(count: int) -> list[Leaf]:
    """This many leaves in order of their positions: all of one size, or the first ones half the size of the rest."""
    half = 1 << (count - 1).bit_length() >> 1 if count > 1 else 1
    parents = descendants(Leaf(1, 0), half)
    split = count - half
    return [leaf for at, parent in enumerate(parents) for leaf in (parent.children() if at < split else (parent,))]


@dataclass
class Tablets:
    """One table's tablets in key order. A single value holds for all of them."""

    sizes: Sequence[float]
    leaves: Sequence[Leaf] | None = None  # a hash table
    nodes: int | Sequence[int] = 0
    writes: float | Sequence[float] = 0.0
    reads: float | Sequence[float] = 0.0
    lowers: Sequence[bytes] | None = None  # a range table's bounds; otherwise the keys 0, 100, 200 …
    key_types: tuple[KeyType, ...] = (KeyType.BIGINT,)


def leaves(modulus: int) -> list[Leaf]:
    """All vbuckets of one modulus, in the order of their positions."""
    return sorted((Leaf(modulus, remainder) for remainder in range(modulus)), key=Leaf.start)


def bundle_of(tables: Mapping[str, Tablets], nodes: Sequence[NodeView | str] = ("a", "b"), **fields: Any) -> BundleView:
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
