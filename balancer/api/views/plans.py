"""Plans as documents: what is wanted and why, what was left and why not."""

from collections.abc import Iterable

from balancer.api.documents import cut_at
from balancer.api.record_shapes import ActionShape, NodeChangeShape, PlanList, PlanShape, RejectionShape
from balancer.api.views.bundles import score
from balancer.directory.model import NodeState
from balancer.planner.state import BundleState
from balancer.policies.bundle_view import PlanResult


def plans(states: Iterable[BundleState], limit: int) -> list[PlanShape]:
    """The present plan of each bundle, with at most `limit` actions and as many rejections."""
    return [_plan(state, state.plan, limit) for state in states if state.plan is not None]


def plan_list(found: list[PlanShape], limit: int, cursor: str) -> PlanList:
    """Some of them, by bundle."""
    items, following = cut_at(found, lambda one: (one.bundle,), limit, cursor)
    return PlanList(items=list(items), next=following)


def _plan(state: BundleState, plan: PlanResult, limit: int) -> PlanShape:
    return PlanShape(
        bundle=state.bundle,
        id=state.plan_id,
        at=state.at,
        score=score(plan),
        actions=[
            ActionShape(
                number=number,
                kind=action.kind,
                table=action.table,
                tablets=list(action.tablets),
                source=action.source,
                target=action.target,
                reason=action.reason,
                code=action.code,
                bytes=round(action.size),
                gain=round(action.gain, 6),
            )
            for number, action in enumerate(plan.actions[:limit], 1)
        ],
        action_count=len(plan.actions),
        rejections=[
            RejectionShape(
                kind=rejection.kind,
                tablets=list(rejection.tablets),
                target=rejection.target,
                code=rejection.code,
                reason=rejection.reason,
            )
            for rejection in plan.rejections[:limit]
        ],
        counts=dict(plan.counts),
        node_changes=[
            NodeChangeShape(
                node=change.node, condition=NodeState(change.condition), code=change.code, reason=change.reason
            )
            for change in plan.node_changes
        ],
        pending_moves=plan.pending_moves,
        pending_bytes=round(plan.pending_bytes),
        notes=list(plan.notes),
    )
