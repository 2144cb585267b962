"""A search through every order of events of a model, up to its bounds: breadth first, so that what breaks an invariant
is shown by one of the shortest stories.

A model has a first state, the events that may happen in a state, what must hold in each, and what counts as an end that
nobody has to wait for. Plain Python rather than spin or TLA+: a reviewer reads it beside the argument in
`balancer.migration.machine`, line by line, and the tests bind it to that file's tables without a translation.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Generic, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)
Story = list[str]


class Model(Protocol[State]):
    """What is explored."""

    def first(self) -> State:
        """Where every story begins."""

    def events(self, state: State) -> Iterator[tuple[str, State]]:
        """Everything that may happen next, each with what it leads to."""

    def wrong(self, state: State) -> str:
        """What must never be; empty: nothing."""

    def settled(self, state: State) -> bool:
        """Whether somebody can write to the tablet and no migration is under way, or it says what it lacks."""


@dataclass(frozen=True)
class Explored:
    """What a search has seen."""

    states: int
    edges: int
    depth: int
    seconds: float
    wrong: str = ""
    """What an invariant said; the story leads there."""
    stuck: bool = False
    """Whether the story leads to a state from which no end can be reached."""
    story: tuple[str, ...] = ()

    @property
    def caught(self) -> bool:
        return bool(self.wrong) or self.stuck

    def words(self) -> str:
        """For a table."""
        if self.wrong:
            return f"{self.wrong} ({len(self.story)} events)"
        return f"no way on ({len(self.story)} events)" if self.stuck else "holds"


class TooMany(Exception):
    """The bounds are too wide to be searched."""


class Search(Generic[State]):
    """One search."""

    def __init__(self, model: Model[State], most: int = 3_000_000) -> None:
        self._model = model
        self._most = most
        self._came: dict[State, tuple[State, str] | None] = {}
        self._before: dict[State, list[State]] = {}
        self._ends: list[State] = []
        self._edges = self._depth = 0
        self._began = monotonic()

    def run(self) -> Explored:
        """Everything that can be reached, or the first state that must not be."""
        first = self._model.first()
        self._came[first] = None
        waiting = deque([(first, 0)])
        while waiting:
            state, self._depth = waiting.popleft()
            if wrong := self._model.wrong(state):
                return self._seen(state, wrong=wrong)
            if self._model.settled(state):
                self._ends.append(state)
            for label, following in self._model.events(state):
                self._edges += 1
                self._before.setdefault(following, []).append(state)
                if following not in self._came:
                    self._came[following] = (state, label)
                    waiting.append((following, self._depth + 1))
            if len(self._came) > self._most:
                raise TooMany(f"more than {self._most} states")
        stuck = self._without_an_end()
        return self._seen(stuck, stuck=True) if stuck is not None else self._seen()

    def _without_an_end(self) -> State | None:
        """The first state from which no end can be reached."""
        ending, waiting = set(self._ends), list(self._ends)
        while waiting:
            for state in self._before.get(waiting.pop(), ()):
                if state not in ending:
                    ending.add(state)
                    waiting.append(state)
        return next((state for state in self._came if state not in ending), None)

    def _seen(self, state: State | None = None, *, wrong: str = "", stuck: bool = False) -> Explored:
        story = () if state is None else tuple(self._story(state))
        seconds = monotonic() - self._began
        return Explored(len(self._came), self._edges, self._depth, seconds, wrong, stuck, story)

    def _story(self, state: State) -> Story:
        found: Story = []
        while (came := self._came[state]) is not None:
            state, label = came
            found.append(label)
        return found[::-1]
