"""One word and one sentence for a bundle: each of them, and which goes first."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from balancer.planner.bundle_state import NodeReport, ScheduleReport, StateWord
from balancer.planner.verdict import VerdictFacts, verdict
from balancer.policies.view import Action, ActionKind, PlanResult, Rejection
from balancer.settings import Mode

pytestmark = pytest.mark.quick

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OPEN = ScheduleReport("", "", "UTC", True, None, NOW)
SHUT = ScheduleReport("hours == 3", "bundle shop", "UTC", False, None, datetime(2026, 3, 2, 3, tzinfo=UTC))
NEVER = replace(SHUT, formula="hours > 25", next_open=None)
MOVE = Action(ActionKind.MOVE, "orders", (1,), "", "load", "a", "b")
ONE = PlanResult(actions=(MOVE,))
NONE = PlanResult(score_before=97.4, bound=98.0)
STUCK = Rejection(ActionKind.MOVE, (), "no-gain", "a stays 90 % above its share: smaller tablets would free it")
WAITS = Rejection(ActionKind.MOVE, (7,), "waits", "it should move from a to b, but it helps only later", "b")
OFF = "moves are switched off; see enable_cell_balancer and enable_in_memory_cell_balancer"
A = NodeReport("a", "active", "", True)
DRAINING = NodeReport("b", "draining", "drained by ann", True)
CALM = VerdictFacts(
    now=NOW,
    mode=Mode.AUTONOMOUS,
    plan=NONE,
    nodes=(A,),
    owned={"a": 4},
    schedule=OPEN,
    running=(),
    held=(),
    started=0,
    paused=False,
    paused_until=None,
    leading=True,
    leader="host",
    waiting_plan="",
    refused="",
)


@pytest.mark.parametrize(
    ("changes", "word", "sentence"),
    [
        ({}, StateWord.BALANCED, "score 97 of 100; nothing to do"),
        (
            {"nodes": (A, DRAINING), "owned": {"a": 4, "b": 0}},
            StateWord.BALANCED,
            "nothing to do; node b is empty and may be removed",
        ),
        (
            {"nodes": (A, DRAINING), "owned": {"a": 4, "b": 2}, "plan": replace(NONE, counts={"pinned": 2})},
            StateWord.BLOCKED,
            "node b cannot be emptied, 2 tablets left: 2 candidates held back: their tablets are pinned",
        ),
        (
            {"nodes": (A, DRAINING), "owned": {"b": 1}},
            StateWord.BLOCKED,
            "node b cannot be emptied, 1 tablet left: no node may take them",
        ),
        (
            {"plan": PlanResult(score_before=50, bound=90, counts={"target-disk": 3, "pinned": 1, "cool-down": 9})},
            StateWord.BLOCKED,
            "3 candidates held back: no node has the disk space for them",
        ),
        (
            {"plan": PlanResult(score_before=89.5, limit=90, counts={"pinned": 1})},
            StateWord.BALANCED,
            "score 90 of 100, the best these tablets allow; nothing to do",
        ),
        (
            {"plan": PlanResult(score_before=48, bound=48.5, counts={"no-gain": 2}, rejections=(STUCK, STUCK))},
            StateWord.BLOCKED,
            "a stays 90 % above its share: smaller tablets would free it; 1 more node likewise",
        ),
        (
            {"plan": PlanResult(score_before=48, limit=48.2, counts={"no-gain": 1}, rejections=(STUCK,))},
            StateWord.BALANCED,
            f"score 48 of 100, the best these tablets allow: {STUCK.reason}; nothing to do",
        ),
        (
            {"plan": PlanResult(score_before=48, pending_moves=2, counts={"waits": 2}, rejections=(WAITS,))},
            StateWord.BLOCKED,
            "2 moves cannot start: tablet 7, for one: it should move from a to b, but it helps only later",
        ),
        (
            {"plan": PlanResult(score_before=48, counts={"cooling-down": 3, "no-gain": 1}, rejections=(STUCK,))},
            StateWord.BLOCKED,
            "3 candidates held back: their tablets were migrated recently and rest for cool_down",
        ),
        (
            {"plan": PlanResult(score_before=48, counts={"mover-off": 3, "no-gain": 1}, rejections=(STUCK,))},
            StateWord.BALANCED,
            f"score 48 of 100; nothing to do: {OFF}",
        ),
        ({"promised": 1}, StateWord.WORKING, "1 action about to start"),
        (
            {"promised": 1, "schedule": SHUT},
            StateWord.WAITING,
            "1 action until the schedule opens, until 2026-03-02 03:00 UTC (hours == 3)",
        ),
        ({"plan": ONE}, StateWord.WORKING, "1 action about to start"),
        ({"plan": ONE, "running": ("move of tablet 9",)}, StateWord.WORKING, "move of tablet 9; 1 action to follow"),
        (
            {"plan": ONE, "running": ("first", "second"), "started": 1},
            StateWord.WORKING,
            "first and 1 more",
        ),
        (
            {"plan": ONE, "schedule": SHUT},
            StateWord.WAITING,
            "1 action until the schedule opens, until 2026-03-02 03:00 UTC (hours == 3)",
        ),
        (
            {"plan": ONE, "schedule": NEVER},
            StateWord.WAITING,
            "1 action until the schedule opens, for ever: it never opens (hours > 25)",
        ),
        (
            {"held": ("move of tablet 9 (copying, held)",), "schedule": SHUT},
            StateWord.WAITING,
            "move of tablet 9 (copying, held) until the schedule opens, until 2026-03-02 03:00 UTC (hours == 3)",
        ),
        (
            {"nodes": (A, replace(DRAINING, reachable=False, unreachable_since=NOW, error="no answer within 5 s"))},
            StateWord.BLOCKED,
            "b is down since 12:00:00 UTC (no answer within 5 s)",
        ),
        (
            {"nodes": (replace(A, is_standby=True), replace(DRAINING, is_standby=True))},
            StateWord.BLOCKED,
            "node a is a standby: name the primary in its DSN, and 1 more",
        ),
        (
            {"nodes": (replace(A, disagreements=("tablet 3 is claimed here",)),)},
            StateWord.BLOCKED,
            "node a is not trusted: tablet 3 is claimed here",
        ),
        (
            {"plan": ONE, "paused": True, "paused_until": NOW},
            StateWord.BLOCKED,
            "paused by an operator until 2026-03-01 12:00 UTC; 1 action held back",
        ),
        ({"plan": ONE, "paused": True}, StateWord.BLOCKED, "paused by an operator; 1 action held back"),
        (
            {"plan": replace(ONE, pending_moves=2), "mode": Mode.OBSERVE},
            StateWord.BLOCKED,
            "the mode is observe: 3 actions proposed, none will be started",
        ),
        (
            {"plan": ONE, "mode": Mode.APPROVE, "waiting_plan": "p1"},
            StateWord.BLOCKED,
            "plan p1 waits for approval: balancer apply p1",
        ),
        (
            {"plan": ONE, "leading": False, "leader": None},
            StateWord.BLOCKED,
            "no instance leads; 1 action held back",
        ),
        ({"plan": ONE, "refused": "the disk is full"}, StateWord.BLOCKED, "the disk is full"),
    ],
)
def test_a_word_and_a_sentence_for_every_situation(changes: dict[str, Any], word: StateWord, sentence: str) -> None:
    assert verdict(replace(CALM, **changes)) == (word, sentence)


def test_what_runs_is_said_before_what_is_broken_and_that_before_what_is_waited_for() -> None:
    broken = replace(CALM, nodes=(replace(A, reachable=False, error="gone"),), schedule=SHUT, plan=ONE)
    assert verdict(broken)[0] is StateWord.BLOCKED
    assert verdict(replace(broken, running=("move",)))[0] is StateWord.WORKING
