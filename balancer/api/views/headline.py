"""A bundle in one short line, and how far its work has come. Its sentence says more, on demand."""

from collections.abc import Iterable, Mapping

from balancer.api.documents import instant
from balancer.api.shapes import ProgressShape
from balancer.directory.model import Json, Migration
from balancer.directory.snapshot import Snapshot
from balancer.planner.loads import node_loads
from balancer.planner.state import BundleState, NodeReport, StateWord
from balancer.planner.verdict import EVEN
from balancer.policies.bundle_view import PlanResult
from balancer.policies.reasons import Left


def headline(state: BundleState) -> str:
    """The short line."""
    if not state.nodes:
        return _short(state.sentence) if state.paused else "it has no nodes yet"
    down = [report for report in state.nodes if not report.reachable and report.state != "lost"]
    if down:
        return _down(state, down)
    if state.word is StateWord.BALANCED:
        return _balanced(state)
    return _short(state.sentence)


def progress(
    state: BundleState, snapshot: Snapshot, notes: Mapping[str, Json], begun: float | None
) -> ProgressShape | None:
    """How far it is; None: there is nothing to do."""
    if begun is None:
        return None
    ours = [one for one in snapshot.migrations.values() if one.bundle == state.bundle]
    done = [one for one in ours if one.finished and one.state == "done" and one.updated >= begun]
    running = [one for one in ours if not one.finished]
    copied, total = _copied(running, notes)
    left, left_bytes = _left(state.plan, len(state.started))
    done_bytes = copied + sum(_size(one) for one in done)
    rest = left_bytes + max(0.0, total - copied)
    took = max(1.0, state.at.timestamp() - begun)
    return ProgressShape(
        begun=instant(begun),
        done=len(done),
        running=len(running),
        left=left,
        done_bytes=round(done_bytes),
        left_bytes=round(rest),
        eta_seconds=round(rest / (done_bytes / took), 1) if done_bytes else None,
    )


def _down(state: BundleState, down: list[NodeReport]) -> str:
    first, more = down[0], len(down) - 1
    tablets = 0
    if state.view is not None:
        counts = node_loads(state.view)["tablets"]
        places = {node.id: at for at, node in enumerate(state.view.nodes)}
        tablets = sum(int(counts[places[one.id]]) for one in down if one.id in places)
    if more:
        return f"{len(down)} nodes are down: {_tablets(tablets)}"
    since = f" since {first.unreachable_since:%H:%M:%S} UTC" if first.unreachable_since else ""
    return f"{first.id} is down{since}: {_tablets(tablets)}"


def _balanced(state: BundleState) -> str:
    """Even, or why it cannot be more even."""
    plan = state.plan
    if plan is None or plan.score_before >= EVEN:
        return "every node carries its share"
    if plan.score_before < plan.limit - 1:  # it could be better: the plan's notes say what is in the way
        notes = [note.removeprefix("balanced: ") for note in plan.notes if note.startswith("balanced: ")]
        why = notes[0] if notes else "no move that is allowed makes it more even"
        return f"{plan.score_before:.0f} of 100 is even enough: {why}"
    reasons = [one.reason for one in plan.rejections if one.code == Left.NO_GAIN]
    why = f": {_short(reasons[0])}" if reasons else ": tablets are too few or too large to share more evenly"
    return f"{plan.score_before:.0f} of 100, the best these tablets allow{why}"


def _short(sentence: str) -> str:
    """Its first clause."""
    first, _, _ = sentence.partition("; ")
    return first


def _tablets(count: int) -> str:
    return f"{count} tablet{'' if count == 1 else 's'}"


def _left(plan: PlanResult | None, started: int) -> tuple[int, float]:
    if plan is None:
        return 0, 0.0
    waiting = plan.actions[started:]
    return len(waiting) + plan.pending_moves, sum(one.size for one in waiting) + plan.pending_bytes


def _copied(running: Iterable[Migration], notes: Mapping[str, Json]) -> tuple[float, float]:
    """Bytes that running migrations have copied, and all that they will."""
    copied = total = 0.0
    for one in running:
        note = notes.get(one.id)
        if isinstance(note, dict):
            whole = _number(note.get("bytes_total"))
            total += whole
            copied += min(whole, _number(note.get("bytes_done")))
    return copied, total


def _size(one: Migration) -> float:
    return _number(one.detail.get("size"))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
