"""Rules by key: where tablets must and must not live, what keeps apart or together, and what lies across a bound."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from balancer.policies.keyspace.keys import HIGHEST, KeyType, encode_key
from balancer.policies.options import Apart, BalancerOptions, BundleOptions, PlacementRule, TableOptions
from balancer.policies.placement.candidates import violations
from balancer.policies.placement.problem import build_problem, initial_state
from balancer.policies.placement.rules import named_by
from balancer.policies.plan.explain import why_not
from balancer.policies.plan.plan import make_plan
from balancer.policies.view import ActionKind, BundleView, NodeCondition, TableView
from tests.support.bundle_views import bundle, nodes
from tests.support.settling import settle

pytestmark = pytest.mark.quick

TYPES = (KeyType.TEXT, KeyType.BIGINT)
EU = PlacementRule("eu", ("orders",), key=("EU",), zones=("eu",))
SIZES = BalancerOptions(enable_tablet_size_balancer=False)


def lower(*values: object) -> bytes:
    return encode_key(TYPES, values, prefix=True)  # type: ignore[arg-type]


AFTER_EU = lower("EU") + HIGHEST


def by_region(owner: Sequence[int], *bounds: bytes) -> BundleView:
    """A range table by (region, id), cut at these bounds, on nodes n0 and n1 in zone eu, n2 and n3 in zone us."""
    made = [replace(node, zone="eu" if at < 2 else "us") for at, node in enumerate(nodes(4))]
    view = bundle(owner, made)
    columns = replace(view.tablets, lowers=[b"", *bounds], moduli=view.tablets.moduli * 0)
    return replace(view, tablets=columns, tables=(TableView("orders", False, TYPES, 0, len(owner)),))


def options(*rules: PlacementRule, **tables: TableOptions) -> BundleOptions:
    return BundleOptions(balancer=SIZES, rules=rules, tables=tables)


def test_tablets_of_a_region_leave_the_zones_that_are_not_theirs_first() -> None:
    view = by_region([2, 2, 2], lower("EU"), AFTER_EU)
    (action,) = make_plan(view, options(EU)).actions
    assert (action.kind, action.tablets, action.code) == (ActionKind.MOVE, (2,), "rule")
    assert action.target in ("n0", "n1")
    assert action.reason.startswith("rule eu: they live in zone eu, and n2 is in zone us")
    assert not make_plan(by_region([2, 0, 2], lower("EU"), AFTER_EU), options(EU)).actions


def test_a_tablet_across_a_bound_is_cut_there_at_both_ends_and_only_once() -> None:
    view = by_region([2, 3], lower("US"))
    plan = make_plan(view, options(EU))
    (action,) = plan.actions
    assert (action.kind, action.tablets, action.code, action.count) == (ActionKind.SPLIT, (1,), "rule", 3)
    assert [part.lower for part in action.parts] == [b"", lower("EU"), AFTER_EU]
    assert "rule eu ends in the middle of it" in action.reason
    whole = by_region([2, 0, 2, 3], lower("EU"), AFTER_EU, lower("US"))
    assert not make_plan(whole, options(EU)).actions


@pytest.mark.parametrize(
    ("rule", "inside", "across"),
    [
        (PlacementRule("r", ("orders",), keys_from=("EU",)), (2, 3), [(1, lower("EU"))]),
        (PlacementRule("r", ("orders",), keys_to=("EU", 5)), (0, 1), [(1, lower("EU", 5))]),
        (PlacementRule("r", ("orders",), keys_from=("DE",), keys_to=("US",)), (1, 2), []),
        (
            PlacementRule("r", ("orders",), keys_from=("DE", 7), keys_to=("DE", 9)),
            (2, 2),
            [(1, lower("DE", 7)), (1, lower("DE", 9))],
        ),
        (PlacementRule("r", ("orders",), keys_from=("ZZ",)), (3, 3), [(2, lower("ZZ"))]),
        (PlacementRule("r", ("orders",), keys_from=("US",), keys_to=("DE",)), None, []),
    ],
)
def test_bounds_are_found(rule: PlacementRule, inside: tuple[int, int] | None, across: list[tuple[int, bytes]]) -> None:
    """Three tablets: up to DE, up to US, and the rest."""
    found = list(named_by(by_region([0, 0, 0], lower("DE"), lower("US")), rule))
    if inside is None:
        assert found == []
    else:
        ((first, last, straddling),) = found
        assert (first, last, list(straddling)) == (*inside, across)


def test_tablets_are_not_joined_over_the_bound_of_a_rule() -> None:
    view = by_region([0, 0, 0, 0], lower("DE"), lower("EU"), AFTER_EU)
    view = replace(view, tablets=replace(view.tablets, sizes=np.full(4, 1.0)))
    free = BundleOptions()
    assert [action.kind for action in make_plan(view, free).actions] == [ActionKind.MERGE]
    plan = make_plan(view, replace(free, rules=(EU,)))
    assert not [action for action in plan.actions if 3 in action.tablets]
    assert plan.counts["rule-between"] >= 1


def test_a_rule_whose_keys_do_not_fit_says_so() -> None:
    broken = PlacementRule("ids", ("orders",), keys_from=("EU", "x"), zones=("eu",))
    (found,) = [one for one in make_plan(by_region([2]), options(broken)).rejections if one.code == "broken-rule"]
    assert found.reason == "rule ids has no effect on table orders: 'x' is not a value of type bigint"


def test_tablets_that_must_keep_apart_are_parted_and_stay_so() -> None:
    rule = PlacementRule("apart", ("t",), spread=Apart.TABLETS)
    view = bundle([0, 0, 0, 1], 4)
    result = settle(view, options(rule)).view
    assert sorted(result.tablets.node.tolist()) == [0, 1, 2, 3]
    crowded = make_plan(bundle([0, 0, 1], 2), options(rule))
    assert crowded.counts["no-room"] == 1
    answer = why_not(bundle([0, 1, 2], 4), options(rule), 1, "n1")
    assert (answer.code, answer.reason) == (
        "against-a-rule",
        "rule apart keeps its tablets on different nodes, and n1 has tablet 2",
    )


def test_tables_that_must_keep_apart_share_no_node() -> None:
    rule = PlacementRule("apart", ("a", "b"), spread=Apart.TABLES)
    view = bundle([0, 0, 1, 1, 0, 1], 4, tables=[("a", 3), ("b", 3)])
    balanced = replace(options(rule), balancer=replace(SIZES, enable_cell_balancer=True))
    owner = settle(view, balanced).view.tablets.node
    assert not set(owner[:3].tolist()) & set(owner[3:].tolist())


def test_tablets_that_must_be_together_come_together_where_most_of_them_is() -> None:
    rule = PlacementRule("pair", ("a", "b"), together=True)
    view = bundle([0, 1, 1, 2], 3, tables=[("a", 2), ("b", 2)])
    balanced = replace(options(rule), balancer=replace(SIZES, enable_cell_balancer=True))
    assert settle(view, balanced).view.tablets.node.tolist() == [1, 1, 1, 1]
    drained = replace(
        view, nodes=(view.nodes[0], replace(view.nodes[1], condition=NodeCondition.DRAINING), view.nodes[2])
    )
    assert len(set(settle(drained, balanced).view.tablets.node.tolist()) - {1}) == 1


def test_no_mover_breaks_a_rule() -> None:
    """Whatever the balance: of many tablets out of place none is sent to where it may not be."""
    rules = (
        PlacementRule("a-in-eu", ("a",), zones=("eu",)),
        PlacementRule("b-off-n0", ("b",), not_nodes=("n0",)),
        PlacementRule("c-not-eu", ("c",), not_zones=("eu",)),
    )
    chance = np.random.default_rng(5)
    made = [replace(node, zone="eu" if at < 3 else "us") for at, node in enumerate(nodes(6))]
    view = bundle(
        chance.integers(0, 6, 90).tolist(),
        made,
        tables=[("a", 30), ("b", 30), ("c", 30)],
        sizes=chance.lognormal(0.0, 1.0, 90) * 1e9,
        writes=chance.lognormal(3.0, 1.0, 90),
    )
    balanced = replace(options(*rules), balancer=replace(SIZES, enable_cell_balancer=True))
    problem = build_problem(settle(view, balanced).view, balanced)
    assert len(violations(problem, initial_state(problem))) == 0
    assert len(violations(build_problem(view, balanced), initial_state(build_problem(view, balanced)))) > 20


def test_a_table_outside_of_its_own_zones_goes_home() -> None:
    made = tuple(replace(node, zone=zone) for node, zone in zip(nodes(2), ("eu", "us"), strict=True))
    plan = make_plan(bundle([1], made), options(t=TableOptions(zones=("eu",))))
    assert [(action.code, action.target) for action in plan.actions] == [("rule", "n0")]


def test_why_not_names_the_rule() -> None:
    answer = why_not(by_region([2, 0, 2], lower("EU"), AFTER_EU), options(EU), 2, "n3")
    assert answer.code == "against-a-rule"
    assert answer.reason == "rule eu: they live in zone eu, and n3 is in zone us"
    assert answer.flip == "change rule eu"
