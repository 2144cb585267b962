"""What a commit promises, on every backend."""

import threading
from dataclasses import replace

import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import (
    Bundle,
    Command,
    Counter,
    Node,
    NodeState,
    Pause,
    Pin,
    Plan,
    Put,
    Record,
    RecordKind,
    Remove,
    Tablet,
)
from balancer.errors import Conflict, Refused, TooLarge
from balancer.policies.keyspace.hash_leaves import Leaf, position
from tests.support.directories import (
    HASHED,
    RANGED,
    Opener,
    fill,
    frame,
    key,
    leaves,
    migration,
    moved,
    puts,
    ranges,
    small_cluster,
    transaction,
)


def test_a_new_directory_is_empty(directory: Directory) -> None:
    snapshot = directory.snapshot()
    assert (snapshot.version, snapshot.epoch) == (0, 0)
    assert not snapshot.tables
    assert directory.history() == []


def test_every_kind_of_record_comes_back_as_it_was_put(directory: Directory, opener: Opener) -> None:
    tablet = leaves(8)[0]
    job = migration(tablet, "pg-b")
    others: list[Record] = [
        Node("pg-d", "shop", "postgresql://pg-d/shop", NodeState.DRAINING, "east", 2.5, "disk"),
        replace(job, detail={"slot": "x", "lag": [1, None]}, error="ошибка"),
        Command("c1", "move", {"tablet": 3}, "ann", 1.5),
        Plan("p1", "shop", 2.5, "proposed", {"actions": []}),
        Pin(tablet.id, None, "ann", "because"),
        Pause("shop", 99.5),
        Counter("rows", 7),
    ]
    fill(directory, [*small_cluster(), *others])
    for view in (directory.snapshot(), opener().snapshot()):
        for record in [*small_cluster(), *others]:
            assert view.find(record.kind, record.key) == record
        assert view.migration_of(tablet.id) == others[1]
        assert view.table("orders") == HASHED
        assert view.pins[tablet.id].reason == "because"


def test_tablets_are_found_by_id_by_order_and_by_position(directory: Directory, opener: Opener) -> None:
    fill(directory)
    for view in (directory.snapshot(), opener().snapshot()):
        assert [tablet.id for tablet in view.tablets(RANGED.id)] == [1001, 1002, 1003, 1004]
        assert view.tablets(RANGED.id)[-1] == view.tablet(1004)
        assert view.locate(RANGED.id, key(19)).id == 1002
        assert view.locate(RANGED.id, key(20)).id == 1003
        for hashed in range(64):
            assert view.locate(HASHED.id, position(hashed)).bounds == Leaf(8, hashed % 8)
        columns = view.columns(HASHED.id)
        assert [columns.nodes[number] for number in columns.node] == [t.node for t in view.tablets(HASHED.id)]


def test_an_unknown_table_is_a_sentence_with_the_known_ones(directory: Directory) -> None:
    snapshot = fill(directory)
    with pytest.raises(KeyError, match="there is no table 'nope' in the directory; known tables: events, orders"):
        snapshot.table("nope")


def test_a_commit_changes_all_or_nothing(directory: Directory) -> None:
    before = fill(directory)
    tablet = before.tablet(1)
    bad = [Put(moved(tablet, "pg-c")), Put(moved(before.tablet(2), "nowhere"))]
    with pytest.raises(Refused, match="node 'nowhere', which does not exist"):
        directory.commit(transaction(bad, before.version))
    assert directory.snapshot().version == before.version
    assert directory.snapshot().tablet(1) == tablet


def test_a_snapshot_does_not_change_under_its_holder(directory: Directory) -> None:
    before = fill(directory)
    tablet = before.tablet(1)
    directory.commit(transaction([Put(moved(tablet, "pg-c"))], before.version))
    assert before.tablet(1) == tablet
    assert directory.snapshot().tablet(1).node == "pg-c"


def test_a_commit_based_on_an_old_version_passes_if_it_touches_nothing_that_changed(opener: Opener) -> None:
    one, other = opener(), opener()
    base = fill(one)
    one.commit(transaction([Put(moved(base.tablet(1), "pg-c"))], base.version))
    assert other.commit(transaction([Put(moved(base.tablet(2), "pg-c"))], base.version)) == base.version + 2
    for view in (one.snapshot(), other.snapshot()):
        assert (view.tablet(1).node, view.tablet(2).node) == ("pg-c", "pg-c")


def test_a_commit_is_a_conflict_if_what_it_touches_has_changed(opener: Opener) -> None:
    one, other = opener(), opener()
    base = fill(one)
    one.commit(transaction([Put(moved(base.tablet(1), "pg-c"))], base.version))
    for directory in (one, other):
        with pytest.raises(Conflict, match="tablet '1' was changed in version"):
            directory.commit(transaction([Put(moved(base.tablet(1), "pg-b"))], base.version))
    assert one.snapshot().tablet(1).node == "pg-c"


def test_removing_and_making_again_is_a_change_too(directory: Directory) -> None:
    base = fill(directory)
    command = Command("c1", "drain", {}, "ann", 1.0)
    version = directory.commit(transaction([Put(command)], base.version))
    version = directory.commit(transaction([Remove(RecordKind.COMMAND, "c1")], version))
    with pytest.raises(Conflict):
        directory.commit(transaction([Put(command)], base.version))
    with pytest.raises(Conflict, match="it is not there any more"):
        directory.commit(transaction([Remove(RecordKind.COMMAND, "c1")], version))
    assert directory.commit(transaction([Put(command)], version)) == version + 1


def test_a_base_from_the_future_is_a_conflict(directory: Directory) -> None:
    with pytest.raises(Conflict, match="based on version 5, the newest is 0"):
        directory.commit(transaction([Put(Bundle("shop"))], 5))


def test_the_same_transaction_is_applied_once(directory: Directory, opener: Opener) -> None:
    base = fill(directory)
    wish = transaction([Put(moved(base.tablet(1), "pg-c"))], base.version)
    version = directory.commit(wish)
    assert directory.commit(wish) == version
    assert opener().commit(wish) == version
    assert directory.snapshot().version == version


def test_writers_in_threads_lose_nothing(opener: Opener) -> None:
    fill(opener(), frame())
    failures: list[Exception] = []

    def count(directory: Directory, turns: int) -> None:
        done = 0
        while done < turns:
            view = directory.snapshot()
            counter = view.counters.get("n", Counter("n", 0))
            try:
                directory.commit(transaction([Put(Counter("n", counter.next + 1))], view.version))
                done += 1
            except Conflict:
                continue
            except Exception as error:  # the test fails with it below
                failures.append(error)
                return

    shared = opener()
    threads = [threading.Thread(target=count, args=(one, 10)) for one in (shared, shared, opener(), opener())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert opener().snapshot().counters["n"].next == 40


def test_a_commit_that_is_too_large_is_refused_with_the_numbers(directory: Directory) -> None:
    base = fill(directory)
    noise = "".join(f"{number:x}" for number in range(300_000))
    with pytest.raises(TooLarge, match=r"would take \d+ bytes \(1 changes.*a request may have 524288"):
        directory.commit(transaction([Put(Plan("p", "shop", 0.0, "proposed", noise))], base.version))
    assert directory.snapshot().version == base.version


def test_the_history_tells_who_changed_what_and_why(directory: Directory, opener: Opener) -> None:
    base = fill(directory)
    change = Put(moved(base.tablet(1), "pg-c"))
    wish = transaction([change], base.version, reason="pg-a is too full")
    version = directory.commit(wish)
    (entry,) = opener().history(after=base.version)
    assert (entry.version, entry.transaction, entry.reason, entry.author) == (
        version,
        wish.id,
        "pg-a is too full",
        "test",
    )
    assert entry.changes == (change,)
    assert [one.version for one in directory.history(limit=1)] == [1]


def test_splits_and_merges_keep_the_key_space_covered(directory: Directory, opener: Opener) -> None:
    view = fill(directory)
    parent = view.tablet(1)
    assert isinstance(parent.bounds, Leaf)
    children = [Tablet(1500 + i, 1, leaf, parent.node) for i, leaf in enumerate(parent.bounds.children())]
    version = directory.commit(transaction([Remove(RecordKind.TABLET, "1"), *puts(children)], view.version))
    assert [t.bounds for t in opener().snapshot().tablets(1)][:2] == [Leaf(16, 0), Leaf(16, 8)]
    merged = Tablet(1510, 1, parent.bounds, parent.node, 7)
    removals = [Remove(RecordKind.TABLET, child.key) for child in children]
    directory.commit(transaction([*removals, Put(merged)], version))
    assert list(opener().snapshot().tablets(1)) == list(directory.snapshot().tablets(1))
    assert opener().snapshot().tablet(1510) == merged


def test_a_table_can_be_removed_with_its_tablets(directory: Directory, opener: Opener) -> None:
    view = fill(directory)
    gone = [Remove(RecordKind.TABLET, tablet.key) for tablet in ranges([10, 20, 30])]
    directory.commit(transaction([*gone, Remove(RecordKind.TABLE, "2")], view.version))
    for after in (directory.snapshot(), opener().snapshot()):
        assert list(after.tables) == [1]
        assert list(after.tablets(2)) == []
        assert after.find_tablet(1001) is None
