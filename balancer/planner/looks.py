"""When a leader last looked at the schedules of a bundle, so that a window which opens meanwhile is not lost.

A window may be one minute long. A daemon that restarts in it, or a leader that takes over, looks back to the last tick
of whoever led before; it reads that from the status note in the directory, which every tick of a leader renews.
"""

from datetime import datetime

from balancer.directory.contract import Directory
from balancer.directory.model import Json
from balancer.planner.state import BundleState
from balancer.planner.summary import STATUS_TOPIC


class LookBook:
    """What one bundle's ticks know about it."""

    def __init__(self, bundle: str) -> None:
        self._bundle = bundle
        self.looked: datetime | None = None
        self._leading: object | None = None

    def read(self, directory: Directory, leading: object | None) -> datetime | None:
        """The last look of a leader. `leading` is this process's leadership: while it lasts, nobody else looks."""
        if leading is not self._leading:
            note = None if leading is None else directory.published(STATUS_TOPIC).get(self._bundle)
            self.looked, self._leading = read_look(note), leading
        return self.looked

    def noted(self, state: BundleState) -> BundleState:
        """Remembers what the tick that has just ended says, and returns it."""
        self.looked = state.looked
        return state


def read_look(note: Json) -> datetime | None:
    """From a status note. Anybody may leave one: what is no time with a zone means that nobody has looked."""
    try:
        looked = datetime.fromisoformat(note["looked"])
    except (KeyError, TypeError, ValueError):
        return None
    return looked if looked.tzinfo is not None and looked.year in range(2000, 9000) else None
