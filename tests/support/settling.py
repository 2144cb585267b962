"""Carries plans out tick by tick until nothing more is started, as the daemon would: every action succeeds."""

from dataclasses import dataclass, replace

import numpy as np

from balancer.policies.bundle_view import Action, ActionKind, BundleView, PlanResult, TabletHistory
from balancer.policies.options import BundleOptions
from balancer.policies.plan import goes_on, make_plan
from balancer.policies.promises import affordable, credited, waiting_flights
from tests.support.clusters import moved

TICK = 60.0
MOST_TICKS = 2000


@dataclass(frozen=True, slots=True)
class Settled:
    """A bundle at rest: nothing was started for longer than tablets rest after a migration."""

    view: BundleView
    plan: PlanResult
    scores: tuple[float, ...]  # before each tick
    moves: int
    bytes: float
    carried_again: int  # moves of tablets that had been moved before


def settle(view: BundleView, options: BundleOptions) -> Settled:
    """Runs it to rest. Only moves are carried out: bundles for this have tablets of fitting sizes."""
    quiet, moves, total, carried = 0.0, 0, 0.0, 0
    scores = []
    history: dict[int, TabletHistory] = {}
    promises: list[tuple[tuple[int, str], ...]] = []
    for _ in range(MOST_TICKS):
        owed = affordable([_owed(view, chain) for chain in promises], view, options)
        promises = [chain for chain in promises if chain[0][0] not in {action.tablets[0] for action in owed}]
        later = [pair for chain in promises for pair in chain] + [pair for action in owed for pair in action.then]
        seen = credited(view, owed, waiting_flights(later, view))
        plan = make_plan(seen, options)
        balancing = goes_on(view.balancing, plan, plan.actions)
        scores.append(plan.score_before)
        actions = (*owed, *plan.actions)
        promises += [action.then for action in actions if action.then]
        quiet = 0.0 if actions else quiet + TICK
        if quiet > options.budgets.cool_down + TICK:
            return Settled(view, plan, tuple(scores), moves, total, carried)
        assert all(action.kind is ActionKind.MOVE for action in actions)
        now = view.now + TICK
        for action in actions:
            tablet = action.tablets[0]
            carried += tablet in history
            history[tablet] = TabletHistory(last_migrated=now)
            moves, total = moves + 1, total + action.size
        view = moved(view, {action.tablets[0]: action.target for action in actions})
        view = replace(view, now=now, history=dict(history), balancing=balancing)
    raise AssertionError("it does not come to rest")


def _owed(view: BundleView, chain: tuple[tuple[int, str], ...]) -> Action:
    """The next move of a chain whose last one is done."""
    tablet, target = chain[0]
    row = int(np.flatnonzero(view.tablets.ids == tablet)[0])
    source = view.nodes[int(view.tablets.node[row])].id
    return Action(ActionKind.MOVE, "", (tablet,), "", "follow-up", source, target, then=chain[1:])
