"""Plans in the directory: proposed by a tick, approved by an operator, done or superseded. Only a leader writes them.

A plan is written when its proposals differ from the last one's, not at every tick. Some older ones are kept, so that
yesterday's decision can still be explained. While an approved plan waits to be started, nothing new is proposed: the
operator has decided.
"""

from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

from balancer.directory.model import Change, Plan, Put, RecordKind, Remove
from balancer.directory.snapshot import Snapshot
from balancer.planner.orders import ended_orders, is_order
from balancer.planner.stored_plan import plan_document, read_actions
from balancer.policies.bundle_view import Action, BundleView, PlanResult
from balancer.policies.options import BundleOptions
from balancer.settings import Mode

PROPOSED, APPROVED, DONE, SUPERSEDED = "proposed", "approved", "done", "superseded"
KEPT = 10  # finished plans per bundle


def of_bundle(snapshot: Snapshot, bundle: str) -> list[Plan]:
    """A bundle's plans, oldest first; operators' orders are not among them."""
    mine = (plan for plan in snapshot.plans.values() if plan.bundle == bundle and not is_order(plan))
    return sorted(mine, key=lambda plan: plan.created)


def in_state(snapshot: Snapshot, bundle: str, state: str) -> Plan | None:
    """The newest plan of a bundle in this state."""
    found = [plan for plan in of_bundle(snapshot, bundle) if plan.state == state]
    return found[-1] if found else None


def actions_of(plan: Plan) -> tuple[Action, ...]:
    """What a plan proposes."""
    return read_actions(plan.document)


def propose(
    snapshot: Snapshot,
    result: PlanResult,
    view: BundleView,
    options: BundleOptions,
    mode: Mode,
    *,
    asked: bool = False,
) -> tuple[str, tuple[Change, ...]]:
    """The id of the plan that stands for this result, and the changes that record it: none if it is already recorded.

    A plan that was asked for is always recorded, with its inputs: even one that proposes nothing, or that comes while
    an approved one stands, can be explained.
    """
    known = of_bundle(snapshot, view.bundle)
    waiting = [plan for plan in known if plan.state == APPROVED] if mode is Mode.APPROVE else []
    if waiting and not asked:
        return waiting[-1].id, _superseded(known, (PROPOSED,))
    last = known[-1] if known else None
    if not asked and last is not None and last.state == PROPOSED and same(actions_of(last), result.actions):
        return last.id, ()
    # Approved in a mode that asked for approval, which has changed since: nobody will start it.
    stale = _superseded(known, (PROPOSED,) if waiting else (PROPOSED, APPROVED))
    if not result.actions and not asked:
        return "", stale
    state = SUPERSEDED if waiting else PROPOSED if result.actions else DONE
    plan = Plan(uuid4().hex[:8], view.bundle, view.now, state, plan_document(result, view, options))
    standing = waiting[-1].id if waiting else plan.id if result.actions else ""
    return standing, (Put(plan), *stale, *_forgotten(known, {change.record.key for change in stale}))


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
    return action.kind, action.tablets, action.target, action.count, action.parts, action.then


def _superseded(known: Sequence[Plan], states: Sequence[str]) -> tuple[Put, ...]:
    return tuple(Put(replace(plan, state=SUPERSEDED)) for plan in known if plan.state in states)


def forgotten_orders(snapshot: Snapshot, bundle: str) -> tuple[Remove, ...]:
    """Orders that ended so long ago that others have replaced them; a table's newest one is still respected."""
    ended = ended_orders(snapshot, bundle)
    newest = {plan.document["table"]: plan.id for plan in ended if plan.state == DONE}
    old = [plan for plan in ended if plan.id not in newest.values()]
    return tuple(Remove(RecordKind.PLAN, plan.id) for plan in old[: max(0, len(old) - KEPT)])


def _forgotten(known: Sequence[Plan], changed: set[str]) -> tuple[Remove, ...]:
    finished = [plan for plan in known if plan.state not in (PROPOSED, APPROVED) and plan.id not in changed]
    return tuple(Remove(RecordKind.PLAN, plan.id) for plan in finished[: max(0, len(finished) - KEPT)])
