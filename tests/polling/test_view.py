"""The view has every tablet in key order with what polls know of it, and trusts no doubtful node."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Layout, NodeState, Pin, Put, Table, Tablet, TabletState
from balancer.directory.open import open_directory
from balancer.nodes.session.ask_all import Unreachable
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.options import BundleOptions, InMemoryMode, TableOptions
from balancer.policies.view import BundleView, NodeCondition
from balancer.polling.node_poll import Claims, NodeFacts, NodePoll, Partitions, SlotUse
from balancer.polling.poller import ClusterPoll, Health, NodeAnswer
from balancer.polling.rates import COUNTERS, CounterSample, advance, first_rates
from balancer.polling.view import Capacity, Remembered, build_view, reference_tables
from tests.support.directories import NODES, fill, leaves, migration, ranges, transaction

pytestmark = pytest.mark.quick
NOW = datetime(2026, 1, 1, tzinfo=UTC)
FACTS = NodeFacts(180004, False, NOW, NOW, None, 12345, 1, 100)
GOOD = NodePoll(FACTS, Partitions.of(()), None, Claims.of(()))


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as opened:
        fill(opened)
        yield opened


def measured(ids: list[int]) -> ClusterPoll:
    """Tablet n: n bytes, 2n rows, n inserts and n index reads a second."""
    rates = first_rates()
    numbers = np.array(ids, np.int64)
    for at in (0.0, 10.0):
        counters = np.zeros((len(COUNTERS), len(ids)))
        counters[COUNTERS.index("inserted")] = numbers * at
        counters[COUNTERS.index("index_reads")] = numbers * at
        sizes = numbers.astype(np.float64)
        sample = CounterSample(numbers, np.ones_like(numbers), np.full(len(ids), at), counters, sizes, sizes * 2)
        rates = advance(rates, sample, numbers)
    return ClusterPoll(1000.0, 1, {node: NodeAnswer(node, Health.GOOD, GOOD) for node in NODES}, rates)


def view(directory: Directory, poll: ClusterPoll, options: BundleOptions | None = None) -> BundleView:
    return build_view(
        directory.snapshot(),
        "shop",
        poll,
        options=options or BundleOptions(),
        capacities={"pg-a": Capacity(disk=10**12, memory=10**9)},
        remembered=Remembered(bytes_moved_in_window=7.0),
    )


def all_tablets() -> list[Tablet]:
    return [*leaves(8), *ranges([10, 20, 30])]


def test_tablets_are_in_key_order_with_their_measurements(directory: Directory) -> None:
    ids = sorted(tablet.id for tablet in all_tablets())
    seen = view(directory, measured(ids))
    hashed, ranged = seen.tables
    assert (hashed.name, hashed.hash, hashed.first, hashed.last) == ("orders", True, 0, 8)
    assert (ranged.name, ranged.hash, ranged.first, ranged.last) == ("events", False, 8, 12)
    by_id = {tablet.id: tablet for tablet in all_tablets()}
    columns = seen.tablets
    for row, number in enumerate(map(int, columns.ids)):
        tablet = by_id[number]
        assert seen.nodes[columns.node[row]].id == tablet.node
        assert (columns.sizes[row], columns.rows[row]) == (number, 2 * number)
        assert (columns.write_rate[row], columns.read_rate[row]) == pytest.approx((number, number))
        if isinstance(tablet.bounds, Leaf):
            assert columns.leaf(row) == tablet.bounds
        else:
            assert columns.lowers[row] == tablet.bounds.lower
            assert columns.moduli[row] == 0
    starts = [columns.leaf(row).start() for row in range(8)]
    assert starts == sorted(starts)
    assert list(columns.lowers[8:]) == sorted(columns.lowers[8:])
    assert seen.bytes_moved_in_window == 7.0


def test_what_no_poll_has_seen_counts_as_nothing(directory: Directory) -> None:
    assert view(directory, measured([])).tablets.sizes.sum() == 0
    partly = view(directory, measured([3]))
    assert partly.tablets.sizes.sum() == 3
    assert partly.tablets.sizes[list(partly.tablets.ids).index(3)] == 3


def test_nodes_that_cannot_be_trusted_are_down(directory: Directory) -> None:
    poll = measured([1])
    reports = {
        "pg-a": poll.nodes["pg-a"],
        "pg-b": NodeAnswer("pg-b", Health.QUARANTINED, GOOD),
        "pg-c": NodeAnswer("pg-c", Health.UNREACHABLE, unreachable=Unreachable(0.0, "gone")),
    }
    seen = view(directory, replace(poll, nodes=reports))
    assert [node.condition for node in seen.nodes] == [NodeCondition.ACTIVE, NodeCondition.DOWN, NodeCondition.DOWN]
    first = seen.nodes[0]
    assert (first.disk_capacity, first.disk_used, first.memory) == (10**12, 12345, 10**9)
    assert seen.nodes[2].disk_used is None


def test_a_node_without_its_copy_of_a_reference_table_gets_no_tablets(directory: Directory) -> None:
    before = view(directory, measured([1]))
    home = Tablet(99, 9, Leaf(1, 0), "pg-a", partitions=("countries",))
    table = Table(9, "countries", "shop", Layout.EVERYWHERE, (), ("public.countries",))
    directory.commit(transaction((Put(table), Put(home)), directory.snapshot().version))
    poll = measured([1])
    streams = reference_tables(directory.snapshot(), "shop")[0].streams
    assert set(streams) == {"pg-b", "pg-c"}
    slots = (
        SlotUse(f"tb_{streams['pg-b']}", True, True, 0, "reserved"),
        SlotUse(f"tb_{streams['pg-c']}", True, False, 0, "reserved"),
    )
    at_home = replace(GOOD, facts=replace(FACTS, slots=slots))
    seen = view(directory, replace(poll, nodes={**poll.nodes, "pg-a": NodeAnswer("pg-a", Health.GOOD, at_home)}))
    assert [node.condition for node in seen.nodes] == [
        NodeCondition.ACTIVE,
        NodeCondition.ACTIVE,
        NodeCondition.CLOSED,
    ]
    assert seen.tables == before.tables  # what is everywhere is nobody's to move


def test_states_pins_quarantine_and_migrations_are_told(directory: Directory) -> None:
    snapshot = directory.snapshot()
    node = replace(snapshot.nodes["pg-b"], state=NodeState.DRAINING)
    sick = replace(snapshot.tablet(2), state=TabletState.QUARANTINED)
    moving = migration(snapshot.tablet(3), "pg-a")
    changes = [Put(node), Put(sick), Put(moving), Put(Pin(4, None)), Put(Pin(5, until=999.0))]
    directory.commit(transaction(changes, snapshot.version))
    seen = view(directory, measured([1]))
    assert seen.nodes[1].condition is NodeCondition.DRAINING
    assert seen.quarantined == {2}
    assert seen.pinned == {4}
    assert [(flight.tablets, flight.target) for flight in seen.in_flight] == [((3,), "pg-a")]


def test_only_in_memory_tables_count_against_memory(directory: Directory) -> None:
    options = BundleOptions(tables={"events": TableOptions(in_memory_mode=InMemoryMode.COMPRESSED)})
    ids = sorted(tablet.id for tablet in all_tablets())
    seen = view(directory, measured(ids), options)
    assert seen.tablets.memory[:8].sum() == 0
    assert list(seen.tablets.memory[8:]) == list(seen.tablets.sizes[8:])
