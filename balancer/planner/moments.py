"""What each bundle was like in the last hour and the last day: its word, its score and what its nodes carried.

The recorder keeps them; the page draws its charts and its past from them. An hour is kept in slots of a tick, a day in
slots of four minutes; a slot keeps the newest of its ticks. So memory is bounded: 720 moments of a bundle, each with
four figures for each node.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from balancer.planner.loads import node_loads
from balancer.planner.state import BundleState, StateWord

DAY_SLOT: Final = 240.0
DAY_SLOTS: Final = 360
CARRIED: Final = ("bytes", "write_rate", "read_rate", "tablets")


@dataclass(frozen=True, slots=True)
class PastMoment:
    """A bundle at one moment."""

    at: float
    word: StateWord
    sentence: str
    score: float | None
    loads: Mapping[str, tuple[float, ...]]  # node → its figures, in the order of CARRIED
    counted: frozenset[str]  # nodes that count in averages: neither down nor draining


def moment_of(state: BundleState) -> PastMoment:
    """What is kept of a state."""
    reports = {report.id: report for report in state.nodes}
    loads: dict[str, tuple[float, ...]] = {}
    if state.view is not None:
        columns = node_loads(state.view)
        for at, node in enumerate(state.view.nodes):
            loads[node.id] = tuple(float(columns[name][at]) for name in CARRIED)
    counted = frozenset(
        name for name in loads if name in reports and _counts(reports[name].state, reports[name].reachable)
    )
    score = None if state.plan is None else state.plan.score_before
    return PastMoment(state.at.timestamp(), state.word, state.sentence, score, loads, counted)


def _counts(condition: str, reachable: bool) -> bool:
    return reachable and condition in ("active", "closed")


class Moments:
    """Of one bundle. Not thread-safe: the recorder's lock protects it."""

    def __init__(self, slot_seconds: float, slots: int) -> None:
        self._tiers = ((slot_seconds, deque[PastMoment](maxlen=slots)), (DAY_SLOT, deque[PastMoment](maxlen=DAY_SLOTS)))
        self.begun: float | None = None
        """Since when there is something to do; None: there is nothing."""

    def add(self, state: BundleState) -> None:
        """Takes what a tick found."""
        moment = moment_of(state)
        for seconds, kept in self._tiers:
            if kept and int(kept[-1].at / seconds) == int(moment.at / seconds):
                kept.pop()
            kept.append(moment)
        if moment.word is StateWord.BALANCED:
            self.begun = None
        elif self.begun is None:
            self.begun = moment.at

    def hour(self) -> Sequence[PastMoment]:
        """Oldest first."""
        return tuple(self._tiers[0][1])

    def day(self) -> Sequence[PastMoment]:
        """Oldest first: coarse, then the last hour as it is kept."""
        hour = self.hour()
        first = hour[0].at if hour else float("inf")
        return (*(moment for moment in self._tiers[1][1] if moment.at < first), *hour)
