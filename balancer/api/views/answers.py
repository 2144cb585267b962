"""Why a tablet is where it is, how a node is, and why not elsewhere: the policies' answers for the newest figures."""

from collections.abc import Iterator

from balancer.api.documents import instant_or_none
from balancer.api.page_shapes import ExplanationShape, WhyNotShape
from balancer.api.source import Source
from balancer.api.views import history
from balancer.directory.model import LogEntry, Put, Tablet
from balancer.directory.snapshot import NotFound, Snapshot
from balancer.errors import Unavailable
from balancer.logs import mask
from balancer.planner.state import BundleState
from balancer.policies import explain
from balancer.policies import why_not as questions
from balancer.policies.bundle_view import BundleView
from balancer.policies.explain import Explanation
from balancer.policies.options import BundleOptions


def about_tablet(source: Source, tablet: int) -> ExplanationShape:
    """What it carries, what decides about it, what the plan does with it, and since when it has been there."""
    snapshot = source.follower().snapshot
    record = snapshot.tablet(tablet)
    state, view, options = _known(source, snapshot.tables[record.table].bundle)
    try:
        found = explain.explain_tablet(view, options, tablet)
    except questions.Unknown as error:
        raise NotFound(f"{error} at the last poll") from None
    return _shape(found, state, owner_since(source, snapshot, record))


def about_node(source: Source, node: str) -> ExplanationShape:
    """How full it is, and what the plan takes from it and gives to it."""
    state, view, options = _known(source, _bundle(source.follower().snapshot, node))
    try:
        return _shape(explain.explain_node(view, options, node), state, None)
    except questions.Unknown as error:
        raise NotFound(f"{error} at the last poll") from None


def why_not(source: Source, tablet: int, node: str) -> WhyNotShape:
    """Why the tablet does not go to the node."""
    snapshot = source.follower().snapshot
    _bundle(snapshot, node)
    state, view, options = _known(source, snapshot.tables[snapshot.tablet(tablet).table].bundle)
    try:
        found = questions.why_not(view, options, tablet, node)
    except questions.Unknown as error:
        raise NotFound(f"{error} at the last poll") from None
    return WhyNotShape(
        tablet=found.tablet,
        node=found.node,
        planned=found.planned,
        code=found.code,
        reason=mask(found.reason),
        flip=mask(found.flip),
        at=state.at,
    )


def owner_since(source: Source, snapshot: Snapshot, tablet: Tablet) -> float | None:
    """When its current epoch began; None: further back than the history is searched."""
    since = None
    for entry in history.backwards(source.directory(), snapshot.version + 1):
        for record in _tablets(entry):
            if record.id == tablet.id and record.epoch < tablet.epoch:
                return since
            if record.id == tablet.id:
                since = entry.at
    return since


def _tablets(entry: LogEntry) -> Iterator[Tablet]:
    for change in entry.changes:
        if isinstance(change, Put) and isinstance(change.record, Tablet):
            yield change.record


def _bundle(snapshot: Snapshot, node: str) -> str:
    return snapshot.node(node).bundle


def _known(source: Source, bundle: str) -> tuple[BundleState, BundleView, BundleOptions]:
    """What was polled last, and the options in force."""
    state = source.states().get(bundle)
    if state is None or state.view is None:
        raise Unavailable(f"bundle {bundle} has not been polled yet")
    settings = source.settings().bundles.get(bundle)
    return state, state.view, BundleOptions() if settings is None else settings.options


def _shape(found: Explanation, state: BundleState, since: float | None) -> ExplanationShape:
    return ExplanationShape(
        subject=found.subject,
        sentences=[mask(one) for one in found.sentences],
        at=state.at,
        since=instant_or_none(since),
    )
