"""What a commit may not do; each refusal is one sentence."""

from dataclasses import replace

import pytest

from balancer.directory.invariants import check, violations
from balancer.directory.model import (
    Change,
    Counter,
    Node,
    Pause,
    Pin,
    Put,
    RangeBounds,
    Record,
    RecordKind,
    Remove,
    Tablet,
)
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.delta import apply
from balancer.errors import Refused
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import HIGHEST
from tests.support.directories import HASHED, RANGED, key, leaves, migration, moved, puts, ranges, small_cluster

pytestmark = pytest.mark.quick


def view(records: list[Record] | None = None) -> Snapshot:
    changes = puts(records if records is not None else small_cluster())
    check(Snapshot(), changes)
    return apply(Snapshot(), changes, 1, None).snapshot


FIRST = leaves(8)[0]
RANGE = ranges([10, 20, 30])[1]
CASES: list[tuple[str, list[Change]]] = [
    ("leave a gap", [Remove(RecordKind.TABLET, "1")]),
    ("leave a gap", [Put(replace(FIRST, bounds=Leaf(16, 0)))]),
    ("overlap", [Put(Tablet(1500, 1, Leaf(8, 3), "pg-a"))]),
    ("leave a gap", [Put(replace(RANGE, bounds=RangeBounds(key(10), key(19))))]),
    ("leave a gap", [Put(moved(leaves(8)[1], "pg-c")), Put(replace(FIRST, bounds=Leaf(16, 0)))]),
    ("overlap", [Put(moved(leaves(8)[4], "pg-c")), Put(replace(FIRST, bounds=Leaf(4, 0)))]),
    ("overlap", [Put(replace(RANGE, bounds=RangeBounds(key(10), key(21))))]),
    ("is empty", [Put(replace(RANGE, bounds=RangeBounds(key(20), key(20))))]),
    ("modulus 3 is not a power of two", [Put(replace(FIRST, bounds=Leaf(3, 0)))]),
    ("bounds of a hash table", [Put(replace(FIRST, bounds=RangeBounds()))]),
    ("would change its owner without a new epoch", [Put(replace(FIRST, node="pg-c"))]),
    ("both begin at 1", [Put(replace(FIRST, epoch=0))]),
    ("names node 'nope', which does not exist", [Put(moved(FIRST, "nope"))]),
    ("names bundle 'nope', which does not exist", [Put(Node("x", "nope", ""))]),
    ("names bundle 'nope', which does not exist", [Put(Pause("nope", None))]),
    ("still owns tablet", [Remove(RecordKind.NODE, "pg-a")]),
    ("still has", [Remove(RecordKind.BUNDLE, "shop")]),
    ("some of its tablets are not", [Remove(RecordKind.TABLE, "1"), Remove(RecordKind.TABLET, "1")]),
    ("cannot change its layout", [Put(replace(HASHED, columns=RANGED.columns))]),
    ("two tables named 'orders'", [Put(replace(RANGED, name="orders"))]),
    ("root 'public.orders' belongs to two tables", [Put(replace(RANGED, roots=("public.orders",)))]),
    ("names 2 partitions for 1 roots", [Put(replace(FIRST, partitions=("a", "b")))]),
    ("would go back from 2000 to 5", [Put(Counter("tablet", 5))]),
    ("has not given out yet", [Remove(RecordKind.TABLET, "1"), Put(replace(FIRST, id=3000))]),
    ("no tablet 77777 to pin", [Put(Pin(77777, None))]),
    ("weight 0", [Put(Node("x", "shop", "", weight=0.0))]),
    ("cannot be the key", [Put(Node("a/b", "shop", ""))]),
    ("changes tablet '1' twice", [Put(moved(FIRST, "pg-b")), Put(moved(FIRST, "pg-c"))]),
    ("is already part of migration", [Put(migration(FIRST, "pg-b")), Put(migration(FIRST, "pg-c"))]),
    ("names tablet 99, which does not exist", [Put(replace(migration(FIRST, "pg-b"), sources=(99,)))]),
]


@pytest.mark.parametrize(("sentence", "changes"), CASES, ids=[case[0] for case in CASES])
def test_a_commit_that_would_break_the_directory_is_refused(sentence: str, changes: list[Change]) -> None:
    with pytest.raises(Refused, match=sentence):
        check(view(), changes)


def test_a_table_comes_with_all_its_tablets() -> None:
    with pytest.raises(Refused, match="leave a gap"):
        view([record for record in small_cluster() if not isinstance(record, Tablet)])


def test_a_second_migration_of_a_tablet_is_refused_until_the_first_is_finished() -> None:
    first, second = migration(FIRST, "pg-b"), migration(FIRST, "pg-c")
    before = view([*small_cluster(), first])
    assert before.migration_of(1) == first
    with pytest.raises(Refused, match=f"tablet 1 is already part of migration {first.id}"):
        check(before, [Put(second)])
    check(before, [Put(second), Put(replace(first, finished=True))])
    after = apply(before, [Put(replace(first, finished=True))], 2, None).snapshot
    check(after, [Put(second)])
    with pytest.raises(Refused, match="is finished and cannot go on"):
        check(after, [Put(first)])


def test_a_table_is_given_no_root_during_a_migration_nor_a_migration_that_would_leave_one_behind() -> None:
    grown = replace(HASHED, roots=(*HASHED.roots, "public.more"))
    first = migration(FIRST, "pg-b")
    with pytest.raises(Refused, match=f"cannot change during migration {first.id}"):
        check(view([*small_cluster(), first]), [Put(grown)])
    named = tuple(f"p{number}" for number in range(len(HASHED.roots)))
    begun = replace(first, targets=(replace(first.targets[0], partitions=named),))
    check(view(), [Put(begun)])
    with pytest.raises(Refused, match=r"would carry \d of the \d roots"):
        check(apply(view(), [Put(grown)], 2, None).snapshot, [Put(begun)])


def test_the_tablets_that_a_split_will_make_belong_to_its_migration() -> None:
    split = replace(migration(FIRST, "pg-a"), targets=(Tablet(1500, 1, Leaf(16, 0), "pg-a"),))
    before = view([*small_cluster(), split])
    assert before.migration_of(1500) == split
    assert before.migration_of(2) is None


def test_epochs_only_grow() -> None:
    before = view([replace(r, epoch=5) if isinstance(r, Tablet) else r for r in small_cluster()])
    with pytest.raises(Refused, match="would go back from epoch 5 to 4"):
        check(before, [Put(replace(FIRST, epoch=4))])


def test_a_node_can_go_when_it_is_empty() -> None:
    before = view([*small_cluster(), Node("pg-d", "shop", "")])
    check(before, [Remove(RecordKind.NODE, "pg-d")])
    with pytest.raises(Refused, match="still owns tablet 1"):
        check(before, [Remove(RecordKind.NODE, "pg-a"), Put(replace(FIRST, epoch=2))])


def test_a_lawful_directory_has_no_violations() -> None:
    assert list(violations(view())) == []


def test_violations_of_a_whole_directory_are_each_a_sentence() -> None:
    good = view()
    gap = apply(good, [Remove(RecordKind.TABLET, "3"), Remove(RecordKind.NODE, "pg-c")], 2, None).snapshot
    found = list(violations(gap))
    assert any("leave a gap before tablet" in one for one in found)
    assert any("names node 'pg-c', which does not exist" in one for one in found)
    end = apply(good, [Put(replace(ranges([10, 20, 30])[3], bounds=RangeBounds(key(30), key(40))))], 2, None).snapshot
    assert any("leave a gap at the end" in one for one in violations(end))
    assert key(2**62) < HIGHEST
