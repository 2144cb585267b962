"""The consistency checker's results as documents, from the notes that the leader leaves."""

from collections.abc import Mapping

from balancer.api.documents import cut_at, instant
from balancer.api.record_shapes import CheckList, CheckRoundShape, ChecksShape, FindingShape
from balancer.checks.book_notes import book_of
from balancer.directory.model import Json
from balancer.logs import mask
from balancer.policies.checking import CheckBook, PastRound, Standing

_FEW = 20


def check_results(notes: Mapping[str, Json]) -> list[ChecksShape]:
    """Of every bundle that has been checked."""
    return [_checks(bundle, book_of(note)) for bundle, note in sorted(notes.items())]


def check_list(notes: Mapping[str, Json], limit: int, cursor: str) -> CheckList:
    """Some of them, by bundle."""
    items, following = cut_at(check_results(notes), lambda one: (one.bundle,), limit, cursor)
    return CheckList(items=list(items), next=following)


def _checks(bundle: str, book: CheckBook) -> ChecksShape:
    round_ = book.round
    return ChecksShape(
        bundle=bundle,
        round=round_.number if round_ else 0,
        kind=round_.kind if round_ else None,
        rows=round_.rows if round_ else 0,
        findings=[_finding(one) for one in list(book.standing.values())[:_FEW]],
        more=book.more + max(0, len(book.standing) - _FEW),
        unchecked=[mask(why) for why in round_.why[:_FEW]] if round_ else [],
        past=[_past(one) for one in book.past],
    )


def _finding(one: Standing) -> FindingShape:
    found = one.anomaly
    return FindingShape(
        kind=found.kind,
        text=mask(found.text),
        table=found.table,
        tablet=found.tablet,
        node=found.node,
        root=found.root,
        count=found.count,
        advice=mask(found.advice),
        first=instant(one.first),
        last=instant(one.last),
    )


def _past(one: PastRound) -> CheckRoundShape:
    return CheckRoundShape(
        number=one.number,
        began=instant(one.began),
        ended=instant(one.ended),
        rows=one.rows,
        findings=one.anomalies,
        unchecked=one.unchecked,
    )
