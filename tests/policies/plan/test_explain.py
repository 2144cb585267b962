"""Explanations: sentences with numbers, and a smallest change that really flips the answer."""

import re
from dataclasses import replace

import pytest

from balancer.policies.options import (
    BalancerOptions,
    BudgetOptions,
    BundleOptions,
    HeatOptions,
    InMemoryMode,
    PlacementOptions,
)
from balancer.policies.options import TableOptions as Table
from balancer.policies.plan.explain import Unknown, WhyNot, explain_action, explain_node, explain_tablet, why_not
from balancer.policies.plan.plan import make_plan
from balancer.policies.reasons import MEANINGS, Left, Taken
from balancer.policies.view import BundleView, InFlight, NodeCondition, NodeView, TabletHistory
from tests.support.bundle_views import GB, bundle

pytestmark = pytest.mark.quick

ON = BundleOptions(
    balancer=BalancerOptions(enable_cell_balancer=True, enable_tablet_size_balancer=False),
    heat=HeatOptions(enable=False),
    budgets=BudgetOptions(moves_per_node=100, moves_total=100),
)
SKEWED = bundle([0] * 6 + [1] * 2 + [2] * 4, 3)


def test_a_tablet_that_should_move() -> None:
    text = " | ".join(explain_tablet(SKEWED, ON, 1).sentences)
    assert "tablet 1 of table t is on n0: 10.0 GB" in text
    assert "it is 17 % of its node's bytes" in text
    assert "should move to n1: n0 is 50 % above its share of bytes and n1 is 50 % below its share" in text


def test_a_tablet_that_may_not_move() -> None:
    text = explain_tablet(replace(SKEWED, pinned=frozenset({1})), ON, 1).sentences[2]
    assert text == "it stays: an operator pinned the tablet where it is"


def test_a_node() -> None:
    text = " | ".join(explain_node(SKEWED, ON, "n0").sentences)
    assert "node n0 is active and holds 6 tablets, 60.0 GB" in text
    assert "50 % above its share of bytes" in text
    assert "takes 2 tablets (20.0 GB) from it" in text


def test_an_action() -> None:
    plan = make_plan(SKEWED, ON)
    text = " | ".join(explain_action(plan, plan.actions[0]).sentences)
    assert "move of tablet" in text
    assert "from 66.7 to 100.0 of 100" in text


def ask(view: BundleView, options: BundleOptions, tablet: int, node: str) -> WhyNot:
    return why_not(view, options, tablet, node)


@pytest.mark.parametrize(
    ("view", "options", "code", "flip"),
    [
        (replace(SKEWED, pinned=frozenset({1})), ON, Left.PINNED, "unpin tablet 1"),
        (replace(SKEWED, quarantined=frozenset({1})), ON, Left.QUARANTINED, "release tablet 1"),
        (replace(SKEWED, in_flight=(InFlight("m", (1,), "n0", "n2"),)), ON, Left.IN_FLIGHT, "wait until its migration"),
        (
            replace(SKEWED, history={1: TabletHistory(failures=2, last_failed=SKEWED.now - 100)}),
            ON,
            Left.BACKING_OFF,
            "wait 500 s",
        ),
        (
            replace(SKEWED, history={1: TabletHistory(last_migrated=SKEWED.now - 100)}),
            ON,
            Left.COOLING_DOWN,
            "wait 500 s",
        ),
        (SKEWED, replace(ON, balancer=BalancerOptions()), Left.MOVER_OFF, "set enable_cell_balancer = true"),
        (
            SKEWED,
            replace(ON, tables={"t": Table(enable_auto_tablet_move=False)}),
            Left.TABLE_OFF,
            "set enable_auto_tablet_move = true",
        ),
        (SKEWED, replace(ON, tables={"t": Table(zones=("east",))}), Left.WRONG_ZONE, "to the zones of t"),
        (
            SKEWED,
            replace(ON, tables={"t": Table(in_memory_mode=InMemoryMode.COMPRESSED)}),
            Left.OTHER_MOVER,
            "",
        ),
    ],
)
def test_what_keeps_a_tablet_back_and_what_would_flip_it(
    view: BundleView, options: BundleOptions, code: Left, flip: str
) -> None:
    found = ask(view, options, 1, "n1" if code is not Left.OTHER_MOVER else "n2")
    assert found.code == code
    assert flip in found.flip
    assert not found.planned


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        (NodeCondition.DOWN, Left.TARGET_DOWN),
        (NodeCondition.DRAINING, Left.TARGET_DRAINING),
        (NodeCondition.CLOSED, Left.TARGET_CLOSED),
    ],
)
def test_a_target_that_takes_nothing(condition: NodeCondition, code: Left) -> None:
    view = bundle([0] * 6 + [2] * 2, [NodeView("n0"), NodeView("n1", condition), NodeView("n2")])
    assert ask(view, ON, 1, "n1").code == code


def test_a_target_with_a_full_disk_says_how_much_must_be_freed() -> None:
    of = [NodeView("n0", weight=2.0), NodeView("n1", disk_capacity=25 * GB)]
    found = ask(bundle([0] * 10 + [1] * 2, of), ON, 1, "n1")
    assert (found.code, found.flip) == (Left.TARGET_DISK, "free 10.0 GB on n1")


def test_a_balanced_bundle_names_the_threshold_that_would_start_moves() -> None:
    view = bundle([0] * 21 + [1] * 20 + [2] * 19, 3)
    found = ask(view, ON, 1, "n2")
    assert (found.code, found.flip) == (Left.BALANCED, "set start_threshold below 0.050")
    lower = replace(ON, placement=PlacementOptions(start_threshold=0.049, stop_threshold=0.01))
    assert ask(view, lower, 1, "n2").code != Left.BALANCED


def test_a_move_without_gain_says_how_much_emptier_the_target_must_be() -> None:
    view = bundle([0] * 6 + [1] * 2 + [2] * 4, 3)
    found = ask(view, ON, 9, "n0")
    assert found.code == Left.NO_GAIN
    assert "n0 would have to hold" in found.flip


def test_a_move_that_is_planned_and_one_that_is_no_move() -> None:
    moved = {action.tablets[0]: action.target for action in make_plan(SKEWED, ON).actions}
    tablet, target = next(iter(moved.items()))
    assert ask(SKEWED, ON, tablet, target).planned
    assert ask(SKEWED, ON, 1, "n0").code == Left.SAME_NODE


def test_unknown_names_are_told() -> None:
    with pytest.raises(Unknown, match="has no tablet 99"):
        ask(SKEWED, ON, 99, "n0")
    with pytest.raises(Unknown, match="has no node x; it has n0, n1, n2"):
        ask(SKEWED, ON, 1, "x")


def test_every_code_has_a_meaning() -> None:
    assert set(MEANINGS) == {*Taken, *Left}


def test_a_planned_move_says_what_it_waits_for_beside_the_budgets() -> None:
    view = bundle([0, 0, 1, 1], 2, sizes=[56 * GB, 56 * GB, 44 * GB, 44 * GB])  # 12 % above: an exchange would help
    options = replace(ON, placement=PlacementOptions(dimensions={"bytes": 1.0}))
    lately = replace(view, history={4: TabletHistory(last_migrated=view.now - 700.0)})
    (waiting,) = [answer for tablet in (1, 2) if (answer := ask(lately, options, tablet, "n1")).planned]
    assert waiting.reason.startswith("the plan moves it there, but not yet: it helps only with others")
    assert waiting.flip == f"order it: balancer move {waiting.tablet} n1"
    assert ask(view, options, waiting.tablet, "n1").reason == "the plan moves it there as soon as the budgets allow"


@pytest.mark.parametrize("weight", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("fullest", [100, 104, 109, 112, 118, 130])
def test_what_is_called_balanced_is_below_the_bar_that_is_named(weight: float, fullest: int) -> None:
    """A dimension that counts less may be less even, and the sentence says how uneven."""
    options = replace(ON, placement=PlacementOptions(dimensions={"bytes": weight}))
    plan = make_plan(bundle([0, 1, 2], 3, sizes=[fullest, 100, 100]), options)
    (note,) = [note for note in plan.notes if "the tightest node" in note]
    above = [float(share) for share in re.findall(r"([\d.]+) % above", note)] or [0.0]
    assert "-0" not in note
    if note.startswith("balanced: "):
        assert above[0] < float(re.findall(r"start at ([\d.]+) %", note)[0]) == 10 / weight
    else:
        assert above[0] > 10 / weight
        assert note.endswith(", and no move that is allowed makes it more even")  # three tablets on three nodes
