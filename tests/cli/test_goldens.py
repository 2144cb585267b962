"""Views at 80 and 200 columns, as a terminal shows them. `BALANCER_GOLDENS=1` writes the files; then look at them.

The documents are made up: a node was killed, a migration runs, names are as long as names are.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from balancer.cli.demo.application import Count
from balancer.cli.demo.screen import Picture, Step, panel
from balancer.cli.moves import show_documents
from balancer.cli.plan import show_plan
from balancer.cli.status import _show as show_status
from balancer.directory.model import Plan
from balancer.migration.machine import State
from balancer.migration.progress import Progress
from balancer.planner.bundle_state import BundleState, StateWord
from balancer.policies.view import PlanResult
from balancer.terminal import output
from balancer.terminal.output import Output, show_rows
from tests.support.bundle_states import NOON, state_of, view_of
from tests.support.directories import leaves, migration

pytestmark = pytest.mark.quick

GOLDENS = Path(__file__).parent / "goldens"
SIZES = [(80, 24), (200, 50)]
LONG = "pg-b-with-a-long-name"
AT = "2026-03-01T11:48:47+00:00"
WHY = (
    "pg-a is 55 % above its share of writes and pg-b-with-a-long-name is 23 % below its share: this tablet takes 2.7"
    " rows/s written there for 1.3 MB to copy"
)


def status() -> None:
    silence = {"reachable": False, "unreachable_since": "2026-03-01T11:48:47+00:00", "error": "connection refused"}
    rates = {"bytes": 44355788.0, "write_rate": 12345.6, "read_rate": 566.1}
    nodes = [
        {"node": "pg-a", "state": "active", "reason": "", "tablets": 23, "reachable": True, **rates},
        {"node": "pg-b-with-a-long-name", "state": "active", "reason": "", "tablets": 8, **silence, **rates},
        {"node": "pg-c", "state": "draining", "reason": "", "tablets": 0, "safe_to_take_away": True},
    ]
    schedule = {"formula": "hours < 6 && minutes % 20 == 0", "level": "bundle shop", "timezone": "Europe/Moscow"}
    document = {
        "bundle": "shop",
        "word": "blocked",
        "leader": "host-a",
        "age_seconds": 1.2,
        "warning": "",
        "sentence": "pg-b-with-a-long-name is down since 11:48:47 UTC (connection refused)",
        "mode": "autonomous",
        "paused": False,
        "paused_until": None,
        "orders": [],
        "nodes": nodes,
        "score": 82.1,
        "score_after": 91.4,
        "actions": 2,
        "pending_moves": 17,
        "bound": 95.0,
        "schedule": {**schedule, "open": False, "closes_at": None, "next_open": "2026-03-02T00:00:00+03:00"},
    }
    show_status(document)


def moves() -> None:
    common = {"mode": "replicate", "mode_reason": "", "table": "orders", "paused": False, "retries": 0, "error": ""}
    going = {
        "operation": "move",
        "source": "pg-a",
        "target": "pg-b-with-a-long-name",
        "tablets": [12],
        "finished": False,
    }
    copying = {"state": "copying", "seconds_in_state": 75.2, "bytes_done": 400 << 20, "bytes_total": 1 << 30}
    rates = {"bytes_per_second": 40e6, "seconds_left": 16.3, "waits_for": "", "size": 1 << 30, "write_pause": None}
    done = {
        **common,
        **going,
        **copying,
        **rates,
        "finished": True,
        "state": "done",
        "seconds": 93.0,
        "write_pause": 0.021,
    }
    wrong = "node pg-b-with-a-long-name has no space left (could not extend file: No space left on device)"
    show_documents(
        [
            {**common, **going, **copying, **rates, "id": "m24a0e554e240"},
            {**done, "id": "m1601f79413b5"},
            {**done, "id": "m2d4942363a90", "operation": "split", "target": "pg-a", "state": "failed", "error": wrong},
        ],
        finished=True,
    )


def plan() -> None:
    action = {"kind": "move", "table": "orders", "tablets": [2], "reason": WHY, "code": "load", "source": "pg-a"}
    more = {"target": "pg-b", "parts": [], "count": 0, "size": 1.3e6, "gain": 0.1, "then": []}
    kept = {
        "kind": "merge",
        "tablets": [24, 25],
        "target": "",
        "code": "apart",
        "reason": "they are on different nodes",
    }
    document = {
        "actions": [action | more],
        "rejections": [kept],
        "counts": {"apart": 1},
        "node_changes": [],
        "notes": [],
        "score_before": 39.8,
        "score_after": 41.3,
        "bound": 42.9,
        "pending_moves": 10,
        "pending_bytes": 20.7e6,
    }
    show_plan(Plan("8edb37be", "shop", NOON.timestamp(), "proposed", document), 20)


def lists() -> None:
    rows: list[dict[str, Any]] = [
        {"node": "pg-a", "size": "1.2 GB", "rows": 1234567, "rate": 0.4, "at": "2026-03-01T11:48:47+00:00", "why": WHY},
        {
            "node": "x" * 130,
            "size": "3 B",
            "rows": 1,
            "rate": 1234.5,
            "at": "2026-03-01T11:48:47+00:00",
            "why": "\x1b[31m",
        },
    ]
    show_rows(rows, ("node", "size", "rows", "rate", "nothing", "at", "why"), Output.TEXT)


def killed_state() -> BundleState:
    state = state_of(view_of({"orders": 12}, nodes=("pg-a", "pg-b", "pg-c")), PlanResult(score_before=63.0))
    silent = replace(
        state.nodes[1], reachable=False, unreachable_since=NOON - timedelta(seconds=73), error="connection refused"
    )
    sentence = "pg-b is down since 11:58:47 UTC (connection refused)"
    nodes = (state.nodes[0], silent, state.nodes[2])
    return replace(state, nodes=nodes, word=StateWord.BLOCKED, sentence=sentence)


def demonstration(width: int, height: int) -> None:
    tablet = leaves(4)[0]
    running = replace(migration(tablet, "pg-c", "copying"), id="m1", reason=WHY)
    ended = [
        replace(
            migration(tablet, "pg-c", "done"), id=f"m{number}", finished=True, updated=float(number),
            detail={"size": 1e6 * number, "pause": 0.02}, reason=WHY,
        )
        for number in range(2, 30)
    ]  # fmt: skip
    copied = Progress(State.COPYING, 3.0, bytes_done=40 << 20, bytes_total=100 << 20)
    count = Count(operations=12345, failed=0, slowest=0.3)
    picture = Picture(
        Step.BALANCING, killed_state(), [(running, copied)], ended, count, "http://127.0.0.1:8080", 61.0, 33.0
    )
    output.console.print(panel(picture, width, height))


VIEWS: dict[str, Callable[[], None]] = {"status": status, "moves": moves, "plan": plan, "lists": lists}


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("view", [*VIEWS, "demonstration"])
def test_a_view_is_as_it_was_looked_at(
    view: str, width: int, height: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Console(width=width, height=height, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr(output, "console", screen)
    monkeypatch.setattr("balancer.cli.plan.age_text", lambda _: "made 2 m ago (2026-03-01 12:00:00 UTC)")
    if view == "demonstration":
        demonstration(width, height)
    else:
        VIEWS[view]()
    shown = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()) + "\n"
    assert max(map(len, shown.splitlines())) <= width
    assert "\x1b" not in shown
    if view == "demonstration":
        assert len(shown.splitlines()) <= height
    golden = GOLDENS / f"{view}-{width}.txt"
    if os.environ.get("BALANCER_GOLDENS"):
        golden.write_text(shown)
    assert shown == golden.read_text()
