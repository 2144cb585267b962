"""Operators' commands: what the leader makes of each, and the sentence of each refusal."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from balancer.directory.invariants import TABLET_COUNTER
from balancer.directory.model import CommandState, Counter, NodeState, Pause, Pin, Plan, Put
from balancer.directory.snapshot import Snapshot
from balancer.directory.sqlite.backend import SqliteDirectory
from balancer.errors import UserError
from balancer.planner.commands import decide, request
from balancer.planner.verbs import Outcome
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.options import BundleOptions, PlacementRule, TableOptions
from balancer.policies.view import ActionKind
from balancer.settings import Mode
from tests.support.directories import HASHED, RANGED, fill, frame, key, leaves, migration, ranges, transaction

pytestmark = pytest.mark.quick

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[SqliteDirectory]:
    with SqliteDirectory(tmp_path / "directory.db") as directory:
        tablets = [*leaves(4), *ranges([10, 20, 30], nodes=("pg-a",))]
        fill(directory, [*frame(), HASHED, RANGED, *tablets, Counter(TABLET_COUNTER, 2000)])
        yield directory


def give(
    snapshot: Snapshot, verb: str, modes: Mapping[str, Mode] | None = None, **arguments: Any
) -> tuple[CommandState, Outcome]:
    command, outcome = decide(request(verb, arguments, "ann@host", NOW), snapshot, NOW, modes)
    assert command.result == outcome.result
    return command.state, outcome


def test_drain_says_how_many_tablets_will_leave(directory: SqliteDirectory) -> None:
    state, outcome = give(directory.snapshot(), "drain", node="pg-a", reason="new disk")
    assert state is CommandState.DONE
    assert "6 tablets will leave it" in outcome.result
    (change,) = outcome.changes
    assert isinstance(change, Put)
    assert (change.record.state, change.record.reason) == (NodeState.DRAINING, "drained by ann@host: new disk")  # type: ignore[union-attr]
    assert outcome.replan == "shop"


def test_a_move_and_a_merge_against_a_rule_are_refused(directory: SqliteDirectory) -> None:
    """Range tablets 1001 … 1004 are cut at 10, 20 and 30; the rule is about keys from 20 on."""
    snapshot = directory.snapshot()
    rule = PlacementRule("late", ("events",), keys_from=(20,), not_nodes=("pg-b",))
    options = {"shop": BundleOptions(rules=(rule,))}

    def told(verb: str, **arguments: Any) -> tuple[CommandState, str]:
        command, outcome = decide(request(verb, arguments, "ann@host", NOW), snapshot, NOW, {}, options)
        return command.state, outcome.result

    refused, reason = told("move", tablet="1003", node="pg-b")
    assert refused is CommandState.REFUSED
    assert reason == "tablet 1003 may not go to pg-b: rule late: they stay off pg-b"
    assert told("move", tablet="1002", node="pg-b")[0] is CommandState.DONE
    refused, reason = told("merge", tablets=["1002", "1003"])
    assert (refused, reason) == (
        CommandState.REFUSED,
        "rule late ends between these tablets: they must stay apart",
    )
    assert told("merge", tablets=["1003", "1004"])[0] is CommandState.DONE


def test_a_move_out_of_the_zones_of_a_table_is_refused(directory: SqliteDirectory) -> None:
    options = {"shop": BundleOptions(tables={"events": TableOptions(zones=("eu",))})}
    command = request("move", {"tablet": "1003", "node": "pg-b"}, "ann@host", NOW)
    _, outcome = decide(command, directory.snapshot(), NOW, {}, options)
    assert outcome.result == "tablet 1003 may not go to pg-b: it is in zone (none), and table events lives in eu"


def test_a_pin_ends_by_itself(directory: SqliteDirectory) -> None:
    _, outcome = give(directory.snapshot(), "pin", tablet="3", seconds=3600)
    assert outcome.changes == (Put(Pin(3, NOW.timestamp() + 3600, "ann@host", "")),)
    assert outcome.result == "tablet 3 stays on pg-c until 2026-03-01 13:00:00 UTC"


def test_a_split_of_a_vbucket_doubles_its_modulus(directory: SqliteDirectory) -> None:
    _, outcome = give(directory.snapshot(), "split", tablet="2")
    (action,) = outcome.actions
    assert action.kind is ActionKind.SPLIT
    assert [part.leaf for part in action.parts] == [Leaf(8, 1), Leaf(8, 5)]
    _, outcome = give(directory.snapshot(), "split", tablet="2", parts=4)
    assert {part.leaf for part in outcome.actions[0].parts} == {Leaf(16, 1), Leaf(16, 5), Leaf(16, 9), Leaf(16, 13)}


def test_a_split_at_keys_needs_keys_inside(directory: SqliteDirectory) -> None:
    _, outcome = give(directory.snapshot(), "split", tablet="1002", keys=[key(15).hex()])
    assert [part.lower for part in outcome.actions[0].parts] == [key(10), key(15)]
    state, refusal = give(directory.snapshot(), "split", tablet="1002", keys=[key(20).hex()])
    assert state is CommandState.REFUSED
    assert refusal.result == "every key must lie strictly inside tablet 1002"


def test_a_merge_joins_neighbours_in_whatever_order_they_are_named(directory: SqliteDirectory) -> None:
    _, outcome = give(directory.snapshot(), "merge", tablets=["1003", "1002"])
    (action,) = outcome.actions
    assert action.tablets == (1002, 1003)
    assert action.parts[0].lower == key(10)


@pytest.mark.parametrize(
    ("verb", "arguments", "sentence"),
    [
        ("move", {"tablet": "1", "node": "pg-a"}, "tablet 1 is on node pg-a already"),
        (
            "move",
            {"tablet": "1", "node": "pg-z"},
            "there is no node 'pg-z' in the directory; there are: pg-a, pg-b, pg-c",
        ),
        ("move", {"tablet": "x", "node": "pg-b"}, "'x' is not a tablet's id: ids are numbers, see `balancer tablets`"),
        ("move", {"tablet": "99", "node": "pg-b"}, "there is no tablet 99 in the directory"),
        ("move", {"node": "pg-b"}, "the command needs 'tablet'"),
        (
            "move",
            {"tablet": "1", "node": "pg-b", "mode": "fast"},
            "there is no mode 'fast'; there are: auto, replicate, read-only",
        ),
        (
            "split",
            {"tablet": "2", "parts": 3},
            "tablet 2 is a vbucket: it can be split into 2, 4, 8 … parts, not into 3",
        ),
        (
            "split",
            {"tablet": "2", "keys": [key(15).hex()]},
            "tablet 2 is a vbucket: it is split by its modulus, not at keys",
        ),
        ("split", {"tablet": "1002", "parts": 1}, "a split makes two parts or more, and at most 1000"),
        ("merge", {"tablets": ["1002", "1004"]}, "tablets 1002 and 1004 are not neighbours"),
        ("merge", {"tablets": ["1", "2"]}, "only two sibling vbuckets can be merged: (m, r) and (m, r + m/2)"),
        ("merge", {"tablets": ["1", "1002"]}, "the tablets belong to different tables"),
        ("merge", {"tablets": ["1"]}, "a merge needs two tablets or more"),
        ("merge", {"tablets": ["1", "3"]}, "the tablets are on different nodes (pg-a, pg-c): move them together first"),
        ("pause", {"bundle": "shopp"}, "there is no bundle 'shopp'; there are: shop"),
        ("cancel", {"migration": "m9"}, "there is no migration or order 'm9': see `balancer moves`, `balancer status`"),
        (
            "double",
            {"bundle": "shop", "table": "none"},
            "there is no table 'none' in the directory; known tables: events, orders",
        ),
    ],
)
def test_refusals_say_what_is_wrong(
    directory: SqliteDirectory, verb: str, arguments: dict[str, Any], sentence: str
) -> None:
    state, outcome = give(directory.snapshot(), verb, **arguments)
    assert (state, outcome.result) == (CommandState.REFUSED, sentence)
    assert not outcome.changes
    assert not outcome.actions


def test_a_tablet_in_a_migration_is_left_alone(directory: SqliteDirectory) -> None:
    snapshot = directory.snapshot()
    running = migration(snapshot.tablet(1), "pg-b", "copying")
    directory.commit(transaction((Put(running),), snapshot.version))
    state, outcome = give(directory.snapshot(), "move", tablet="1", node="pg-c")
    assert (state, outcome.result) == (CommandState.REFUSED, f"tablet 1 is part of migration {running.id} (copying)")
    assert give(directory.snapshot(), "cancel", migration=running.id)[1].steer == (("cancel", running.id),)


OBSERVED = 'observe, in which nothing is started; write mode = "approve" into its file first'
DRIVEN = "autonomous, in which plans start by themselves when the schedule allows it"


@pytest.mark.parametrize(("mode", "reason"), [(Mode.OBSERVE, OBSERVED), (Mode.AUTONOMOUS, DRIVEN)])
def test_a_plan_is_approved_only_where_plans_wait_for_it(directory: SqliteDirectory, mode: Mode, reason: str) -> None:
    plan = Plan("p1", "shop", NOW.timestamp(), "proposed", {"actions": []})
    directory.commit(transaction([Put(plan)], directory.snapshot().version))
    state, outcome = give(directory.snapshot(), "apply", {"shop": mode}, plan="p1")
    sentence = f"plan p1 cannot be approved: the mode of bundle shop is {reason}"
    assert (state, outcome.result, outcome.changes) == (CommandState.REFUSED, sentence, ())
    assert give(directory.snapshot(), "apply", {"shop": Mode.APPROVE}, plan="p1")[0] is CommandState.DONE


@pytest.mark.parametrize(
    ("modes", "part"),
    [
        ({"shop": Mode.OBSERVE}, "is observe, in which nothing is started"),
        ({"shop": Mode.APPROVE}, "starts only what was approved"),
        ({"other": Mode.AUTONOMOUS}, "not in the leader's configuration"),
    ],
)
def test_a_round_is_refused_where_it_could_start_nothing(
    directory: SqliteDirectory, modes: Mapping[str, Mode], part: str
) -> None:
    state, outcome = give(directory.snapshot(), "run-now", modes, bundle="shop")
    assert (state, outcome.round) == (CommandState.REFUSED, "")
    assert part in outcome.result


def test_a_round_is_for_the_next_tick_and_not_for_a_paused_bundle(directory: SqliteDirectory) -> None:
    modes = {"shop": Mode.AUTONOMOUS}
    assert give(directory.snapshot(), "run-now", modes, bundle="shop")[1].round == "shop"
    directory.commit(transaction([Put(Pause("shop", None, "ann", ""))], directory.snapshot().version))
    state, outcome = give(directory.snapshot(), "run-now", modes, bundle="shop")
    assert (state, outcome.result) == (
        CommandState.REFUSED,
        "bundle shop is paused: `balancer resume shop` ends that",
    )


def test_nobody_ends_or_replaces_the_hold_of_a_schema_change_but_itself(directory: SqliteDirectory) -> None:
    """It has looked for migrations once: one that began now would move between nodes that differ."""
    directory.commit(transaction([Put(Pause("shop", None, "ann", "schema change c1"))], directory.snapshot().version))
    for verb, seconds in (("resume", None), ("pause", None), ("pause", 3600), ("run-now", None)):
        state, outcome = give(directory.snapshot(), verb, bundle="shop", seconds=seconds)
        assert (state, outcome.changes) == (CommandState.REFUSED, ())
        assert outcome.result == (
            "bundle shop is held by schema change c1 until that has ended: `balancer ddl status shop` shows its"
            " progress, `balancer ddl apply shop --continue` or `--undo` ends it"
        )


def test_a_pause_is_not_taken_for_the_hold_of_a_schema_change(directory: SqliteDirectory) -> None:
    state, outcome = give(directory.snapshot(), "pause", bundle="shop", reason="schema change tonight")
    assert (state, outcome.changes) == (CommandState.REFUSED, ())
    assert outcome.result == "a reason that begins with 'schema change ' belongs to `balancer ddl apply`: use another"


def test_an_unknown_verb_names_the_known_ones() -> None:
    with pytest.raises(UserError, match="there is no command 'explode'; there are: apply, cancel"):
        request("explode", {}, "ann", NOW)


def test_parts_of_a_plan_are_approved_by_their_numbers(directory: SqliteDirectory) -> None:
    actions = [{"kind": "move", "tablets": [number]} for number in (1, 2, 3)]
    plan = Plan("p2", "shop", 0.0, "proposed", {"actions": actions})
    directory.commit(transaction([Put(plan)], directory.snapshot().version))
    state, outcome = give(directory.snapshot(), "apply", {"shop": Mode.APPROVE}, plan="p2", actions=[3, 1])
    assert (state, outcome.result) == (
        CommandState.DONE,
        "2 of 3 actions of plan p2 are approved and start when the schedule allows it",
    )
    (put,) = outcome.changes
    assert isinstance(put, Put)
    assert isinstance(put.record, Plan)
    assert (put.record.state, put.record.document["actions"]) == ("approved", [actions[0], actions[2]])
    for wrong, reason in (([4], "no action 4"), ([0], "no action 0"), ([], "no action is chosen")):
        state, outcome = give(directory.snapshot(), "apply", {"shop": Mode.APPROVE}, plan="p2", actions=wrong)
        assert (state, reason in outcome.result) == (CommandState.REFUSED, True), outcome.result
