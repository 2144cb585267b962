"""Keys in use: gathered from clients' notes over minutes, each note once, and the node asked where they say little."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from balancer.directory.contract import Directory
from balancer.directory.notes import SAMPLES
from balancer.directory.open import open_directory
from balancer.logs import set_up_logs
from balancer.planner.hot_keys import MEMORY_SECONDS, Samples
from balancer.policies.view import BundleView, KeySamples, SampleSource, TabletHistory
from tests.support.bundle_states import view_of_snapshot
from tests.support.directories import fill, key
from tests.support.logs import kept_logs

pytestmark = pytest.mark.quick

NODE_SAYS = KeySamples(SampleSource.ROW_AGES, (key(12),), (1.0,))


class Node:
    """Answers for every tablet."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def ask(self, tablet_id: int) -> KeySamples | None:
        self.asked.append(tablet_id)
        return NODE_SAYS

    def row_keys(self, tablet_id: int) -> tuple[bytes, ...]:
        return (key(15),)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as opened:
        fill(opened)
        yield opened


@pytest.fixture
def view(directory: Directory) -> BundleView:
    view = view_of_snapshot(directory.snapshot())
    assert isinstance(view, BundleView)
    return view


def note(directory: Directory, client: str, at: float, *numbers: int) -> None:
    samples = [[key(number).hex(), 2.0, True] for number in numbers]
    directory.publish(SAMPLES, client, {"at": at, "tables": {"2": samples}})


def found(directory: Directory, view: BundleView, samples: Samples, node: Node, enough: int) -> dict[int, KeySamples]:
    return samples.of(view, directory.snapshot(), [1002], node, enough)  # the keys from 10 to 20


def test_clients_are_heard_over_several_notes_and_each_of_them_once(directory: Directory, view: BundleView) -> None:
    samples, node = Samples(directory), Node()
    for at in (100.0, 101.0, 101.0):
        note(directory, "client-1", at, 5, 11, 19, 25)
        samples.gather(at)
    told = found(directory, view, samples, node, 4)[1002]
    assert told.keys == (key(11), key(11), key(19), key(19))
    assert told.row_keys == (key(15),)
    assert (told.weights, told.writes) == ((2.0,) * 4, (True,) * 4)
    assert not node.asked


def test_the_node_is_asked_where_clients_say_too_little(directory: Directory, view: BundleView) -> None:
    samples, node = Samples(directory), Node()
    note(directory, "client-1", 100.0, 11)
    samples.gather(100.0)
    assert found(directory, view, samples, node, 2)[1002].source is SampleSource.ROW_AGES
    assert node.asked == [1002]


def test_what_was_told_before_a_tablets_last_migration_does_not_count(directory: Directory, view: BundleView) -> None:
    samples, node = Samples(directory), Node()
    for at, number in ((100.0, 11), (110.0, 12), (111.0, 13)):
        note(directory, "client-1", at, number)
        samples.gather(at)
    moved = replace(view, history={1002: TabletHistory(last_migrated=110.0)})
    assert found(directory, view, samples, node, 1)[1002].keys == (key(11), key(12), key(13))
    assert found(directory, moved, samples, node, 1)[1002].keys == (key(13),)
    assert found(directory, moved, samples, node, 2)[1002].source is SampleSource.ROW_AGES


def test_what_is_old_is_forgotten(directory: Directory, view: BundleView) -> None:
    samples, node = Samples(directory), Node()
    note(directory, "client-1", 100.0, 11, 12)
    samples.gather(100.0)
    samples.gather(101.0 + MEMORY_SECONDS)
    assert found(directory, view, samples, node, 1)[1002].source is SampleSource.ROW_AGES


GOOD = [key(12).hex(), 1.0, True]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"at": 1.0},
        {"at": "x", "tables": {}},
        {"at": 1.0, "tables": {"2": [["zz"]]}},
        [],
        {"at": 161.0, "tables": {"2": [GOOD]}},
        {"at": "inf", "tables": {"2": [GOOD]}},
        {"at": 100.0, "tables": {"2": [GOOD, [key(12).hex(), "nan", True]]}},
        {"at": 100.0, "tables": {"2": [GOOD, [key(12).hex(), "inf", True]]}},
        {"at": 100.0, "tables": {"2": [GOOD, [key(12).hex(), -1.0, True]]}},
        {"at": 100.0, "tables": {"2": [GOOD, ["00" * 129, 1.0, True]]}},
        {"at": 100.0, "tables": {"2": [GOOD] * 5001}},
        {"at": 100.0, "tables": {"2": [GOOD], "1": "deep"}},
    ],
)
def test_a_note_that_is_none_is_passed_over_as_a_whole_and_named_once(
    directory: Directory, view: BundleView, wrong: object, capsys: pytest.CaptureFixture[str]
) -> None:
    samples, node = Samples(directory), Node()
    directory.publish(SAMPLES, "broken", wrong)
    note(directory, "client-1", 100.0, 11)
    with kept_logs():
        set_up_logs("warning", "text", sys.stdout)
        samples.gather(100.0)
        samples.gather(100.0)
    assert found(directory, view, samples, node, 1)[1002].keys == (key(11),)
    assert capsys.readouterr().out.count("a note of key samples is not used") == 1


def test_samples_of_tables_that_are_not_there_are_not_kept(directory: Directory) -> None:
    samples = Samples(directory)
    tables = {str(number): [GOOD] for number in range(2, 500)}
    directory.publish(SAMPLES, "broken", {"at": 100.0, "tables": tables})
    samples.gather(100.0)
    assert list(samples._tables) == [2]
