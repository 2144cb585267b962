"""Which instance should lead a directory, and when the current leader should let it. Pure.

An installation with a directory for each group of bundles runs an instance for each group on every host. Nobody talks
to other groups, so each group chooses by itself: rendezvous hashing gives every instance a score for the group, and the
highest score among those that are present wins. Over many groups each instance gets its share, and if one is lost, only
the groups that it led go elsewhere.

Why leadership does not go back and forth. A leader hands over only to the instance with the highest score. The scores
of a group do not change while weights do not, so each handover goes to a higher score, and after at most as many
handovers as there are instances nobody hands over any more. Only a failure begins a new series: an instance that led
and could not continue rests twice as long each time (`rest_after`) and is not wanted meanwhile; one that does not take
what it was handed is asked after twice as long each time (`patience`). So the number of handovers grows with the
logarithm of the time, up to one in an hour for each instance that keeps failing.

This module decides who *should* lead. Only the election and its epoch decide who *does*: two instances that disagree
here lead one after the other, never at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from math import log

LONGEST_REST = 3600.0
"""In seconds: the longest that an instance that keeps failing is left alone."""


@dataclass(frozen=True, slots=True)
class Contender:
    """An instance that is present."""

    name: str
    weight: float = 1.0
    """Its share of the groups relative to the others'; 0: it leads where no other can."""
    fit: bool = True
    """Whether it says itself that it could do the work."""


@dataclass(frozen=True, slots=True)
class Term:
    """How a leader stands, by its own clock."""

    me: str
    wanted: str
    wanted_for: float
    """Seconds for which the answer to who is wanted has been the same."""
    led_for: float
    under_way: str = ""
    """What would be interrupted, as "move 3f2a of tablet 7"; empty: nothing."""
    declined: int = 0
    """How often in a row the wanted one has not taken what this leader handed over."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The settings `settle` and `lead_at_least`, in seconds."""

    settle: float
    lead_at_least: float


@dataclass(frozen=True, slots=True)
class Handover:
    """Whether to hand over, and if not, why not."""

    now: bool
    waits_for: str = ""
    """Empty: for nothing; either it is now, or there is nobody to hand over to."""


def wanted_leader(group: str, contenders: Iterable[Contender]) -> str | None:
    """The name of the one that should lead; None if nobody is present. The order of the input does not matter."""
    present = list(contenders)
    fit = [one for one in present if one.fit] or present
    weighted = [one for one in fit if one.weight > 0] or fit
    return max(weighted, key=lambda one: (_score(group, one), one.name)).name if weighted else None


def _score(group: str, contender: Contender) -> float:
    """With these scores an instance wins in proportion to its weight."""
    digest = blake2b(digest_size=8)
    for text in (group, contender.name):
        part = text.encode(errors="backslashreplace")
        digest.update(len(part).to_bytes(8, "big") + part)  # the lengths: "a", "bc" is not "ab", "c"
    share = ((int.from_bytes(digest.digest(), "big") >> 12) + 0.5) / 2**52  # above 0 and below 1, exactly as a double
    return (contender.weight or 1.0) / -log(share)


def hand_over(term: Term, pace: Pace) -> Handover:
    """Whether a leader should resign now, so that the wanted one leads."""
    if term.wanted == term.me:
        return Handover(now=False)
    if term.under_way:
        return Handover(now=False, waits_for=f"{term.under_way} has ended")
    least = patience(pace.lead_at_least, term.declined)
    if term.led_for < least:
        return Handover(now=False, waits_for=f"{term.me} has led for {least:g} s")
    if term.wanted_for < pace.settle:
        return Handover(now=False, waits_for=f"{term.wanted} has been there for {pace.settle:g} s")
    return Handover(now=True)


def stands(me: str, wanted: str | None, leaderless_for: float, stay_back: float, *, resting: bool = False) -> bool:
    """Whether an instance that does not lead stands for election: all others leave the wanted one a moment first.

    One that rests leaves them twice as long, even if it is wanted for lack of others: a process that has just started
    does not know them yet.
    """
    if resting:
        return leaderless_for >= 2 * stay_back
    return wanted in (me, None) or leaderless_for >= stay_back


def patience(seconds: float, declined: int) -> float:
    """How long a leader keeps what the wanted one has failed to take this often."""
    return min(seconds * 2.0 ** min(declined, 30), max(seconds, LONGEST_REST))


def rest_after(failures: int, settle: float) -> float:
    """Seconds for which an instance is unfit to lead after this many of its leaderships in a row ended in a failure."""
    return min(settle * 2.0 ** min(failures, 30), max(settle, LONGEST_REST)) if failures > 0 else 0.0
