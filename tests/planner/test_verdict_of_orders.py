"""What a bundle's sentence says of an operator's order: it works, or what it waits for."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from balancer.planner.bundle_state import ScheduleReport, StateWord
from balancer.planner.verdict import VerdictFacts, verdict
from balancer.policies.view import PlanResult
from balancer.settings import Mode

pytestmark = pytest.mark.quick

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OPEN = ScheduleReport("", "", "UTC", True, None, None)
SHUT = ScheduleReport("hours < 6", "bundle shop", "UTC", False, None, datetime(2026, 3, 2, tzinfo=UTC))
ORDER = "doubling the vbuckets of orders: 3 of 8 vbuckets done"

SITUATION = VerdictFacts(
    now=NOW,
    mode=Mode.OBSERVE,
    plan=PlanResult(),
    nodes=(),
    owned={},
    schedule=OPEN,
    running=(),
    held=(),
    started=0,
    paused=False,
    paused_until=None,
    leading=True,
    leader="one",
    waiting_plan="",
    refused="",
    orders=[(ORDER, False)],
)


def test_an_order_is_work_in_any_mode() -> None:
    assert verdict(SITUATION) == (StateWord.WORKING, ORDER)
    running = replace(SITUATION, running=["split of tablet 1 on a (copying)"])
    assert verdict(running) == (StateWord.WORKING, f"split of tablet 1 on a (copying); {ORDER}")


def test_an_order_waits_for_the_schedule() -> None:
    word, sentence = verdict(replace(SITUATION, schedule=SHUT))
    assert word is StateWord.WAITING
    assert sentence == f"{ORDER}; the rest until the schedule opens, until 2026-03-02 00:00 UTC (hours < 6)"
    assert verdict(replace(SITUATION, schedule=SHUT, orders=[(ORDER, True)]))[0] is StateWord.WORKING


def test_what_blocks_an_order_is_named() -> None:
    assert verdict(replace(SITUATION, paused=True)) == (StateWord.BLOCKED, f"paused by an operator; {ORDER}")
    assert verdict(replace(SITUATION, leading=False, leader=None)) == (StateWord.BLOCKED, f"no instance leads; {ORDER}")
    refused = replace(SITUATION, refused="split of tablet 1 cannot be started: no")
    assert verdict(refused) == (StateWord.BLOCKED, f"split of tablet 1 cannot be started: no; {ORDER}")
