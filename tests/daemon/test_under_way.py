"""What keeps a leader from handing over, and what keeps an instance from being handed anything."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from balancer.daemon.leadership import under_way, why_unfit
from balancer.directory.contract import Directory
from balancer.directory.model import Command, CommandState, Pause, Put, Record
from balancer.features.ddl.apply import SchemaChange
from balancer.planner.bundle_state import BundleState, NodeReport
from tests.support.bundle_states import state_of, view_of_snapshot
from tests.support.directories import migration, transaction

pytestmark = pytest.mark.quick

CHANGE = SchemaChange("d1", "shop", "ALTER TABLE …", "ann", 0.0)
WAITING = Command("c1", "move", {"tablet": 1}, "ann", 0.0)


def found(directory: Directory, records: Sequence[Record], changes: Sequence[SchemaChange] = ()) -> str:
    if records:
        directory.commit(transaction([*map(Put, records)], directory.snapshot().version))
    return under_way(directory.snapshot(), changes, [])


def test_nothing_is_under_way_when_all_has_ended(directory: Directory) -> None:
    view = directory.snapshot()
    ended = replace(migration(view.tablet(1), view.tablet(1).node, "done"), finished=True)
    answered = replace(WAITING, state=CommandState.DONE)
    held = Pause("shop", None, "ann", "lunch")
    assert found(directory, [ended, answered, held], [replace(CHANGE, state="done")]) == ""


def test_everything_that_a_new_leader_would_interrupt_is_named(directory: Directory) -> None:
    view = directory.snapshot()
    assert under_way(view, [], ["countries"]) == "the copy of reference table countries"
    assert under_way(view, [CHANGE], []) == "schema change d1"
    damaged = Pause("shop", None, "ann", '{"state": "copying"}', "import events")
    assert found(directory, [damaged]).startswith("an import (the directory's record of the import of table events is")
    assert found(directory, [WAITING]) == "the command move of ann"
    moves = [replace(migration(view.tablet(n), view.tablet(n).node, "copying"), id=f"m{n}") for n in (1, 2)]
    older = replace(moves[1], created=-1.0)
    assert found(directory, [moves[0], older]) == "move m2", "the oldest"


def state(directory: Directory, reached: Sequence[bool], error: str = "") -> BundleState:
    nodes = tuple(NodeReport(f"n{at}", "active", "", one) for at, one in enumerate(reached))
    return replace(state_of(view_of_snapshot(directory.snapshot())), nodes=nodes, error=error)


def test_an_instance_is_fit_by_what_it_sees_of_its_nodes(directory: Directory) -> None:
    assert why_unfit(["shop"], {}) == "it has not looked at its nodes yet"
    assert why_unfit([], {}) == ""
    assert why_unfit(["shop"], {"shop": state(directory, [True, False])}) == ""
    assert why_unfit(["shop"], {"shop": state(directory, [True, False, False])}) == "it reaches 1 of 3 nodes"
    assert why_unfit(["shop"], {"shop": state(directory, [True], "a defect")}) == "it cannot look at bundle shop"
