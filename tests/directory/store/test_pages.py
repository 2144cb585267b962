"""Pages: edits, splits, merges and encoding, against a plain model of the same story."""

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.directory.invariants import check, violations
from balancer.directory.model import Change, LogEntry, Put, RangeBounds, Record, RecordKind, Remove, Tablet
from balancer.directory.snapshot import NotFound, Snapshot
from balancer.directory.store import delta
from balancer.directory.store.codec import StoredEntry, pack_entry, unpack_entry
from balancer.directory.store.commit import with_pages
from balancer.directory.store.delta import MAX_ROWS, MIN_ROWS, apply
from balancer.directory.store.page_codec import pack_page, unpack_page
from balancer.directory.store.pages import start_of
from balancer.errors import Damaged
from balancer.policies.keyspace.hash_leaves import Leaf
from tests.support.directories import HASHED, RANGED, frame, key, leaves, moved, puts, ranges

pytestmark = pytest.mark.quick


def build(records: list[Record]) -> Snapshot:
    return apply(Snapshot(), puts(records), 1, None).snapshot


def step(view: Snapshot, changes: list[Change]) -> Snapshot:
    """Commits changes; a follower that is told the page decisions comes to the same pages."""
    check(view, changes)
    applied = apply(view, changes, view.version + 1, None)
    entry = LogEntry(view.version + 1, "t", 1.5, "a", None, "r", tuple(changes))
    stored = unpack_entry(pack_entry(StoredEntry(entry, applied.repages)))
    followed = apply(view, stored.entry.changes, view.version + 1, stored.repages).snapshot
    assert followed.index == applied.snapshot.index
    assert followed.next_page == applied.snapshot.next_page
    for number, page in applied.snapshot.pages.items():
        assert pack_page(followed.pages[number]) == pack_page(page)
    assert applied.written <= set(applied.snapshot.pages)
    assert not applied.dropped & set(applied.snapshot.pages)
    return applied.snapshot


def agrees(view: Snapshot, model: dict[int, Tablet], table: int) -> None:
    expected = sorted(model.values(), key=lambda tablet: start_of(tablet.bounds))
    assert list(view.tablets(table)) == expected
    for tablet in expected[:50]:
        assert view.tablet(tablet.id) == tablet
        assert view.locate(table, start_of(tablet.bounds)) == tablet
    sizes = [len(page) for page in view.pages_of(table)]
    assert all(0 < size <= MAX_ROWS for size in sizes)
    assert all(a + b > MIN_ROWS for a, b in itertools.pairwise(sizes))


def split(tablet: Tablet, first: int, rng: random.Random) -> list[Change]:
    if isinstance(tablet.bounds, Leaf):
        parts: list[Tablet] = [
            Tablet(first + i, tablet.table, leaf, tablet.node) for i, leaf in enumerate(tablet.bounds.children())
        ]
    else:
        tails = [bytes((rng.randrange(1, 200), 1)), *(bytes(zeros) + b"\1" for zeros in range(40))]
        upper = tablet.bounds.upper
        middle = next(tablet.bounds.lower + tail for tail in tails if tablet.bounds.lower + tail < upper)
        parts = [
            Tablet(first, tablet.table, RangeBounds(tablet.bounds.lower, middle), tablet.node),
            Tablet(
                first + 1, tablet.table, RangeBounds(middle, tablet.bounds.upper), tablet.node, 3, partitions=("x",)
            ),
        ]
    return [Remove(RecordKind.TABLET, tablet.key), *puts(parts)]


def merge(view: Snapshot, table: int, at: int, first: int, count: int) -> list[Change] | None:
    """Two siblings of a hash table; a whole run of a range table, over as many pages as it may take."""
    run = view.tablets(table)[at : at + count]
    left, right = run[0], run[-1]
    if isinstance(left.bounds, Leaf):
        run = view.tablets(table)[at : at + 2]
        if left.bounds.sibling() != run[1].bounds:
            return None
        bounds = left.bounds.parent()
        assert bounds is not None
        joined = Tablet(first, table, bounds, left.node)
    else:
        assert isinstance(right.bounds, RangeBounds)
        joined = Tablet(first, table, RangeBounds(left.bounds.lower, right.bounds.upper), left.node)
    return [*(Remove(RecordKind.TABLET, one.key) for one in run), Put(joined)]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), hashed=st.booleans(), shrinking=st.booleans())
def test_pages_tell_the_same_story_as_a_plain_model(seed: int, hashed: bool, shrinking: bool) -> None:
    rng = random.Random(seed)
    small = pytest.MonkeyPatch()
    for name, value in (("MAX_ROWS", 10), ("TARGET_ROWS", 8), ("MIN_ROWS", 4)):
        small.setattr(delta, name, value)
    try:
        table = HASHED if hashed else RANGED
        start = leaves(64) if hashed else ranges(range(0, 600, 10), first=1)
        view, fresh = build([*frame(), table, *start]), 5000
        model = {tablet.id: tablet for tablet in start}
        for _ in range(40):
            at = rng.randrange(max(1, len(model) - 1))
            changes: list[Change] | None = None
            if len(model) > 2 and rng.random() < (0.7 if shrinking else 0.3):
                changes = merge(view, table.id, at, fresh, rng.choice([2, 2, 3, 15, 25]))
            if changes is None:
                tablet = view.tablets(table.id)[at]
                changes = split(tablet, fresh, rng) if rng.random() < 0.6 else [Put(moved(tablet, "pg-b"))]
            fresh += 2
            view = step(view, changes)
            for change in changes:
                if isinstance(change, Put) and isinstance(change.record, Tablet):
                    model[change.record.id] = change.record
                elif isinstance(change, Remove):
                    del model[int(change.key)]
            expected = sorted(model.values(), key=lambda tablet: start_of(tablet.bounds))
            assert list(view.tablets(table.id)) == expected
            assert all(len(page) <= 10 for page in view.pages.values())
        assert list(violations(view)) == []
        for page in view.pages.values():
            assert list(unpack_page(pack_page(page))) == list(page)
    finally:
        small.undo()


def test_a_page_splits_when_it_grows_and_merges_when_it_shrinks() -> None:
    view = build([*frame(), RANGED, *ranges(range(449), first=1)])
    assert [len(page) for page in view.pages_of(2)] == [450]
    edges = [key(0), *(key(0) + bytes((i // 200 + 1, i % 200 + 1)) for i in range(600)), key(1)]
    parts = [Tablet(5000 + i, 2, RangeBounds(edges[i], edges[i + 1]), "pg-a") for i in range(601)]
    grown = step(view, [Remove(RecordKind.TABLET, "2"), *puts(parts)])
    assert [len(page) for page in grown.pages_of(2)] == [350, 350, 350]
    agrees(grown, {tablet.id: tablet for tablet in grown.tablets(2)}, 2)
    gone = [tablet for tablet in grown.tablets(2) if 5000 <= tablet.id < 5550]
    whole = Tablet(6000, 2, RangeBounds(gone[0].bounds.lower, gone[-1].bounds.upper), "pg-a")  # type: ignore[union-attr]
    shrunk = step(grown, [*(Remove(RecordKind.TABLET, one.key) for one in gone), Put(whole)])
    assert [len(page) for page in shrunk.pages_of(2)] == [151, 350]
    rest = [tablet for tablet in shrunk.tablets(2) if 5550 <= tablet.id < 6000]
    last = Tablet(6001, 2, RangeBounds(rest[0].bounds.lower, rest[-1].bounds.upper), "pg-a")  # type: ignore[union-attr]
    merged = step(shrunk, [*(Remove(RecordKind.TABLET, one.key) for one in rest), Put(last)])
    assert [len(page) for page in merged.pages_of(2)] == [451]
    assert list(violations(merged)) == []
    assert list(violations(shrunk)) == []


def test_long_keys_split_pages_by_bytes() -> None:
    edges = [b"", *(b"\5" + bytes((i,)) + b"k" * 4000 for i in range(100)), b"\xff"]
    tablets = [Tablet(i + 1, 2, RangeBounds(edges[i], edges[i + 1]), "pg-a") for i in range(101)]
    view = build([*frame(), RANGED, *tablets])
    assert all(page.weight() <= delta.MAX_WEIGHT for page in view.pages.values())
    assert list(view.tablets(2)) == tablets


def test_a_page_of_a_thousand_leaves_takes_a_few_kilobytes() -> None:
    view = build([*frame(), HASHED, *leaves(1024)])
    assert sum(len(pack_page(page)) for page in view.pages.values()) < 6000


@pytest.mark.parametrize("hashed", [True, False])
def test_tablets_that_only_change_their_owner_keep_a_page_s_stored_bounds(hashed: bool) -> None:
    table, tablets = (HASHED, leaves(64)) if hashed else (RANGED, ranges(range(10, 640, 10)))
    view = build([*frame(), table, *tablets])
    stored = {number: unpack_page(pack_page(page)) for number, page in view.pages.items()}
    view = with_pages(view, stored, view.next_page)
    rng = random.Random(7)
    model = {tablet.id: tablet for tablet in tablets}
    for _ in range(20):
        chosen = rng.sample(sorted(model), 5)
        model |= {one: moved(model[one], rng.choice(["pg-a", "pg-b", "pg-c"])) for one in chosen}
        view = step(view, [Put(model[one]) for one in chosen])
        agrees(view, model, table.id)
        assert all(page.fixed and page.fixed == stored[number].fixed for number, page in view.pages.items())
        assert all(list(unpack_page(pack_page(page))) == list(page) for page in view.pages.values())


def test_a_table_whose_pages_name_another_is_damage_and_one_that_is_not_there_is_not() -> None:
    """Whoever can write the znodes can change which table a page belongs to."""
    view = apply(Snapshot(), puts([*frame(), HASHED, *leaves(4)]), 1, None).snapshot
    assert view.locate(HASHED.id, 0).id == 1
    emptied = replace(view, pages=Snapshot().pages, index={})
    with pytest.raises(Damaged, match=f"damaged data: table '{HASHED.name}' has no tablets"):
        emptied.locate(HASHED.id, 0)
    with pytest.raises(NotFound, match="there is no table with id 77"):
        view.locate(77, 0)
