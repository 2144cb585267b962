"""How far the balancing of a bundle has come: begun at the start threshold, and not yet at the stop threshold.

A note in the directory, by bundle, so that a restart or another leader continues where moves have begun. Only the
leader writes it, when it changes; everybody else, and a leader at its first tick, reads it. A lost note only means that
moves start again at the start threshold.
"""

from math import isfinite
from typing import Final

from balancer.directory.contract import Directory
from balancer.directory.model import Json
from balancer.policies.tail import Tail

TOPIC: Final = "balancing"
"""The topic of the notes; their names are those of the bundles."""


class BalancingBook:
    """What one bundle's ticks know about it."""

    def __init__(self, bundle: str) -> None:
        self._bundle = bundle
        self._known = Tail()
        self._leading: object | None = None

    def read(self, directory: Directory, leading: object | None) -> Tail:
        """How it stands. `leading` is this process's leadership: while it lasts, nobody else writes."""
        if leading is None or leading is not self._leading:
            self._known = read_tail(directory.published(TOPIC).get(self._bundle))
            self._leading = leading
        return self._known

    def write(self, directory: Directory, tail: Tail) -> None:
        """Leaves the note if something has changed; retried at the next tick if that fails."""
        if tail != self._known:
            directory.publish(TOPIC, self._bundle, tail_note(tail))
            self._known = tail


def tail_note(tail: Tail) -> dict[str, Json]:
    """{"bytes": what the end of it may copy, "nodes": those over the start threshold}."""
    return {"bytes": tail.bytes, "nodes": sorted(tail.nodes)}


def read_tail(note: Json) -> Tail:
    """The inverse. Anybody may leave a note: something that is not one means that nothing has begun."""
    try:
        left, nodes = float(note["bytes"]), frozenset(map(str, note["nodes"]))
    except (KeyError, TypeError, ValueError):
        return Tail()
    return Tail(left, nodes) if isfinite(left) and left >= 0 else Tail()
