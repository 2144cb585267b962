"""Plans as documents: what is wanted and why, what was left and why not."""

from collections.abc import Iterable

from balancer.api.shapes import ActionShape, PlanShape, RejectionShape
from balancer.api.views.bundles import score
from balancer.planner.state import BundleState
from balancer.policies.bundle_view import PlanResult


def plans(states: Iterable[BundleState], limit: int) -> list[PlanShape]:
    """The present plan of each bundle, with at most `limit` actions and as many rejections."""
    return [_plan(state, state.plan, limit) for state in states if state.plan is not None]


def _plan(state: BundleState, plan: PlanResult, limit: int) -> PlanShape:
    return PlanShape(
        bundle=state.bundle,
        id=state.plan_id,
        at=state.at.timestamp(),
        score=score(plan),
        actions=[
            ActionShape(
                kind=action.kind,
                table=action.table,
                tablets=list(action.tablets),
                source=action.source,
                target=action.target,
                reason=action.reason,
                code=action.code,
                bytes=action.size,
                gain=round(action.gain, 6),
            )
            for action in plan.actions[:limit]
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
            {"node": change.node, "condition": change.condition, "code": change.code, "reason": change.reason}
            for change in plan.node_changes
        ],
        pending_moves=plan.pending_moves,
        pending_bytes=plan.pending_bytes,
        notes=list(plan.notes),
    )
