"""Bundles for tests of the policies: built in a few words, all figures in plain sight."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from balancer.policies.bundle_view import BundleView, Floats, NodeView, TabletColumns, TableView
from balancer.policies.hash_leaves import Leaf, descendants
from balancer.policies.keys import KeyType

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


def rough(tablets: int, node_count: int, sigma: float, seed: int) -> BundleView:
    """A bundle that is hard to balance: tablets dealt out at random, rates lognormal, so that a few carry most."""
    chance = np.random.default_rng(seed)
    owner = chance.integers(0, node_count, tablets)
    sizes = chance.lognormal(0.0, 0.7, tablets) * 5 * GB
    writes, reads = (chance.lognormal(3.0, sigma, tablets) for _ in range(2))
    return bundle(owner.tolist(), node_count, sizes=sizes, writes=writes, reads=reads)


def small(seed: int) -> BundleView:
    """Some large tablets on a few nodes: few single moves help, so that exchanges and chains are looked for."""
    chance = np.random.default_rng(seed)
    tablets, node_count = int(chance.integers(6, 41)), int(chance.integers(2, 6))
    owner = chance.integers(0, node_count, tablets)
    sizes, writes, reads = (chance.lognormal(0.0, 1.0, tablets) * scale for scale in (10 * GB, 100.0, 100.0))
    return bundle(owner.tolist(), node_count, sizes=sizes, writes=writes, reads=reads)


def in_tables(view: BundleView, each: int = 4096) -> BundleView:
    """The same tablets as vbuckets of tables with so many each: every table covers its key space."""
    views, moduli, remainders = [], [], []
    for at, first in enumerate(range(0, len(view.tablets), each)):
        last = min(first + each, len(view.tablets))
        views.append(TableView(f"t{at:04}", True, (KeyType.BIGINT,), first, last))
        leaves = _leaves(last - first)
        moduli += [leaf.modulus for leaf in leaves]
        remainders += [leaf.remainder for leaf in leaves]
    columns = replace(view.tablets, moduli=np.array(moduli), remainders=np.array(remainders))
    return replace(view, tables=tuple(views), tablets=columns)


def _leaves(count: int) -> list[Leaf]:
    """So many leaves in the order of their positions: all of one size, or the first ones half the size of the rest."""
    half = 1 << (count - 1).bit_length() >> 1 if count > 1 else 1
    parents = descendants(Leaf(1, 0), half)
    split = count - half
    return [leaf for at, parent in enumerate(parents) for leaf in (parent.children() if at < split else (parent,))]
