"""The model of a move holds within small bounds, is the product's, and shows what each step is for.

`make model` searches further: see `tests.model.__main__`.
"""

import importlib
from collections import defaultdict

import pytest

from balancer.migration.machine import ROWS, Event, Recovery, State, Track, follows
from tests.model.explorer import Search
from tests.model.moves import STEPS, MoveModel
from tests.model.mutants import BOUNDS, OMISSIONS, QUIET, TWICE, UNKNOWN, Bounds, Omission

pytestmark = pytest.mark.always

TRACKS = {True: Track.MOVE_REPLICATE, False: Track.MOVE_READ_ONLY}


@pytest.mark.parametrize("bounds", [one for one in BOUNDS if one.quick], ids=lambda one: one.name)
def test_no_order_of_events_loses_a_write(bounds: Bounds) -> None:
    model = MoveModel(writers=bounds.writers, replicated=bounds.replicated, budget=bounds.budget)
    seen = Search(model).run()
    assert not seen.caught, "\n".join([seen.words(), *seen.story])
    assert seen.states > 1000, "the bounds leave nothing to happen"


@pytest.mark.parametrize("omission", [one for one in OMISSIONS if one.quick], ids=lambda one: one.name)
def test_what_a_step_is_for_is_a_story(omission: Omission) -> None:
    seen = Search(MoveModel(mutants=omission.mutants, replicated=omission.replicated, budget=omission.budget)).run()
    assert seen.caught, f"nothing is lost without it: {omission.step}"
    assert seen.story


@pytest.mark.quick
@pytest.mark.parametrize("path", sorted(set(STEPS.values())))
def test_each_step_is_a_function_of_the_product(path: str) -> None:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError:  # a method of a class
        module, _, owner = module.rpartition(".")
        found = getattr(getattr(importlib.import_module(module), owner), name, None)
    assert callable(found), path


def allowed(track: Track) -> dict[str, set[str]]:
    """From each journaled state those that may be journaled next, by machine's tables and rules of recovery."""
    found: dict[str, set[str]] = defaultdict(set)
    for state, row in ROWS[track].items():
        if not row.journaled:
            continue
        waiting, seen = [state], {state}
        while waiting:
            at = waiting.pop()
            for event in Event:
                following = follows(track, at, event)
                if following is None or following in seen:
                    continue
                if ROWS[track][following].journaled:
                    found[state].add(following)
                else:
                    waiting.append(following)
                    seen.add(following)
        if row.successor is Recovery.ROLL_BACK:
            found[state].add(State.CANCELLING)
        if row.successor is Recovery.RESUME:
            found[state].add(State.CATCHING_UP)
    return found


@pytest.mark.parametrize("replicated", [True, False])
def test_its_states_and_edges_are_those_of_the_table(replicated: bool) -> None:
    """Those of the switch: what comes before is not modelled. Read-only, the model does not tell copying from fencing,
    and what follows a restart up to the next fence is one event of it."""
    budget = (TWICE if replicated else QUIET._replace(switches=2))._replace(cancels=1)
    taken = edges(MoveModel(replicated=replicated, budget=budget))
    taken |= edges(MoveModel(replicated=replicated, budget=UNKNOWN))
    rules = allowed(TRACKS[replicated])
    if not replicated:
        rules["fencing"] |= rules["copying"]
        rules["restarting"] |= {"fencing"}
    wrong = sorted((before, after) for before, after in taken if after not in rules[before] | {before})
    assert wrong == []
    wanted = {
        ("fencing", "opening"),
        ("opening", "retiring"),
        ("retiring", "done"),
        ("fencing", "catching_up" if replicated else "restarting"),
        ("fencing", "cancelling"),
        ("cancelling", "cancelled"),
    }
    assert wanted <= taken


def edges(model: MoveModel) -> set[tuple[str, str]]:
    """Pairs of states that the journal has had one after the other."""
    first = model.first()
    seen, waiting, found = {first}, [first], set()
    while waiting:
        world = waiting.pop()
        for _, after in model.events(world):
            if after.directory.version != world.directory.version:
                found.add((world.directory.state, after.directory.state))
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return found
