"""Which instances are present, by their notes in the directory and by this process's own clock.

A note that changes is a sign of life. One that has not changed since it was first read says nothing: its writer may
have died long ago.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from balancer.directory.instance_note import InstanceNote

FORGOTTEN = 86_400.0
"""Seconds without a change after which a note is removed: pods have another name each time."""


@dataclass(frozen=True, slots=True)
class _Seen:
    note: InstanceNote
    first: float  # monotonic, as are all times here
    changed: float | None = None


class Attendance:
    """What one process has seen of the others; used by one thread."""

    def __init__(self, absent_after: float) -> None:
        self._absent_after = absent_after
        self._seen: dict[str, _Seen] = {}

    def look(self, notes: Sequence[InstanceNote], now: float) -> None:
        """Takes in what was read at this moment."""
        before, self._seen = self._seen, {}
        for note in notes:
            known = before.get(note.name)
            if known is None:
                self._seen[note.name] = _Seen(note, now)
            else:
                moved = (known.note.process, known.note.beat) != (note.process, note.beat)
                self._seen[note.name] = _Seen(note, known.first, now if moved else known.changed)

    def present(self, now: float) -> list[InstanceNote]:
        """Those whose notes have changed lately."""
        return [
            seen.note
            for seen in self._seen.values()
            if seen.changed is not None and now - seen.changed < self._absent_after
        ]

    def last_sign(self, name: str) -> float | None:
        """When the note of this name was last seen to change; None: never."""
        seen = self._seen.get(name)
        return None if seen is None else seen.changed

    def forgotten(self, now: float) -> list[str]:
        """Those whose notes have not changed for a day."""
        last = {name: seen.first if seen.changed is None else seen.changed for name, seen in self._seen.items()}
        return [name for name, at in last.items() if now - at >= FORGOTTEN]
