"""Tablets are split and merged on their node: every row is in exactly one of the new ones, and nothing is left."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from balancer.directory.model import Migration, MigrationMode, RangeBounds
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Refused
from balancer.features.repair.doctor import examine
from balancer.migration.begin import begin_reshard
from balancer.migration.machine import State
from balancer.migration.progress import Observer
from balancer.migration.reshard import too_much
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import KeyType, encode_key
from balancer.settings import MigrationSettings
from tests.support.cluster import Cluster, build, hash_table, hash_tablets, insert_rows, range_table, range_tablets
from tests.support.resharding import begin_merge, begin_split
from tests.support.servers import Database

Factory = Callable[[PostgresServer], Database]


def key(number: int) -> bytes:
    return encode_key((KeyType.BIGINT,), (number,))


@pytest.fixture
def hashed(tmp_path: Path, any_postgres: PostgresServer, database: Factory) -> Iterator[Cluster]:
    tablets = hash_tablets(4, ["a"])
    made = build(tmp_path, {"a": database(any_postgres).dsn}, hash_table(), tablets)
    insert_rows(made, tablets, range(1000))
    yield made
    made.close()


@pytest.fixture
def ranged(tmp_path: Path, any_postgres: PostgresServer, database: Factory) -> Iterator[Cluster]:
    tablets = range_tablets([300, 600], ["a"])
    made = build(tmp_path, {"a": database(any_postgres).dsn}, range_table(), tablets)
    insert_rows(made, tablets, range(1000))
    yield made
    made.close()


@pytest.mark.parametrize("mode", list(MigrationMode))
def test_a_vbucket_is_split_into_its_halves_and_merged_again(hashed: Cluster, mode: MigrationMode) -> None:
    directory = hashed.directory()
    leadership = hashed.become_leader(directory)
    before = hashed.rows()
    runner = hashed.runner(directory, leadership)
    split = runner.run(begin_split(directory, leadership, 2, mode=mode).id)
    assert (split.state, split.error) == ("done", "")
    halves = [tablet.id for tablet in split.targets]
    assert [directory.snapshot().tablet(tablet).bounds for tablet in halves] == [Leaf(8, 1), Leaf(8, 5)]
    assert directory.snapshot().find_tablet(2) is None
    assert hashed.rows() == before
    merged = runner.run(begin_merge(directory, leadership, halves, mode=mode).id)
    assert (merged.state, merged.error) == ("done", "")
    assert directory.snapshot().tablet(merged.targets[0].id).bounds == Leaf(4, 1)
    assert hashed.rows() == before
    assert examine(directory, hashed.address) == []


def test_a_budget_that_no_replay_can_keep_is_named_and_nothing_else_is_blamed(hashed: Cluster) -> None:
    hashed.settings = replace(hashed.settings, write_pause_budget=0.00001)
    directory = hashed.directory()
    leadership = hashed.become_leader(directory)
    split = hashed.runner(directory, leadership).run(begin_split(directory, leadership, 2).id)
    assert split.state == "failed"
    assert split.error.startswith("write_pause_budget is too short for this node: the last of 200 rounds of replay")
    assert split.error.endswith("where half of the budget is 0.005 ms")


def test_a_tablet_that_changes_too_fast_is_told_apart_from_it() -> None:
    said = too_much(3000, 0.4, MigrationSettings())
    assert said == (
        "the tablet changes faster than its changes can be replayed: the last of 200 rounds of replay had 3000 changed"
        " keys and took 400.0 ms, where 2000 keys are allowed (verify_keys_in_fence)"
    )


@pytest.mark.parametrize("mode", list(MigrationMode))
def test_a_range_is_split_at_keys_and_neighbours_are_merged(ranged: Cluster, mode: MigrationMode) -> None:
    directory = ranged.directory()
    leadership = ranged.become_leader(directory)
    before = ranged.rows()
    runner = ranged.runner(directory, leadership)
    split = runner.run(begin_split(directory, leadership, 2, [key(400), key(500)], mode=mode).id)
    assert (split.state, split.error, len(split.targets)) == ("done", "", 3)
    counts = [ranged.query("a", f"SELECT count(*) FROM orders_t{tablet.id}")[0][0] for tablet in split.targets]
    assert counts == [100, 100, 100]
    merged = runner.run(begin_merge(directory, leadership, [1, split.targets[0].id], mode=mode).id)
    assert (merged.state, merged.error) == ("done", "")
    assert directory.snapshot().tablet(merged.targets[0].id).bounds == RangeBounds(b"", key(400))
    assert ranged.rows() == before
    assert examine(directory, ranged.address) == []


def test_two_ranges_become_three(ranged: Cluster) -> None:
    directory = ranged.directory()
    leadership = ranged.become_leader(directory)
    before = ranged.rows()
    parts = [RangeBounds(b"", key(200)), RangeBounds(key(200), key(400)), RangeBounds(key(400), key(600))]
    done = ranged.runner(directory, leadership).run(begin_reshard(directory, leadership, [1, 2], parts).id)
    assert (done.state, done.error) == ("done", "")
    assert ranged.rows() == before
    assert [tablet.bounds for tablet in directory.snapshot().tablets(1)][:3] == parts


def test_what_does_not_cover_the_same_keys_is_refused(ranged: Cluster) -> None:
    directory = ranged.directory()
    leadership = ranged.become_leader(directory)
    with pytest.raises(Refused, match="cover exactly"):
        begin_reshard(directory, leadership, [1, 2], [RangeBounds(b"", key(500))])
    with pytest.raises(Refused, match="cover exactly"):
        begin_merge(directory, leadership, [1, 3])
    with pytest.raises(Refused, match="inside of it"):
        begin_split(directory, leadership, 1, [key(300)])


class Meddler(Observer):
    """Changes some of the sources: once when all rows are copied, and once when only the swap is left."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.rounds = 0

    def left(self, migration: Migration, state: State) -> None:
        if state not in (State.COPYING, State.VERIFYING):
            return
        first = 310 + 5 * self.rounds  # each range has twenty keys
        self.rounds += 1
        with self._cluster.connect("a") as connection:
            for statement in (
                f"UPDATE orders SET note = 'changed' WHERE id = {first}",
                f"DELETE FROM orders WHERE id = {first + 20}",
                f"UPDATE orders SET id = {3000 + first} WHERE id = {first + 40}",  # to a range that stays as it is
                f"UPDATE orders SET id = {first + 20} WHERE id = {first + 60}",  # from one source to another
            ):
                connection.execute(statement.encode())


def notes_of(cluster: Cluster) -> dict[int, str]:
    return {int(str(number)): str(note) for number, note in cluster.query("a", "SELECT id, note FROM orders")}


def test_many_ranges_of_which_some_change_become_one(ranged: Cluster) -> None:
    directory = ranged.directory()
    leadership = ranged.become_leader(directory)
    keys = [key(number) for number in range(320, 600, 20)]
    split = ranged.runner(directory, leadership).run(begin_split(directory, leadership, 2, keys).id)
    assert (split.state, split.error, len(split.targets)) == ("done", "", 15)
    notes = notes_of(ranged)
    meddler = Meddler(ranged)
    begun = begin_merge(directory, leadership, [tablet.id for tablet in split.targets])
    merged = ranged.runner(directory, leadership, meddler).run(begun.id)
    assert (merged.state, merged.error) == ("done", "")
    assert meddler.rounds == 2
    for first in (310 + 5 * number for number in range(meddler.rounds)):
        notes[first] = "changed"
        del notes[first + 20]
        notes[3000 + first] = notes.pop(first + 40)
        notes[first + 20] = notes.pop(first + 60)
    assert notes_of(ranged) == notes
    assert examine(directory, ranged.address) == []


class Between(Observer):
    """Asks the node for the old tablets after the swap, while the directory still has them."""

    def __init__(self, cluster: Cluster, tablets: list[int]) -> None:
        self._cluster = cluster
        self._tablets = tablets
        self.held = 0

    def left(self, migration: Migration, state: State) -> None:
        if state is not State.SWAPPING:
            return
        for tablet, writing in itertools.product(self._tablets, (True, False)):
            mode = "READ COMMITTED" if writing else "REPEATABLE READ READ ONLY"
            with self._cluster.connect("a") as connection:
                connection.execute(f"BEGIN ISOLATION LEVEL {mode}".encode())
                connection.execute("CALL balancer.hold(%s, 1, %s)", (tablet, writing))
                connection.execute("COMMIT")
                self.held += 1


@pytest.mark.parametrize("mode", list(MigrationMode))
@pytest.mark.parametrize("tablets", [[2], [2, 4]], ids=["split", "merge"])
def test_clients_with_the_old_map_are_served_until_the_directory_follows(
    hashed: Cluster, tablets: list[int], mode: MigrationMode
) -> None:
    directory = hashed.directory()
    leadership = hashed.become_leader(directory)
    observer = Between(hashed, tablets)
    if len(tablets) == 1:
        begun = begin_split(directory, leadership, tablets[0], mode=mode)
    else:
        begun = begin_merge(directory, leadership, tablets, mode=mode)
    assert hashed.runner(directory, leadership, observer).run(begun.id).state == "done"
    assert observer.held == 2 * len(tablets)
    assert examine(directory, hashed.address) == []
