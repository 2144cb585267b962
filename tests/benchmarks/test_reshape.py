"""What splits and merges cost to plan in a bundle of a million tablets, beside a loop that only compares each size."""

import time
from dataclasses import replace

import numpy as np
import pytest

from balancer.policies.keyspace.keys import KeyType
from balancer.policies.options import GB, MB, BundleOptions
from balancer.policies.resize.heat import plan_heat
from balancer.policies.resize.sizes import plan_sizes
from balancer.policies.view import BundleView, NodeView, TabletColumns, TableView
from tests.support.tables import show_table

pytestmark = pytest.mark.bench

SEED = 3
TABLETS, NODES = 1_000_000, 1000
OPTIONS = BundleOptions()


def _view(tables: int, outside: float) -> BundleView:
    """Tablets of 10 GB; a share of them is too small or too large."""
    chance = np.random.default_rng(SEED)
    odd = chance.random(TABLETS) < outside
    sizes = np.where(odd, chance.choice([50.0 * MB, 45.0 * GB], TABLETS), 10.0 * GB)
    each, nothing, whole = TABLETS // tables, np.zeros(TABLETS), np.zeros(TABLETS, np.int64)
    columns = TabletColumns(
        ids=np.arange(TABLETS),
        node=chance.integers(0, NODES, TABLETS),
        sizes=sizes,
        memory=nothing,
        rows=nothing,
        write_rate=chance.exponential(1.0, TABLETS),
        read_rate=nothing,
        lowers=[b""] * TABLETS,
        moduli=whole,
        remainders=whole,
    )
    known = tuple(TableView(f"t{at}", False, (KeyType.BIGINT,), at * each, (at + 1) * each) for at in range(tables))
    return BundleView("big", 0.0, tuple(NodeView(f"n{at}") for at in range(NODES)), known, columns)


def _loop(view: BundleView) -> tuple[int, float]:
    """Only the comparison, tablet by tablet."""
    sizes = view.tablets.sizes
    began = time.perf_counter()
    found = sum(1 for size in sizes if not 128 * MB <= size <= 20 * GB)
    return found, time.perf_counter() - began


def _sizes(view: BundleView) -> tuple[int, float]:
    began = time.perf_counter()
    found = len(plan_sizes(replace(view), OPTIONS).actions)
    return found, time.perf_counter() - began


def _heat(view: BundleView) -> tuple[int, float]:
    began = time.perf_counter()
    found = len(plan_heat(replace(view), OPTIONS).actions)
    return found, time.perf_counter() - began


def test_splits_and_merges_of_a_million_tablets() -> None:
    rows: list[tuple[object, ...]] = []
    for tables, outside in ((200, 0.0), (200, 0.001), (200, 0.02), (10_000, 0.001)):
        view = _view(tables, outside)
        name = f"{tables:,} tables, {outside:.1%} outside"
        rows += [(f"sizes: {name}", *_sizes(view)), (f"heat: {name}", *_heat(view))]
    rows.append(("a loop that compares", *_loop(_view(200, 0.001))))
    show_table(f"a plan for {TABLETS:,} tablets on {NODES:,} nodes (seed {SEED})", ("what", "found", "seconds"), rows)
