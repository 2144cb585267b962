"""A node's place in its own history, and whether it has gone back. Pure: what it says now against what it said before.

A server that was replaced by a lagging standby, or by an old backup, has forgotten writes that it had acknowledged.
Four things reveal it, each where the others are blind:

- the *system identifier*: another server altogether; nothing that it says can be compared;
- the *mark*: a time that the leader writes on the node about once a minute. It is data like any other, so it goes back
  with the data, whatever the WAL positions say. It sees what happened while nobody watched;
- the *leader's epoch* that the node has recorded: the same, at each election;
- *timeline and position* of the log, read in every poll. On one timeline the flushed end of the log never goes back,
  not even in a crash. After a promotion the new timeline's history says where it left the old one: nothing is lost if
  that is not before the position last seen. The position alone would not be enough: a new primary soon writes past it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

Forks = Mapping[int, int]
"""Timeline → the position at which the current history left it."""


@dataclass(frozen=True, slots=True)
class Footing:
    """What a node said at one moment."""

    system: str
    timeline: int
    position: int
    """The flushed end of its log, in bytes."""
    leader_epoch: int = 0
    mark: int = 0
    """Seconds since 1970."""

    def document(self) -> dict[str, Any]:
        """For the directory."""
        return asdict(self)


def read_footing(document: Mapping[str, Any]) -> Footing:
    """The footing in a document."""
    numbers = {name: int(document[name]) for name in ("timeline", "position", "leader_epoch", "mark")}
    return Footing(str(document["system"]), **numbers)


def went_back(before: Footing, now: Footing, forks: Forks | None) -> str:
    """Why the node is behind what it has said before, with what is missing in numbers; empty: it is not.

    `forks` None: the history of the timeline could not be read, and positions alone must suffice.
    """
    if now.system != before.system:
        return f"it is another server (system identifier {now.system}, before {before.system})"
    if now.mark < before.mark:
        return (
            f"it is as it was {before.mark - now.mark} seconds before {_moment(before.mark)}:"
            " what it acknowledged in between is missing"
        )
    if now.leader_epoch < before.leader_epoch:
        return f"it had seen leader {before.leader_epoch} and now knows only {now.leader_epoch}"
    if now.timeline < before.timeline:
        return f"it is on timeline {now.timeline} and was on {before.timeline}"
    return _log_went_back(before, now, forks)


def parse_history(content: str) -> dict[int, int]:
    """The forks in a timeline's history file."""
    forks = {}
    for line in content.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0].isdigit():
            high, _, low = words[1].partition("/")
            forks[int(words[0])] = (int(high, 16) << 32) + int(low, 16)
    return forks


def _log_went_back(before: Footing, now: Footing, forks: Forks | None) -> str:
    if now.timeline > before.timeline and forks is not None:
        fork = forks.get(before.timeline)
        if fork is None:
            return f"its timeline {now.timeline} does not come from timeline {before.timeline}, on which it was"
        if fork < before.position:
            missing = before.position - fork
            return f"it was promoted from a standby that lacked {missing} bytes of the log it had acknowledged"
    elif now.position < before.position:
        return f"its log ends {before.position - now.position} bytes before where it was"
    return ""


def _moment(mark: int) -> str:
    return f"{datetime.fromtimestamp(mark, UTC):%Y-%m-%d %H:%M:%S} UTC"
