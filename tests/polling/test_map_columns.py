"""What is kept from poll to poll is what would be made without it, and only what changed is made again."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Put, RangeBounds, Remove, Table, Tablet
from balancer.directory.open import open_directory
from balancer.directory.snapshot import Snapshot
from balancer.naming import Name, parse_name, partition_name
from balancer.policies.options import BundleOptions
from balancer.polling.node_poll import PartitionNames
from balancer.polling.ownership import Expected
from balancer.polling.poller import ClusterPoll
from balancer.polling.rates import first_rates
from balancer.polling.tablet_index import NOBODY, ColumnCache, TabletIndex, build_index
from balancer.polling.view import KeptColumns, Remembered, build_view
from tests.support.directories import NODES, RANGED, fill, moved, small_cluster, transaction

pytestmark = pytest.mark.quick
SHOP = frozenset({"shop"})


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as opened:
        fill(opened, small_cluster())
        yield opened


def names_of(table: Table, tablet: Tablet) -> tuple[Name, ...]:
    roots = [parse_name(root) for root in table.roots]
    if tablet.partitions:
        return tuple(Name(root.schema, name) for root, name in zip(roots, tablet.partitions, strict=True))
    return tuple(partition_name(root, tablet.id) for root in roots)


def plainly(snapshot: Snapshot) -> dict[str, dict[int, Expected]]:
    """What every node should have, tablet by tablet."""
    found: dict[str, dict[int, Expected]] = {}
    for table in snapshot.tables.values():
        for tablet in snapshot.tablets(table.id):
            names = names_of(table, tablet)
            found.setdefault(tablet.node, {})[tablet.id] = Expected(tablet.node, tablet.epoch, names)
    return found


def some_change(snapshot: Snapshot, chance: Random) -> list[Put | Remove]:
    """A tablet moves, is renamed, or is split at a key."""
    table = chance.choice(list(snapshot.tables.values()))
    tablet = chance.choice(list(snapshot.tablets(table.id)))
    if chance.random() < 0.3:
        return [Put(replace(tablet, partitions=tuple(f"part {chance.random()}" for _ in table.roots)))]
    if table.id == RANGED.id and chance.random() < 0.5 and len(tablet.bounds.lower) > 1:  # type: ignore[union-attr]
        bounds: RangeBounds = tablet.bounds  # type: ignore[assignment]
        middle = bounds.lower + b"\x01"
        first = max(one.id for one in snapshot.tablets(table.id)) + 1
        if bounds.lower < middle < bounds.upper:
            halves = [RangeBounds(bounds.lower, middle), RangeBounds(middle, bounds.upper)]
            parts = [Tablet(first + at, table.id, half, tablet.node) for at, half in enumerate(halves)]
            return [Remove(tablet.kind, tablet.key), *map(Put, parts)]
    return [Put(moved(tablet, chance.choice([node for node in NODES if node != tablet.node])))]


def check(index: TabletIndex, snapshot: Snapshot, chance: Random) -> None:
    expected = plainly(snapshot)
    assert {node: dict(mine) for node, mine in index.by_node.items()} == expected
    assert index.ids.tolist() == sorted(number for mine in expected.values() for number in mine)
    for node, mine in index.by_node.items():
        there = [name for one in expected[node].values() for name in one.partitions if chance.random() < 0.8]
        words = [*(name.name for name in there), "nobody's"]
        named = PartitionNames.of([Name("public", "")], [0] * len(words), words)
        tablets = {name: number for number, one in expected[node].items() for name in one.partitions}
        assert mine.owners(named).tolist() == [tablets.get(name, NOBODY) for name in named.all()]
        lacking = [number for number, one in expected[node].items() if not {*there}.issuperset(one.partitions)]
        assert list(mine.detached(named)) == sorted(lacking)


def shown(snapshot: Snapshot, kept: KeptColumns | None) -> list[object]:
    poll = ClusterPoll(0.0, snapshot.version, {}, first_rates())
    view = build_view(
        snapshot, "shop", poll, options=BundleOptions(), capacities={}, remembered=Remembered(), kept=kept
    )
    tablets = view.tablets
    columns = [getattr(tablets, name).tolist() for name in ("ids", "node", "moduli", "remainders", "sizes")]
    return [*columns, tablets.lowers, view.tables, view.quarantined, view.expired]


@pytest.mark.parametrize("seed", range(3))
def test_an_index_that_follows_commits_is_one_that_was_made_of_the_last(directory: Directory, seed: int) -> None:
    chance, book = Random(seed), ColumnCache()
    kept = KeptColumns(book)
    index = build_index(directory.snapshot(), SHOP, book)
    for _ in range(12):
        changes = some_change(directory.snapshot(), chance)
        directory.commit(transaction(changes, directory.snapshot().version))
        snapshot = directory.snapshot()
        index = build_index(snapshot, SHOP, book, index)
        check(index, snapshot, chance)
        assert shown(snapshot, kept) == shown(snapshot, None)


def test_what_a_commit_leaves_alone_stays_the_same_object(directory: Directory) -> None:
    book = ColumnCache()
    before = build_index(directory.snapshot(), SHOP, book)
    tablet = directory.snapshot().tablet(1)
    other = next(node for node in NODES if node != tablet.node)
    directory.commit(transaction([Put(moved(tablet, other))], directory.snapshot().version))
    after = build_index(directory.snapshot(), SHOP, book, before)
    same = {node for node in NODES if after.by_node[node] is before.by_node[node]}
    assert same == {*NODES} - {tablet.node, other}
    assert after.ids is before.ids
    quiet = build_index(directory.snapshot(), SHOP, book, after)
    assert quiet.by_node is after.by_node


def test_a_tablet_that_went_and_came_back_has_another_epoch(directory: Directory) -> None:
    book = ColumnCache()
    before = build_index(directory.snapshot(), SHOP, book)
    tablet = directory.snapshot().tablet(1)
    for node in (next(node for node in NODES if node != tablet.node), tablet.node):
        directory.commit(transaction([Put(moved(directory.snapshot().tablet(1), node))], directory.snapshot().version))
    after = build_index(directory.snapshot(), SHOP, book, before)
    assert after.by_node[tablet.node][1].epoch == before.by_node[tablet.node][1].epoch + 2


def test_other_bundles_are_left_out(directory: Directory) -> None:
    index = build_index(directory.snapshot(), ())
    assert (len(index.ids), dict(index.by_node), dict(index.roots)) == (0, {}, {})
    known = index.tablets.get(1)
    assert known is not None, "a claim on any tablet can be looked up"
    assert np.array_equal(build_index(directory.snapshot(), SHOP).ids, [*range(1, 9), *range(1001, 1005)])
