"""Whether a bundle is being balanced: begun at the start threshold, and not at the stop threshold yet.

A note in the directory, by bundle, so that a restart or another leader goes on where moves have begun. Only the leader
writes it, when it changes; everybody else, and a leader at its first tick, reads it. A note that is lost only means
that moves start again at the start threshold.
"""

from typing import Final

from balancer.directory.contract import Directory

TOPIC: Final = "balancing"
"""The topic of the notes; their names are those of the bundles: {"balancing": whether moves have begun}."""


class BalancingBook:
    """What one bundle's ticks know of it."""

    def __init__(self, bundle: str) -> None:
        self._bundle = bundle
        self._known = False
        self._leading: object | None = None

    def read(self, directory: Directory, leading: object | None) -> bool:
        """Whether moves have begun. `leading` is this process's leadership: while it lasts, nobody else writes."""
        if leading is None or leading is not self._leading:
            note = directory.published(TOPIC).get(self._bundle)
            self._known = isinstance(note, dict) and note.get("balancing") is True
            self._leading = leading
        return self._known

    def write(self, directory: Directory, balancing: bool) -> None:
        """Leaves the note, where something has changed; tried again at the next tick where that fails."""
        if balancing != self._known:
            directory.publish(TOPIC, self._bundle, {"balancing": balancing})
            self._known = balancing
