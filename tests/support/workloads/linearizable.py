"""Whether the history of one register could have happened one operation after another. Pure.

Wing and Gong's search in Lowe's form: it goes through the events in order of time and keeps every *possibility*: a
value, and which of the operations under way have already taken effect. An operation may take effect as late as at its
own answer, so possibilities are followed further only there. Equal ones are kept once.

An operation without an answer stays under way forever: it may take effect at any time, or never.
"""

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

Possibility = tuple[int, frozenset[int]]


class Deed(NamedTuple):
    """An operation on the register. `read`: found. `write`: new. `cas`: old and new; `took`: whether it was applied."""

    kind: str
    began: float
    ended: float = inf  # never answered
    old: int = 0
    new: int = 0
    took: bool = True


def is_linearizable(deeds: Sequence[Deed], first: int = 0) -> bool:
    """Whether some order explains every answer, beginning with the value `first`."""
    possible: set[Possibility] = {(first, frozenset())}
    under_way: set[int] = set()
    for _, answered, number in sorted(_events(deeds)):
        if not answered:
            under_way.add(number)
            continue
        possible = {
            (value, done - {number}) for value, done in _followed(deeds, possible, under_way, number) if number in done
        }
        under_way.discard(number)
        if not possible:
            return False
    return True


def after(value: int, deed: Deed) -> int | None:
    """The register's value after an operation; None if it could not have been answered like this."""
    match deed.kind:
        case "read":
            return value if value == deed.old else None
        case "write":
            return deed.new
        case "cas" if deed.took:
            return deed.new if value == deed.old else None
        case "cas":
            return value if value != deed.old else None
    raise ValueError(f"a register knows read, write and cas, not {deed.kind}")


def _events(deeds: Sequence[Deed]) -> Iterable[tuple[float, bool, int]]:
    """Beginnings before answers if the clock shows the same: then the two overlap."""
    for number, deed in enumerate(deeds):
        yield deed.began, False, number
        if deed.ended != inf:
            yield deed.ended, True, number


def _followed(deeds: Sequence[Deed], possible: set[Possibility], under_way: set[int], wanted: int) -> set[Possibility]:
    """What can follow until the wanted operation has taken effect."""
    seen = set(possible)
    waiting = [one for one in possible if wanted not in one[1]]
    while waiting:
        value, done = waiting.pop()
        for number in under_way - done:
            new = after(value, deeds[number])
            if new is None:
                continue
            reached = (new, done | {number})
            if reached not in seen:
                seen.add(reached)
                if number != wanted:
                    waiting.append(reached)
    return seen
