"""That a bundle is being balanced survives a restart and a change of leader; written only when it changes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from balancer.directory.contract import Directory
from balancer.directory.open import open_directory
from balancer.planner.memory import TOPIC, BalancingNote, read_tail
from balancer.policies.budgets import NOTHING_BEGUN, BalancingCredit
from tests.support.directories import fill

pytestmark = pytest.mark.quick

BEGUN = BalancingCredit(5.0, frozenset({"pg-a", "pg-b"}))


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as opened:
        fill(opened)
        yield opened


def test_a_restarted_leader_and_another_one_go_on(directory: Directory) -> None:
    first, leading = BalancingNote("shop"), object()
    assert first.read(directory, leading) == NOTHING_BEGUN
    first.write(directory, BEGUN)
    assert BalancingNote("shop").read(directory, object()) == BEGUN
    assert BalancingNote("other").read(directory, object()) == NOTHING_BEGUN


def test_a_standby_that_takes_over_knows_what_the_leader_wrote_last(directory: Directory) -> None:
    standby, leader, leading = BalancingNote("shop"), BalancingNote("shop"), object()
    assert standby.read(directory, None) == NOTHING_BEGUN
    leader.read(directory, leading)
    leader.write(directory, BEGUN)
    assert standby.read(directory, object()) == BEGUN


def test_a_leader_that_lost_and_won_again_reads_what_others_wrote_in_between(directory: Directory) -> None:
    mine, other = BalancingNote("shop"), BalancingNote("shop")
    mine.read(directory, "first term")
    other.read(directory, "second term")
    other.write(directory, BEGUN)
    assert mine.read(directory, "third term") == BEGUN


def test_it_is_written_only_when_it_changes(directory: Directory) -> None:
    book = BalancingNote("shop")
    book.read(directory, "term")
    book.write(directory, NOTHING_BEGUN)
    assert not directory.published(TOPIC)
    book.write(directory, BEGUN)
    directory.unpublish(TOPIC, "shop")
    book.write(directory, BEGUN)
    assert not directory.published(TOPIC)
    book.write(directory, NOTHING_BEGUN)
    assert read_tail(directory.published(TOPIC)["shop"]) == NOTHING_BEGUN


@pytest.mark.parametrize(
    "note",
    [
        None,
        [],
        "x",
        {},
        {"bytes": 1},
        {"bytes": "x", "nodes": []},
        {"bytes": -1, "nodes": []},
        {"bytes": 1, "nodes": 7},
    ],
)
def test_a_note_that_is_none_says_that_nothing_has_begun(note: object) -> None:
    assert read_tail(note) == NOTHING_BEGUN


@pytest.mark.parametrize("large", [float("inf"), float("nan")])
def test_no_note_allows_moves_without_end(large: float) -> None:
    assert read_tail({"bytes": large, "nodes": []}) == NOTHING_BEGUN
