"""Plans in the directory: proposed by a tick, approved by an operator, done or superseded. Only a leader writes them.

A plan is written when it differs from the last one in what it proposes, not at every tick. Some older ones are kept,
so that yesterday's decision can still be explained. While an approved plan waits to be started, nothing new is
proposed: the operator has decided.
"""

from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

from balancer.directory.model import Change, Kind, Plan, Put, Remove
from balancer.directory.snapshot import Snapshot
from balancer.planner.plan_record import plan_document, read_actions
from balancer.settings import Mode
from policies.model import Action, BundleView, PlanResult
from policies.options import BundleOptions

PROPOSED, APPROVED, DONE, SUPERSEDED = "proposed", "approved", "done", "superseded"
KEPT = 10  # finished plans per bundle


def of_bundle(snapshot: Snapshot, bundle: str) -> list[Plan]:
    """A bundle's plans, oldest first."""
    return sorted((plan for plan in snapshot.plans.values() if plan.bundle == bundle), key=lambda plan: plan.created)


def in_state(snapshot: Snapshot, bundle: str, state: str) -> Plan | None:
    """The newest plan of a bundle in this state."""
    found = [plan for plan in of_bundle(snapshot, bundle) if plan.state == state]
    return found[-1] if found else None


def actions_of(plan: Plan) -> tuple[Action, ...]:
    """What a plan proposes."""
    return read_actions(plan.document)


def propose(
    snapshot: Snapshot, result: PlanResult, view: BundleView, options: BundleOptions, mode: Mode
) -> tuple[str, tuple[Change, ...]]:
    """The id of the plan that stands for this result, and the changes that record it: none if it is recorded."""
    known = of_bundle(snapshot, view.bundle)
    waiting = [plan for plan in known if plan.state == APPROVED] if mode is Mode.APPROVE else []
    if waiting:
        return waiting[-1].id, _superseded(known, (PROPOSED,))
    last = known[-1] if known else None
    if last is not None and last.state == PROPOSED and same(actions_of(last), result.actions):
        return last.id, ()
    # Approved in a mode that asked for it, which is another one now: nobody will start it.
    stale = _superseded(known, (PROPOSED, APPROVED))
    if not result.actions:
        return "", stale
    plan = Plan(uuid4().hex[:8], view.bundle, view.now, PROPOSED, plan_document(result, view, options))
    return plan.id, (Put(plan), *stale, *_forgotten(known, {change.record.key for change in stale}))


def settle(plan: Plan, handled: Sequence[Action], failures: Sequence[str]) -> Put:
    """A plan whose actions have been started, or could not be; an approved one keeps what waits for its window."""
    document = {**plan.document, "not_started": [*plan.document.get("not_started", ()), *failures]}
    pairs = zip(plan.document["actions"], actions_of(plan), strict=True)
    left = [written for written, action in pairs if action not in handled]
    if plan.state == APPROVED and left:
        return Put(replace(plan, document={**document, "actions": left}))
    return Put(replace(plan, state=DONE, document=document))


def same(left: Sequence[Action], right: Sequence[Action]) -> bool:
    """Whether two plans propose the same, whatever figures they give for it."""
    return [_essence(action) for action in left] == [_essence(action) for action in right]


def _essence(action: Action) -> tuple[object, ...]:
    return action.kind, action.tablets, action.target, action.count, action.parts


def _superseded(known: Sequence[Plan], states: Sequence[str]) -> tuple[Put, ...]:
    return tuple(Put(replace(plan, state=SUPERSEDED)) for plan in known if plan.state in states)


def _forgotten(known: Sequence[Plan], changed: set[str]) -> tuple[Remove, ...]:
    finished = [plan for plan in known if plan.state not in (PROPOSED, APPROVED) and plan.id not in changed]
    return tuple(Remove(Kind.PLAN, plan.id) for plan in finished[: max(0, len(finished) - KEPT)])
