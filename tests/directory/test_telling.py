"""What a change is about: the same for the command line's filters and for the API's."""

from dataclasses import replace

import pytest

from balancer.directory.history import bundle_of, is_step, nodes_of, tablets_of, told
from balancer.directory.model import (
    Bundle,
    Change,
    Command,
    CommandState,
    Counter,
    LogEntry,
    Node,
    Pause,
    Pin,
    Plan,
    Put,
    RecordKind,
    Remove,
)
from balancer.directory.snapshot import Snapshot
from tests.support.directories import HASHED, leaves, migration

pytestmark = pytest.mark.quick

TABLET = leaves(8)[2]  # tablet 3, on pg-c
MOVE = migration(TABLET, "pg-a")


def command(**arguments: object) -> Put:
    return Put(Command("c1", "move", dict(arguments), "ada", 0.0))


@pytest.mark.parametrize(
    ("change", "tablets", "nodes", "bundle"),
    [
        (Put(TABLET), {3}, {"pg-c"}, None),
        (Put(MOVE), {3}, {"pg-a", "pg-c"}, "shop"),
        (Put(Pin(3, None)), {3}, set(), None),
        (Put(Node("pg-a", "shop", "")), set(), {"pg-a"}, "shop"),
        (Put(Bundle("shop")), set(), set(), "shop"),
        (Put(Pause("shop", None)), set(), set(), "shop"),
        (Put(HASHED), set(), set(), "shop"),
        (Put(Counter("tablet", 9)), set(), set(), None),
        (command(tablet="3", node="pg-a"), {3}, {"pg-a"}, None),
        (command(tablets=["3", "4"], bundle="shop"), {3, 4}, set(), "shop"),
        (command(tablet="three"), set(), set(), None),
        (Remove(RecordKind.TABLET, "3"), {3}, set(), None),
        (Remove(RecordKind.PIN, "3"), {3}, set(), None),
        (Remove(RecordKind.NODE, "pg-a"), set(), {"pg-a"}, None),
        (Remove(RecordKind.PAUSE, "shop"), set(), set(), "shop"),
        (Remove(RecordKind.MIGRATION, "m1"), set(), set(), None),
    ],
)
def test_what_a_change_is_about(change: Change, tablets: set[int], nodes: set[str], bundle: str | None) -> None:
    assert tablets_of(change) == tablets
    assert nodes_of(change) == nodes
    assert bundle_of(change, Snapshot()) == bundle


def test_a_change_is_told_in_a_few_words() -> None:
    assert told(Put(TABLET)) == "tablet 3 on pg-c, epoch 1, owned"
    assert told(Put(MOVE)) == f"move {MOVE.id} of 3: planned"
    assert told(Remove(RecordKind.NODE, "pg-a")) == "node pg-a removed"
    assert told(Put(Pin(3, None, reason="its disk"))) == "tablet 3 pinned: its disk"


def entry(*changes: Change) -> LogEntry:
    return LogEntry(7, "t", 0.0, "ann", 1, "because", changes)


def test_steps_are_told_from_what_people_look_for() -> None:
    tablet = leaves(4)[0]
    step = migration(tablet, "pg-b", "copying")
    waiting = Command("c1", "drain", {"node": "pg-a"}, "ann", 0.0)
    done = Plan("p", "shop", 0.0, "done", {})
    for change in (Put(step), Put(waiting), Put(done), Put(Counter("c", 3))):
        assert is_step(entry(change)), change
    shown: tuple[tuple[Change, ...], ...] = (
        (Put(replace(step, state="planned")),),
        (Put(replace(step, state="opening")), Put(replace(tablet, node="pg-b", epoch=2))),
        (Put(replace(step, state="done", finished=True)),),
        (Put(replace(step, state="failed", finished=True, error="no space")),),
        (Put(replace(waiting, state=CommandState.DONE)),),
        (Put(Plan("p", "shop", 0.0, "approved", {})),),
        (Put(Pin(3, None)),),
    )
    for changes in shown:
        assert not is_step(entry(*changes)), changes
