"""The simulator: scenarios are read with care, time passes, and nothing is lost whatever is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.options import Mover, Placement
from balancer.policies.simulator.report import check, draw, minutes_above
from balancer.policies.simulator.scenario import ScenarioError, parse_scenario, parse_size, parse_time
from balancer.policies.simulator.simulator import simulate
from balancer.policies.simulator.world import LOWEST_KEY, World, make_content, shuffle
from balancer.policies.view import Action, ActionKind, Part

pytestmark = pytest.mark.quick

STORY = """
title Two nodes, one of them empty   # a comment
run 1h
tick 2m
rate 100MB
set balancer.enable_cell_balancer true
nodes a b disk=1TB
table t hash 8 size=80GB writes=100 on=a
expect balanced within 40m
expect steady for 10m
expect moved <= 45GB
expect score >= 95
expect tablets t <= 8
"""


def test_a_story_ends_balanced_and_is_told() -> None:
    story = simulate(parse_scenario(STORY))
    assert [verdict.text for verdict in check(story) if not verdict.held] == []
    text = draw(story)
    assert text.startswith("Two nodes, one of them empty\n")
    assert "ok   moved <= 45GB: 40.0 GB moved" in text


def test_the_same_text_gives_the_same_story() -> None:
    assert draw(simulate(parse_scenario(STORY))) == draw(simulate(parse_scenario(STORY)))


def test_an_expectation_that_does_not_hold_is_shown() -> None:
    text = draw(
        simulate(
            parse_scenario(
                STORY + "expect moved <= 1GB\nexpect empty a\nexpect actions <= 3\nexpect score >= 99 from 2m\n"
            )
        )
    )
    assert "FAIL moved <= 1GB" in text
    assert "FAIL actions <= 3: 4 actions" in text
    assert "FAIL score >= 99 from 2m: 57.1 at worst from then on" in text
    assert "FAIL empty a: 4 tablets on a" in text


CROWD = """
run 30m
nodes a b c
table t range 6 size=6GB writes=600 reads=600
at 5m load t load=hot:0.6:0.02:0.1
"""


def test_the_parts_of_a_split_are_made_on_its_node_and_then_moved_once() -> None:
    text = CROWD + "expect load <= 1.2 within 10m\nexpect moves <= 1 per tablet\nexpect says parts go to\n"
    story = simulate(parse_scenario(text))
    assert [verdict for verdict in check(story) if not verdict.held] == []
    moves = [action for _, action in story.started if action.kind is ActionKind.MOVE]
    assert {action.code for action in moves} == {"follow-up"}
    assert {action.source for action in moves} == {"a"}
    assert 3 <= minutes_above(story) <= 10
    assert f"load: {minutes_above(story):.0f} minutes above 1.2 times a node's share" in draw(story)


def test_what_is_expected_of_heat_may_fail() -> None:
    promises = "expect load <= 1.01 within 10m\nexpect load <= 1.2 within 10s\nexpect moves <= 0 per tablet\n"
    text = draw(simulate(parse_scenario(CROWD + promises + "expect says something else\n")))
    for line in ("load <= 1.01 within 10m", "load <= 1.2 within 10s", "moves <= 0 per tablet", "says something else"):
        assert f"FAIL {line}" in text


def test_options_are_set_by_their_names() -> None:
    scenario = parse_scenario(
        "set placement.ordinary_mover count\nset tables.t.placement ring\nset tables.t.zones east,west\n"
        "set budgets.bytes_per_window 5GB\nset heat.min_split_age 2h\nset balancer.groups.g.metric bytes\n"
        "set placement.dimensions.memory 2\nset budgets.bytes_per_window none\n"
    )
    options = scenario.options
    assert options.placement.ordinary_mover is Mover.COUNT
    assert options.tables["t"].placement is Placement.RING
    assert options.tables["t"].zones == ("east", "west")
    assert options.budgets.bytes_per_window is None
    assert options.heat.min_split_age == 7200.0
    assert options.balancer.groups["g"].metric == "bytes"
    assert options.placement.dimensions["memory"] == 2.0


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("dance", "line 1: 'dance' is not understood"),
        ("\nrun fast", "line 2: 'fast' is not a time"),
        ("rate 10XB", "is not a size"),
        ("at 5m", "after `at` come a time and a statement"),
        ("set placement.colour red", "there is no option 'colour'"),
        ("set heat.enable maybe", "neither true nor false"),
        ("nodes a..b", "not a series of nodes"),
        ("drain x", "there is no 'x'"),
        ("table t heap 4", "write `table NAME hash|range TABLETS"),
        ("nodes a\ntable t hash 4 on=b", "there is no 'b'"),
        ("nodes a\nexpect miracles", "cannot be expected"),
        ("schedule hours == 2", "nobody passed what evaluates it"),
    ],
)
def test_mistakes_are_told_with_their_line(text: str, part: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        check(simulate(parse_scenario(text)))
    assert part in str(caught.value)


def test_units() -> None:
    assert parse_size("1.5GB") == 1.5 * 1024**3
    assert parse_time("90s") == 90
    assert parse_time("2d") == 172_800


def test_a_closed_schedule_starts_nothing() -> None:
    story = simulate(parse_scenario(STORY + "schedule minutes == 0\n"), lambda minute: False)
    assert not story.started


def test_a_node_that_goes_down_breaks_its_migrations_and_is_left_alone() -> None:
    story = simulate(parse_scenario(STORY.replace("rate 100MB", "rate 10MB") + "at 2m down b\n"))
    assert any("failed" in line for _, line in story.lines)
    assert [at for at, _ in story.started if at >= 120] == []


def test_a_shuffle_is_a_permutation_that_its_seed_decides() -> None:
    assert sorted(shuffle(100, 5).tolist()) == list(range(100))
    assert shuffle(100, 5).tolist() != shuffle(100, 6).tolist()


@given(count=st.integers(2, 9), load=st.sampled_from(["even", "zipf:1.0", "hot:0.8:0.1:0.5", "tail", "daily:0.5:0.2"]))
def test_cutting_a_range_keeps_all_bytes_and_all_load(count: int, load: str) -> None:
    world = World()
    world.contents["t"] = make_content(hashed=False, total=1e9, load=load, data="even", seed=1)
    world.contents["t"].writes = 1000.0
    world.add_tablets("t", [(LOWEST_KEY, None)], ["a"])
    action = Action(ActionKind.SPLIT, "t", (1,), "", "size", "a", "a", count=count)
    world.start(action)
    world.finish(world.flights[0], 10.0)
    figures = world.figures("t", 10.0)
    assert len(world.tablets["t"]) == count
    assert figures.sizes.sum() == pytest.approx(1e9)
    assert figures.writes.sum() == pytest.approx(1000.0)
    assert figures.sizes.max() <= 1.02 * figures.sizes.min()


def test_cutting_a_vbucket_keeps_all_bytes() -> None:
    world = World()
    world.contents["t"] = make_content(hashed=True, total=1e9, load="even", data="even", seed=1)
    world.add_tablets("t", [(0, Leaf(1, 0))], ["a"])
    parts = tuple(Part(leaf=leaf) for leaf in Leaf(1, 0).children())
    world.start(Action(ActionKind.SPLIT, "t", (1,), "", "size", "a", "a", parts, 2))
    world.finish(world.flights[0], 0.0)
    assert world.figures("t", 0.0).sizes.tolist() == pytest.approx([5e8, 5e8])
