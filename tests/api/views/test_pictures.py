"""Pictures of a bundle, questions about it, and what commands would do."""

import shlex
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import SecretStr
from typer.main import get_command

from balancer.api.views.bundles import headline
from balancer.api.views.pictures import MOST_BLOCKS, block_starts, fair_shares
from balancer.cli.main import app
from balancer.directory.model import Change, MigrationKind, Put, RangeBounds, RecordKind, Remove
from balancer.migration.journal import pack_tablet
from balancer.planner.bundle_state import StateWord
from balancer.planner.commands import command_line
from balancer.planner.recorder import Recorder
from balancer.policies.keyspace.keys import KeyType, encode_key
from balancer.policies.view import PlanResult
from tests.api.conftest import small
from tests.support.bundle_states import report_small, state_of, view_of
from tests.support.directories import migration, moved, transaction
from tests.support.instance import TOKEN, Instance, bearer, serving

READ_TOKEN = "only-look-at-it-please"


def commit(instance: Instance, *records: Any) -> None:
    base = instance.directory().snapshot().version
    version = instance.directory().commit(transaction([Put(record) for record in records], base))
    instance.follower().wait(version - 1, 5)


def test_the_picture_has_every_tablet_in_its_owners_row(reader: httpx.Client) -> None:
    picture = reader.get("/v1/cluster", params={"bundle": "shop"}).json()
    rows = {row["id"]: row for row in picture["nodes"]}
    assert picture["tables"] == ["orders", "events"]
    assert sorted(rows["pg-a"]["ids"]) == [1, 4, 7, 1001, 1004]
    assert sum(len(row["ids"]) for row in rows.values()) == picture["tablets"] == 12
    assert {row["fair"] for row in rows.values()} == {4e6}
    assert rows["pg-a"]["bytes"] == [1e6] * 5
    assert picture["most_writes"] == 1004


def test_what_drains_shares_its_load_and_gets_none_and_what_is_down_neither(
    instance: Instance, client: httpx.Client
) -> None:
    state = report_small(instance)
    silent = replace(state.nodes[1], reachable=False, error="refused")
    draining = replace(state.nodes[2], state="draining")
    instance.report(replace(state, nodes=(state.nodes[0], silent, draining)))
    rows = {row["id"]: row for row in client.get("/v1/cluster", params={"bundle": "shop"}).json()["nodes"]}
    assert [rows[name]["fair"] for name in ("pg-b", "pg-c")] == [None, None]
    assert rows["pg-a"]["fair"] == sum(rows["pg-a"]["bytes"]) + sum(rows["pg-c"]["bytes"])
    bundle = client.get("/v1/status").json()["bundles"][0]
    assert bundle["headline"] == "pg-b is down: 4 tablets"


def test_shares_follow_weights() -> None:
    sizes, weights = np.array([10.0, 20.0, 30.0]), np.array([1.0, 3.0, 9.0])
    assert fair_shares(sizes, weights, [True, True, False], [False] * 3) == [8, 22, None]
    assert fair_shares(sizes, weights, [False] * 3, [True] * 3) == [None] * 3


def test_neighbours_share_a_block_where_there_are_many_but_never_over_the_end_of_a_table() -> None:
    tables = np.array([0] * 7 + [1] * 5)
    assert block_starts(tables, 100).tolist() == list(range(12))
    starts = block_starts(tables, 3).tolist()
    assert starts == [0, 4, 7, 8]


def test_a_large_picture_stays_small(instance: Instance, client: httpx.Client) -> None:
    view = view_of({"orders": 1 << 15}, [f"pg-{number}" for number in range(8)])
    instance.report(replace(state_of(view), at=instance.clock.now()))
    picture = client.get("/v1/cluster", params={"bundle": "shop"}).json()
    blocks = sum(len(row["ids"]) for row in picture["nodes"])
    assert blocks <= MOST_BLOCKS
    assert sum(sum(row["tablets"]) for row in picture["nodes"]) == picture["tablets"] == 1 << 15
    assert sum(sum(row["bytes"]) for row in picture["nodes"]) == 1000 * (1 << 15)


@pytest.mark.quick
def test_a_score_that_is_not_full_says_why_it_is_the_best() -> None:
    best = PlanResult(score_before=82.0, score_after=82.0, bound=82.0, limit=82.4)
    state = state_of(view_of({"orders": 4}), best)
    assert (
        headline(state)
        == "82 of 100, the best these tablets allow: tablets are too few or too large to share more evenly"
    )
    even = replace(state, plan=replace(best, score_before=99.6))
    assert headline(even) == "every node carries its share"
    assert headline(replace(even, nodes=())) == "it has no nodes yet"


def test_progress_counts_what_was_done_since_there_was_something_to_do(
    instance: Instance, client: httpx.Client
) -> None:
    began = instance.clock.now().timestamp()
    tablet = instance.directory().snapshot().tablet(5)
    done = replace(migration(tablet, "pg-a", "done"), finished=True, updated=began + 60, detail={"size": 3e6})
    old = replace(migration(tablet, "pg-c", "done"), finished=True, updated=began - 3600, detail={"size": 9e9})
    running = migration(instance.directory().snapshot().tablet(6), "pg-a", "copying")
    commit(instance, done, old, running)
    instance.directory().publish("progress", running.id, {"bytes_done": 4e6, "bytes_total": 2e6})
    report_small(instance)
    progress = client.get("/v1/status").json()["bundles"][0]["progress"]
    assert {name: progress[name] for name in ("done", "running", "left")} == {"done": 1, "running": 1, "left": 1}
    assert progress["done_bytes"] == 5e6, "never more than all of it is copied"
    assert progress["left_bytes"] == 1e6
    report_small(instance, word=StateWord.BALANCED, sentence="balanced")
    assert client.get("/v1/status").json()["bundles"][0]["progress"] is None


def test_a_tablet_is_explained_with_the_time_since_when_it_is_there(instance: Instance, client: httpx.Client) -> None:
    first = client.get("/v1/explain/tablets/3").json()
    assert first["sentences"][0].startswith("tablet 3 of table orders is on pg-c")
    commit(instance, moved(instance.directory().snapshot().tablet(3), "pg-a"))
    report_small(instance)
    second = client.get("/v1/explain/tablets/3").json()
    assert second["since"] > first["since"]
    assert "is on pg-a" in second["sentences"][0]
    assert client.get("/v1/explain/tablets/4").json()["since"] == first["since"]


def test_questions_about_what_is_not_there_are_not_found(reader: httpx.Client) -> None:
    assert reader.get("/v1/explain/tablets/77").status_code == 404
    assert reader.get("/v1/explain/nodes/pg-z").status_code == 404
    assert reader.get("/v1/why-not/3", params={"node": "pg-z"}).status_code == 404
    assert reader.get("/v1/cluster", params={"bundle": "nope"}).status_code == 422
    assert reader.get("/v1/explain/nodes/pg-a").json()["sentences"][0].startswith("node pg-a is active")
    answer = reader.get("/v1/why-not/3", params={"node": "pg-a"}).json()
    assert answer["code"] == "mover-off"
    assert answer["flip"] == "set enable_cell_balancer = true"


def test_a_dry_run_is_the_leaders_own_answer_and_changes_nothing(instance: Instance, client: httpx.Client) -> None:
    def tried(verb: str, **arguments: Any) -> httpx.Response:
        return client.post("/v1/commands/dry-run", json={"verb": verb, **arguments}, headers=bearer())

    before = instance.directory().snapshot().version
    move = tried("move", tablet=3, node="pg-a").json()
    assert move["result"] == "move of tablet 3 of orders from pg-c to pg-a"
    assert move["line"] == "balancer move 3 pg-a"
    refused = tried("move", tablet=3, node="pg-c")
    assert refused.status_code == 409
    assert "pg-c" in refused.json()["detail"]
    assert tried("nonsense").status_code == 422
    assert instance.directory().snapshot().version == before
    assert not instance.directory().snapshot().commands
    assert client.post("/v1/commands/dry-run", json={"verb": "drain", "node": "pg-a"}).status_code == 401


LINES = [
    ("apply", {"plan": "p1"}),
    ("apply", {"plan": "p1", "actions": [1, 3]}),
    ("cancel", {"migration": "abc"}),
    ("close", {"node": "pg-a"}),
    ("drain", {"node": "pg a", "reason": "it's old"}),
    ("drain", {"node": "--help"}),
    ("merge", {"tablets": ["3", "4"], "reason": "small"}),
    ("move", {"tablet": "3", "node": "pg-a", "mode": "replicate"}),
    ("pause", {"bundle": "shop", "seconds": 5400}),
    ("pause", {"migration": "abc"}),
    ("pin", {"tablet": "3", "seconds": 60, "reason": "-x"}),
    ("plan", {"bundle": "shop"}),
    ("release", {"tablet": "3"}),
    ("resume", {"bundle": "shop"}),
    ("run-now", {"bundle": "shop"}),
    ("split", {"tablet": "3", "parts": 4}),
    ("undrain", {"node": "pg-a"}),
    ("unpin", {"tablet": "3"}),
]


@pytest.mark.parametrize(("verb", "arguments"), LINES)
def test_the_line_for_a_shell_is_a_command_that_is_there(verb: str, arguments: dict[str, Any]) -> None:
    words = shlex.split(command_line(verb, arguments))
    assert words[0] == "balancer"
    group = get_command(app)
    context = group.make_context("balancer", words[1:])
    name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])  # type: ignore[attr-defined]
    assert name == verb
    with command.make_context(name, list(rest), parent=context) as made:
        given = [
            str(one)
            for value in made.params.values()
            for one in (value if isinstance(value, tuple | list) else [value])
        ]
    for value in arguments.values():
        for one in value if isinstance(value, list) else [value]:
            assert str(one) in given or f"{one}s" in given, (one, given)


@pytest.mark.quick
def test_what_cannot_be_written_on_the_command_line_is_not_written_wrongly() -> None:
    assert command_line("split", {"tablet": "3", "keys": ["00ff"]}) == ""
    assert command_line("decide", {"transaction": "x"}) == ""
    assert command_line("drain", {}) == ""


def test_a_read_token_shows_everything_and_changes_nothing(instance: Instance) -> None:
    with serving(instance, read_requires_token=True, read_token=SecretStr(READ_TOKEN)) as client:
        assert client.get("/v1/status").status_code == 401
        assert client.get("/v1/status", headers=bearer(READ_TOKEN)).status_code == 200
        assert client.get("/v1/access", headers=bearer(READ_TOKEN)).json() == {
            "may_change": False,
            "why_not": "this token may only read",
            "sign_in": False,
        }
        assert client.get("/v1/access", headers=bearer(TOKEN)).json()["may_change"] is True
        for path in ("/v1/commands", "/v1/commands/dry-run"):
            wish = {"verb": "drain", "node": "pg-a"}
            assert client.post(path, json=wish, headers=bearer(READ_TOKEN)).status_code == 403
        route = client.get("/v1/route/orders?key=5", headers=bearer(READ_TOKEN)).json()
        assert route["dsn"] == ""
    assert not instance.directory().snapshot().commands


def test_the_past_is_shown_as_it_was_and_not_beyond_what_is_kept(instance: Instance, client: httpx.Client) -> None:
    now = instance.clock.now()
    state = report_small(instance)
    instance.recorder.record(replace(state, at=now - timedelta(hours=5), sentence="working: long ago"))
    instance.recorder.record(replace(state, at=now - timedelta(minutes=10), sentence="working: before"))
    snapshot = instance.directory().snapshot()
    commit(instance, moved(snapshot.tablet(3), "pg-a"))
    report_small(instance)

    def at(seconds: float) -> str:
        return datetime.fromtimestamp(seconds, UTC).isoformat()

    def owner(**at: str) -> str:
        picture = client.get("/v1/cluster", params={"bundle": "shop", **at}).json()
        return str(next(row["id"] for row in picture["nodes"] if 3 in row["ids"]))

    assert owner() == "pg-a"
    assert owner(at=at(now.timestamp() - 500)) == "pg-c"
    past = client.get("/v1/cluster", params={"bundle": "shop", "at": at(now.timestamp() - 500)}).json()
    assert (past["past"], past["sentence"]) == (True, "working: before")
    old = client.get("/v1/cluster", params={"bundle": "shop", "at": at(now.timestamp() - 4 * 3600)}).json()
    assert old["sentence"] == "working: long ago"
    gone = client.get("/v1/cluster", params={"bundle": "shop", "at": at(now.timestamp() - 30 * 3600)})
    assert gone.status_code == 404
    series = client.get("/v1/series", params={"bundle": "shop", "day": True}).json()
    assert len(series["times"]) >= 3
    assert {node["id"]: node["tablets"][-1] for node in series["nodes"]}["pg-a"] == 6
    assert series["pause_budget_seconds"] == 0.25


def test_an_instance_that_has_just_started_shows_owners_of_the_past_from_the_log(tmp_path: Path) -> None:
    """Moves, a split and a move of what was split, an hour ago and less: all undone, in any number."""
    with small(tmp_path) as instance:
        begun = instance.clock.now().timestamp()
        history: list[tuple[float, dict[int, str]]] = []

        def settle(*changes: Change) -> None:
            history.append((instance.clock.now().timestamp(), owners_now(instance)))
            snapshot = instance.directory().snapshot()
            time.sleep(0.02)
            version = instance.directory().commit(transaction(list(changes), snapshot.version))
            instance.follower().wait(version - 1, 5)

        tablet = instance.directory().snapshot().tablet(3)
        for node in ("pg-a", "pg-b"):
            record = replace(migration(tablet, node, "done"), source_node=tablet.node, finished=True)
            tablet = moved(tablet, node)
            settle(Put(record), Put(tablet))
        whole = instance.directory().snapshot().tablet(1004)
        assert isinstance(whole.bounds, RangeBounds)
        cut = encode_key((KeyType.BIGINT,), (60,))
        parts = [
            replace(whole, id=1101, bounds=replace(whole.bounds, upper=cut)),
            replace(whole, id=1102, bounds=replace(whole.bounds, lower=cut)),
        ]
        split = replace(
            migration(whole, whole.node, "done"), finished=True, operation=MigrationKind.SPLIT, targets=tuple(parts)
        )
        split = replace(split, detail={"before": [pack_tablet(whole)]})
        settle(Put(split), Remove(RecordKind.TABLET, "1004"), *map(Put, parts))
        after = replace(migration(parts[1], "pg-c", "done"), source_node=whole.node, finished=True)
        settle(Put(after), Put(moved(parts[1], "pg-c")))
        report_small(instance)
        instance.recorder = Recorder()  # as of an instance that has seen nothing of it
        with serving(instance) as client:
            for at, owners in history:
                wanted = datetime.fromtimestamp(at + 0.005, UTC).isoformat()
                picture = client.get("/v1/cluster", params={"bundle": "shop", "at": wanted}).json()
                assert (picture["past"], picture["word"]) == (True, None)
                assert {number: row["id"] for row in picture["nodes"] for number in row["ids"]} == owners
                assert sum(sum(row["bytes"]) for row in picture["nodes"]) >= 12_000_000
            since = datetime.fromisoformat(client.get("/v1/series", params={"bundle": "shop"}).json()["since"])
            assert since.timestamp() <= begun
            early = datetime.fromtimestamp(begun - 90_000, UTC).isoformat()
            assert client.get("/v1/cluster", params={"bundle": "shop", "at": early}).status_code == 404


def owners_now(instance: Instance) -> dict[int, str]:
    snapshot = instance.directory().snapshot()
    return {tablet.id: tablet.node for table in snapshot.tables for tablet in snapshot.tablets(table)}
