"""What the consistency checker does next, and what its looks mean. Pure: `balancer.features.checker` does the looking.

A *round* goes over everything once: kind after kind, and within a kind subject after subject (tablets by their ids,
which only grow, so that what is split or merged meanwhile is met again under its new ids). Where a round stands is a
small value, `CheckRound`: a new leader that has it continues there. A `CheckResult` at one unit of work yields
anomalies, which stay in the `CheckRounds` until a later round no longer finds them."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from balancer.policies.check_options import CheckKind, CheckOptions

MOST_STANDING = 200
"""Anomalies that are kept: the first of them, and the count, reveal damage to a whole node."""
KEPT_ROUNDS = 30
MOST_UNCHECKED = 1000
MOST_REASONS = 20


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that must not be: what, where, how much of it, and what to do about it."""

    kind: CheckKind
    text: str
    table: str = ""
    tablet: int | None = None
    node: str = ""
    root: str = ""
    count: int = 1
    advice: str = ""
    about: str = ""
    """What distinguishes it from others in the same place: an invariant's name, a foreign key."""

    @property
    def key(self) -> tuple[str, ...]:
        """The same trouble, however much of it there is. Not its node: a tablet that moves takes its rows along."""
        where = self.node if self.tablet is None or self.kind in _OF_NODES else ""
        return str(self.kind), self.table, str(self.tablet or ""), where, self.root, self.about


_OF_NODES = (CheckKind.MAP, CheckKind.STRAYS)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one unit of work found."""

    anomalies: tuple[Anomaly, ...] = ()
    rows: int = 0
    next_page: int = 0
    """Where the same unit continues; 0: it is done."""
    epoch: int = 0
    """Of the tablet: pages are those of this owner."""
    more: bool = False
    """Whether the subject has a further item."""
    unchecked: str = ""
    """Why nothing, or not everything, can be said; empty: everything was checked."""
    sums: Mapping[str, str] = field(default_factory=dict)
    """Sums seen for the first time."""


@dataclass(frozen=True, slots=True)
class CheckUnit:
    """One thing to look at: the subject's number, the item of it, and the page at which to continue."""

    kind: CheckKind
    subject: int
    item: int = 0
    page: int = 0
    epoch: int = 0
    """Epoch of the owner whose page that is: another owner's rows lie elsewhere."""


@dataclass(frozen=True, slots=True)
class CheckRound:
    """How far a round has come."""

    number: int
    began: float
    kind: CheckKind | None
    """What is being checked; None: the round is over."""
    subject: int = -1
    item: int = -1
    page: int = 0
    """Above 0: the unit is not done, and continues here."""
    epoch: int = 0
    more: bool = False
    """Whether the subject has a further item."""
    units: int = 0
    rows: int = 0
    seconds: float = 0.0
    unchecked: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Kind → subjects about which nothing could be said, `MOST_UNCHECKED` of them."""
    why: tuple[str, ...] = ()
    """Some of the reasons."""

    @property
    def unchecked_count(self) -> int:
        return sum(map(len, self.unchecked.values()))


@dataclass(frozen=True, slots=True)
class PastRound:
    """What became of a round."""

    number: int
    began: float
    ended: float
    units: int
    rows: int
    seconds: float
    anomalies: int
    unchecked: int


@dataclass(frozen=True, slots=True)
class Standing:
    """A confirmed anomaly: when it was first and last seen."""

    anomaly: Anomaly
    first: float
    last: float
    round: int
    subject: int = 0
    """Of the unit that found it."""


@dataclass(frozen=True, slots=True)
class CheckRounds:
    """Everything that outlives a leader."""

    round: CheckRound | None = None
    standing: Mapping[tuple[str, ...], Standing] = field(default_factory=dict)
    more: int = 0
    """Anomalies beyond those that are kept, of this round."""
    past: tuple[PastRound, ...] = ()
    ended: Mapping[str, float] = field(default_factory=dict)
    """Kind → when all of it was last checked."""
    sums: Mapping[str, str] = field(default_factory=dict)
    """Sums that must not change, as they were at their first look, by table and name."""

    @property
    def running(self) -> CheckRound | None:
        """The round that is not over."""
        return self.round if self.round is not None and self.round.kind is not None else None


def due_at(book: CheckRounds, options: CheckOptions) -> float:
    """When there is something to do: now, for a round that is not over; otherwise when the next one should begin."""
    if book.round is None or book.running is not None:
        return 0.0
    return book.round.began + options.every


def overdue(book: CheckRounds, options: CheckOptions, now: float) -> float:
    """Seconds by which a whole round is late: a round may take as long as the time between two."""
    last = book.past[-1].began if book.past else (book.round.began if book.round else now)
    return max(0.0, now - last - 2 * options.every)


def begin_round(book: CheckRounds, kinds: Sequence[CheckKind], now: float) -> CheckRounds:
    """The next round, at its first kind."""
    number = book.round.number + 1 if book.round else 1
    return replace(book, round=CheckRound(number, now, _first(kinds)), more=0)


def next_unit(round_: CheckRound, subjects: Sequence[int]) -> CheckUnit | None:
    """The unit that follows, of subjects in order; None: the kind is done."""
    kind = round_.kind
    assert kind is not None, "the round is over"
    at = bisect_left(subjects, round_.subject)
    here = at < len(subjects) and subjects[at] == round_.subject
    if here and round_.page > 0:
        return CheckUnit(kind, round_.subject, round_.item, round_.page, round_.epoch)
    if here and round_.more:
        return CheckUnit(kind, round_.subject, round_.item + 1)
    following = at + 1 if here else at
    return CheckUnit(kind, int(subjects[following])) if following < len(subjects) else None


def confirmed(first: CheckResult, second: CheckResult) -> CheckResult:
    """What two looks in a row have both found: what passes does not count. The second look's account is used."""
    known = {anomaly.key for anomaly in first.anomalies}
    return replace(second, anomalies=tuple(one for one in second.anomalies if one.key in known))


def after_look(
    book: CheckRounds, unit: CheckUnit, look: CheckResult, now: float, seconds: float
) -> tuple[CheckRounds, tuple[Anomaly, ...]]:
    """The book after a look, and the anomalies that were not in it before."""
    round_ = book.round
    assert round_ is not None, "a look belongs to a round"
    standing, more = dict(book.standing), book.more
    appeared = []
    for anomaly in look.anomalies:
        known = standing.get(anomaly.key)
        if known is None and len(standing) >= MOST_STANDING:
            more += 1
            continue
        if known is None:
            appeared.append(anomaly)
        elif known.round == round_.number and unit.page > 0:  # a further page of the same unit
            anomaly = replace(anomaly, count=known.anomaly.count + anomaly.count)  # noqa: PLW2901 - the same trouble
        first = known.first if known else now
        standing[anomaly.key] = Standing(anomaly, first, now, round_.number, unit.subject)
    done = look.next_page == 0
    unchecked, why = dict(round_.unchecked), round_.why
    if look.unchecked:
        known_of = unchecked.get(unit.kind, ())
        unchecked[str(unit.kind)] = tuple(sorted({*known_of, unit.subject}))[:MOST_UNCHECKED]
        why = (*why, look.unchecked)[:MOST_REASONS] if look.unchecked not in why else why
    moved = replace(
        round_,
        subject=unit.subject,
        item=unit.item,
        page=look.next_page,
        epoch=look.epoch,
        more=look.more,
        units=round_.units + done,
        rows=round_.rows + look.rows,
        seconds=round_.seconds + seconds,
        unchecked=unchecked,
        why=why,
    )
    sums = {**look.sums, **book.sums}  # what was seen first counts
    return replace(book, round=moved, standing=standing, more=more, sums=sums), tuple(appeared)


def end_kind(book: CheckRounds, kinds: Sequence[CheckKind], now: float) -> tuple[CheckRounds, tuple[Anomaly, ...]]:
    """All of a kind was checked: the book at the next kind, and the anomalies that are gone.

    Anomalies where nothing could be said stay.
    """
    round_ = book.round
    assert round_ is not None
    assert round_.kind is not None, "the round is over"
    kind = round_.kind
    unchecked = round_.unchecked.get(str(kind), ())
    left = [s for s in book.standing.values() if s.anomaly.kind is kind and s.round < round_.number]
    gone = tuple(s.anomaly for s in left if s.subject not in unchecked and len(unchecked) < MOST_UNCHECKED)
    standing = {key: s for key, s in book.standing.items() if s.anomaly not in gone}
    following = _first([one for one in kinds if _place(one) > _place(kind)])
    moved = replace(round_, kind=following, subject=-1, item=-1, page=0, more=False)
    book = replace(book, round=moved, standing=standing, ended={**book.ended, str(kind): now})
    return (_end_round(book, now) if following is None else book), gone


def of_kinds(book: CheckRounds, kinds: Iterable[CheckKind]) -> tuple[CheckRounds, tuple[Anomaly, ...]]:
    """Without what is no longer checked: nobody would ever find it gone."""
    wanted = set(kinds)
    gone = tuple(s.anomaly for s in book.standing.values() if s.anomaly.kind not in wanted)
    return replace(book, standing={k: s for k, s in book.standing.items() if s.anomaly.kind in wanted}), gone


def rest_after(seconds: float, share: float) -> float:
    """How long to pause after this much work, so that work takes this share of the time."""
    return seconds * (1.0 - share) / share


def counts(book: CheckRounds) -> dict[str, int]:
    """Current anomalies, by kind."""
    found = {str(kind): 0 for kind in CheckKind}
    for standing in book.standing.values():
        found[str(standing.anomaly.kind)] += 1
    return found


def _end_round(book: CheckRounds, now: float) -> CheckRounds:
    done = book.round
    assert done is not None
    past = PastRound(
        done.number,
        done.began,
        now,
        done.units,
        done.rows,
        done.seconds,
        len(book.standing) + book.more,
        done.unchecked_count,
    )
    return replace(book, past=(*book.past, past)[-KEPT_ROUNDS:])


def _first(kinds: Sequence[CheckKind]) -> CheckKind | None:
    return min(kinds, key=_place, default=None)


def _place(kind: CheckKind) -> int:
    return list(CheckKind).index(kind)
