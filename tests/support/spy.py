"""An observer that does something at a named point of a migration, once, in the runner's own thread."""

from collections.abc import Callable, Mapping

from balancer.directory.model import Migration
from balancer.migration.machine import State
from balancer.migration.progress import Observer


class Spy(Observer):
    """`Spy({"entered:fencing": work})`; remembers the states it saw."""

    def __init__(self, work: Mapping[str, Callable[[], object]] | None = None) -> None:
        self.work: dict[str, Callable[[], object]] = dict(work or {})
        self.states: list[State] = []

    def entered(self, migration: Migration, state: State) -> None:
        self.states.append(state)
        self._do(f"entered:{state}")

    def left(self, migration: Migration, state: State) -> None:
        self._do(f"left:{state}")

    def _do(self, point: str) -> None:
        work = self.work.pop(point, None)
        if work is not None:
            work()
