"""What the views say where no instance runs, of directories made by hand; and how figures look to people."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from balancer.cli.main import COMMANDS
from balancer.cli.migrate import until_empty
from balancer.cli.moves import finished_row, migration_document, running_row
from balancer.cli.status import read, status_documents
from balancer.clock import SystemClock
from balancer.directory.model import KeyColumn, NodeState, Plan, Put, RangeBounds, Tablet
from balancer.directory.sqlite.backend import SqliteDirectory
from balancer.errors import Refused
from balancer.planner.bundle_state import STATUS_TOPIC
from balancer.planner.plans import plan_document
from balancer.policies.keyspace.keys import HIGHEST, KeyType, encode_key
from balancer.policies.options import BundleOptions
from balancer.policies.view import Action, ActionKind, PlanResult
from balancer.terminal.output import bounds_text
from tests.support.bundle_states import view_of_snapshot
from tests.support.commands import Result, balancer_here
from tests.support.directories import HASHED, NODES, RANGED, fill, migration, transaction

pytestmark = pytest.mark.quick

NOTE = {
    "bundle": "shop",
    "mode": "autonomous",
    "word": "balanced",
    "sentence": "score 99 of 100; nothing to do",
    "paused": False,
    "paused_until": None,
    "plan": "",
    "score": 99.1,
    "score_after": 99.1,
    "bound": 99.9,
    "actions": 0,
    "pending_moves": 0,
    "schedule": {
        "formula": "hours < 6",
        "level": "bundle shop",
        "timezone": "UTC",
        "open": False,
        "closes_at": None,
        "next_open": "2026-03-02T00:00:00+00:00",
    },
    "nodes": [{"node": "pg-a", "reachable": False, "error": "no route", "unreachable_since": "noon"}],
    "hot": [{"tablet": 3, "table": "orders", "node": "pg-c", "write_rate": 7.5, "read_rate": 2.0, "bytes": 2048.0}],
    "hot_by_day": [],
}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[SqliteDirectory]:
    with SqliteDirectory(tmp_path / "directory.db") as directory:
        fill(directory)
        yield directory


@pytest.fixture
def call(directory: SqliteDirectory, tmp_path: Path) -> Any:
    def run(*arguments: str) -> Result:
        return balancer_here(*arguments, "--directory", f"sqlite://{tmp_path}/directory.db")

    return run


def leave_note(directory: SqliteDirectory, seconds: float, **more: Any) -> None:
    at = SystemClock().now() - timedelta(seconds=seconds)
    directory.publish(STATUS_TOPIC, "shop", {**NOTE, **more, "at": at.isoformat()})


def test_help_names_every_command() -> None:
    shown = balancer_here("--help")
    assert shown.code == 0
    for command in COMMANDS:
        assert f" {command} " in shown.out, command


def test_status_says_that_nobody_runs(call: Any) -> None:
    text = call("status").out
    assert "WARNING: no instance leads: nothing is being done; start `balancer run`" in text
    assert text.startswith("bundle shop: unknown\n")


def test_an_old_note_is_called_old(directory: SqliteDirectory, call: Any) -> None:
    leave_note(directory, 7200)
    text = call("status").out
    assert "start `balancer run`; the last report is 2 h 0 m old" in text
    assert text.startswith("bundle shop: was ")
    assert "closed until 2026-03-02 00:00 UTC (hours < 6, of bundle shop, UTC)" in text
    assert "since noon (no route)" in text
    assert call("status", "--check").code == 1
    (document,) = json.loads(call("status", "--output", "json").out)
    assert (document["word"], document["age_seconds"] >= 7200) == ("balanced", True)


def test_a_fresh_note_of_a_leader_needs_no_warning(directory: SqliteDirectory, call: Any) -> None:
    leave_note(directory, 2)
    leadership = directory.campaign("host-a", 5.0)
    assert leadership is not None
    assert call("status", "--check").code == 0
    (document,) = status_documents(read(directory))
    assert (document["leader"], document["warning"]) == ("host-a", "")
    leave_note(directory, 600)
    (document,) = status_documents(read(directory))
    assert document["warning"] == "the last report is 10 m old, although host-a leads"
    leadership.resign()


def test_an_empty_node_is_waited_for_no_longer(directory: SqliteDirectory) -> None:
    snapshot = directory.snapshot()
    empty = replace(snapshot.nodes["pg-a"], id="pg-z", state=NodeState.DRAINING)
    directory.commit(transaction([Put(empty)], snapshot.version))
    until_empty(directory, "pg-z", 0.0, quiet=True)
    with pytest.raises(Refused, match="not draining any more"):
        until_empty(directory, "pg-a", 0.0, quiet=True)


def test_a_drained_node_is_safe_to_take_away_when_nothing_needs_it(directory: SqliteDirectory) -> None:
    snapshot = directory.snapshot()
    empty = replace(snapshot.nodes["pg-a"], id="pg-z", state=NodeState.DRAINING)
    directory.commit(transaction((Put(empty),), snapshot.version))
    assert node_of(directory, "pg-z")["safe_to_take_away"] is True
    snapshot = directory.snapshot()
    last = replace(migration(snapshot.tablet(1), "pg-b", "retiring"), source_node="pg-z")
    directory.commit(transaction((Put(last),), snapshot.version))
    assert node_of(directory, "pg-z")["safe_to_take_away"] is False
    assert "safe_to_take_away" not in node_of(directory, "pg-a")


def node_of(directory: SqliteDirectory, node: str) -> Any:
    (document,) = status_documents(read(directory))
    return next(row for row in document["nodes"] if row["node"] == node)


def test_hot_tablets_are_shown_with_their_keys(directory: SqliteDirectory, call: Any) -> None:
    assert call("hot").out == "no instance has reported yet: start `balancer run`\n"
    leave_note(directory, 2)
    assert call("hot").out.splitlines()[1] == "3\torders\thash % 8 = 2\tpg-c\t7.5\t2\t2.0 KB"


def test_hot_tablets_are_shown_by_their_busiest_hour(directory: SqliteDirectory, call: Any) -> None:
    leave_note(directory, 2)
    assert "no hour of the day has been seen yet" in call("hot", "--profile").out
    peak = {"tablet": 3, "table": "orders", "node": "pg-c", "busiest": "from 18 to 19 h", "bytes": 2048.0}
    leave_note(directory, 2, hot_by_day=[{**peak, "write_rate": 90.0, "read_rate": 2.0}])
    shown = call("hot", "--profile").out.splitlines()
    assert shown[1] == "3\torders\thash % 8 = 2\tpg-c\tfrom 18 to 19 h\t90\t2\t2.0 KB"
    (row,) = json.loads(call("hot", "--profile", "-o", "json").out)
    assert row["busiest"] == "from 18 to 19 h"


def test_without_a_plan_the_commands_say_so(call: Any) -> None:
    for command in (("plan",), ("explain", "tablet", "1"), ("why-not", "1", "pg-b"), ("explain", "action", "1")):
        refused = call(*command)
        assert refused.code == 4, refused.out
        assert "no plan of bundle shop is stored" in refused.err
    assert call("explain", "tablet", "99").code == 2


def test_a_stored_plan_is_shown_and_questioned(directory: SqliteDirectory, call: Any) -> None:
    snapshot = directory.snapshot()
    action = Action(ActionKind.MOVE, "orders", (3,), "pg-c is 40% above its share", "load", "pg-c", "pg-a", size=2e6)
    result = PlanResult((action,), counts={"pinned": 2}, score_before=61.0, score_after=80.0, bound=95.0, notes=("n",))
    document = plan_document(result, view_of_snapshot(snapshot), BundleOptions())
    plan = json.loads(json.dumps(document))
    directory.commit(transaction((Put(plan_record("p1", plan)),), snapshot.version))
    text = call("plan").out
    assert "plan p1 of bundle shop, proposed" in text
    assert "balance 61.0 of 100 now, 80.0 after these actions" in text
    assert "1\tmove\t3\tpg-c\tpg-a\t1.9 MB\tload\tpg-c is 40% above its share" in text
    assert "2 pinned: " in text
    assert "no plan within these budgets reaches more than 95.0" in call("explain", "action", "1").out
    assert "tablet 3 of table orders is on pg-c" in call("explain", "tablet", "3").out
    for short, long in (("3", ("tablet", "3")), ("pg-c", ("node", "pg-c")), ("#1", ("action", "1"))):
        said = call("explain", short)
        age = said.out.index("By plan")
        assert (said.code, said.out[:age]) == (0, call("explain", *long).out[:age])
    assert call("why-not", "3", "pg-c").out.startswith("not planned (same-node): tablet 3 is on pg-c")
    assert call("why-not", "3", "pg-q").code == 2


def plan_record(number: str, document: Any) -> Plan:
    return Plan(number, "shop", SystemClock().now().timestamp(), "proposed", document)


def test_bounds_read_like_intervals() -> None:
    two = replace(RANGED, columns=(KeyColumn("a", KeyType.BIGINT), KeyColumn("b", KeyType.TEXT)))
    lower = encode_key(two.key_types, (5, "x"))
    prefix = encode_key(two.key_types, (7,), prefix=True)
    assert bounds_text(two, Tablet(1, 2, RangeBounds(lower, prefix), "a")) == "[(5, x), (7))"
    assert bounds_text(two, Tablet(1, 2, RangeBounds(b"", prefix + HIGHEST), "a")) == "(-infinity, (7, MAXVALUE))"
    assert bounds_text(RANGED, Tablet(1, 2, RangeBounds(), "a")) == "(-infinity, infinity)"


def test_a_running_migration_shows_how_far_it_is(directory: SqliteDirectory) -> None:
    record = migration(directory.snapshot().tablet(1), NODES[1], "copying")
    note = {"state": "copying", "since": 3.0, "bytes_done": 512, "bytes_total": 2048, "rate": 256.0, "eta": 6.0}
    row = running_row(migration_document(record, HASHED, {**note, "waiting_for": "", "paused": True}))
    assert (row["phase"], row["for"], row["rate"], row["left"]) == ("paused, copying", "3.0 s", "256 B/s", "6.0 s")
    assert str(row["done"]).endswith(" 25%")
    assert row["waits_for"] is None


def test_a_finished_migration_shows_how_it_ended(directory: SqliteDirectory) -> None:
    record = migration(directory.snapshot().tablet(1), NODES[1], "failed")
    ended = replace(
        record, finished=True, created=10.0, updated=12.5, error="disk full", detail={"size": 4096, "pause": 0.02}
    )
    row = finished_row(migration_document(ended, None, {}))
    assert (row["ended"], row["size"], row["took"], row["write_pause"]) == ("failed", "4.0 KB", "2.5 s", "20 ms")
    assert row["error"] == "disk full"
