"""Tablets are split and merged on their node: every row is in exactly one of the new ones, and nothing is left."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from balancer.directory.model import MigrationMode, RangeBounds
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Refused
from balancer.migration.begin_reshard import begin_merge, begin_reshard, begin_split
from balancer.migration.doctor import examine
from policies.keys import KeyType, encode_key
from policies.leaves import Leaf
from tests.support.cluster import Cluster, build, hash_table, hash_tablets, insert_rows, range_table, range_tablets
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
