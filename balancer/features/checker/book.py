"""The checker's book as notes in the directory: what a new leader continues from, and what others show.

One note per bundle. Anybody who may write notes may leave one, so the reader takes nothing for granted: anything else
is an empty book, and the round starts from scratch.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from decimal import Decimal
from typing import Any, Final, TypeVar

from balancer.directory.contract import Directory
from balancer.directory.model import Json
from balancer.policies.check_options import CheckKind
from balancer.policies.checking import KEPT_ROUNDS, MOST_STANDING, Anomaly, CheckRound, CheckRounds, PastRound, Standing

TOPIC: Final = "checks"
"""The topic of the notes; their names are those of the bundles."""
MOST_TEXT: Final = 600
Piece = TypeVar("Piece")


def write_book(directory: Directory, bundle: str, book: CheckRounds) -> None:
    """Leaves the note."""
    directory.publish(TOPIC, bundle, book_note(book))


def read_book(directory: Directory, bundle: str) -> CheckRounds:
    """What the last leader knew."""
    return book_of(directory.published(TOPIC).get(bundle))


def read_books(directory: Directory) -> dict[str, CheckRounds]:
    """By bundle."""
    return {name: book_of(note) for name, note in directory.published(TOPIC).items()}


def book_note(book: CheckRounds) -> dict[str, Json]:
    """As plain data. Texts are cut: a note must stay small."""
    round_ = book.round
    return {
        "round": None if round_ is None else {**asdict(round_), "kind": round_.kind and str(round_.kind)},
        "standing": [_standing_note(one) for one in book.standing.values()],
        "more": book.more,
        "past": [asdict(one) for one in book.past],
        "ended": dict(book.ended),
        "sums": dict(book.sums),
    }


def book_of(note: Json) -> CheckRounds:
    """The inverse."""
    # Part by part: what another version knows and this one does not must not cost the first values of sums.
    nothing: tuple[Standing, ...] = ()
    standing = _read(lambda: tuple(map(_standing, note["standing"]))[:MOST_STANDING], nothing)
    return CheckRounds(
        _read(lambda: _round(note["round"]), None),
        {one.anomaly.key: one for one in standing},
        _read(lambda: int(note["more"]), 0),
        _read(lambda: tuple(_past(one) for one in note["past"])[-KEPT_ROUNDS:], ()),
        _read(lambda: {str(kind): float(at) for kind, at in note["ended"].items()}, dict[str, float]()),
        _read(lambda: {str(name): str(Decimal(value)) for name, value in note["sums"].items()}, dict[str, str]()),
    )


def _read(part: Callable[[], Piece], otherwise: Piece) -> Piece:
    try:
        return part()
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        return otherwise


def _standing_note(one: Standing) -> dict[str, Json]:
    anomaly = {**asdict(one.anomaly), "kind": str(one.anomaly.kind)}
    anomaly["text"] = anomaly["text"][:MOST_TEXT]
    return {"anomaly": anomaly, "first": one.first, "last": one.last, "round": one.round, "subject": one.subject}


def _standing(note: Mapping[str, Any]) -> Standing:
    found = note["anomaly"]
    tablet = found["tablet"]
    texts = {name: str(found[name]) for name in ("text", "table", "node", "root", "advice", "about")}
    anomaly = Anomaly(
        CheckKind(found["kind"]), tablet=None if tablet is None else int(tablet), count=int(found["count"]), **texts
    )
    return Standing(anomaly, float(note["first"]), float(note["last"]), int(note["round"]), int(note["subject"]))


def _round(note: Mapping[str, Any] | None) -> CheckRound | None:
    if note is None:
        return None
    whole = {name: int(note[name]) for name in ("number", "subject", "item", "page", "epoch", "units", "rows")}
    return CheckRound(
        began=float(note["began"]),
        kind=None if note["kind"] is None else CheckKind(note["kind"]),
        more=bool(note["more"]),
        seconds=float(note["seconds"]),
        unchecked={str(kind): tuple(map(int, subjects)) for kind, subjects in note["unchecked"].items()},
        why=tuple(map(str, note["why"])),
        **whole,
    )


def _past(note: Mapping[str, Any]) -> PastRound:
    whole = {name: int(note[name]) for name in ("number", "units", "rows", "anomalies", "unchecked")}
    times = {name: float(note[name]) for name in ("began", "ended", "seconds")}
    return PastRound(**whole, **times)  # type: ignore[arg-type]
