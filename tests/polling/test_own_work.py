"""What our own steps read is not taken for load."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Migration, Put, Record
from balancer.directory.open import open_directory
from balancer.polling.rates import own_work
from tests.support.directories import HASHED, fill, leaves, migration, small_cluster, transaction

pytestmark = pytest.mark.quick

PAIRED = replace(HASHED, roots=("public.orders", "public.order_items"))


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as opened:
        yield opened


def put(directory: Directory, record: Record, poll: int = 1) -> dict[int, int]:
    """What counts as our own work once this is recorded."""
    directory.commit(transaction([Put(record)], directory.snapshot().version))
    return own_work(directory.snapshot(), poll)


def move(state: str) -> Migration:
    """Tablet 1 from pg-a to pg-b."""
    return replace(migration(leaves(8)[0], "pg-b", state), id="m1")


def test_every_step_of_a_migration_counts_as_another_source_of_its_tablets_counters(directory: Directory) -> None:
    fill(directory)
    assert own_work(directory.snapshot(), 1) == {}
    copying = put(directory, move("copying"))
    catching_up = put(directory, move("catching_up"))
    assert copying.keys() == catching_up.keys() == {1}
    assert copying != catching_up
    assert own_work(directory.snapshot(), 2) != catching_up, "chunks are checked all the time"
    done = put(directory, replace(move("done"), finished=True))
    assert own_work(directory.snapshot(), 2) == done, "what is over is measured like any other"


def test_a_tablet_that_leaves_a_table_of_one_root_is_nobody_elses_business(directory: Directory) -> None:
    fill(directory)
    assert put(directory, move("retiring")).keys() == {1}


def test_a_move_in_a_table_of_several_roots_has_the_neighbours_on_both_nodes_read(directory: Directory) -> None:
    fill(directory, [PAIRED if record == HASHED else record for record in small_cluster()])
    assert put(directory, move("copying")).keys() == {1}
    opening = put(directory, move("opening"))
    done = put(directory, replace(move("done"), finished=True))
    assert opening.keys() == done.keys() == {1, 4, 7, 2, 5, 8}, "its own on pg-a and pg-b, and no other table's"
    assert all(opening[tablet] != done[tablet] for tablet in opening)
