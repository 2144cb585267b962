"""Asks all nodes at once, each with a deadline. A slow or dead node is a value, never a stuck tick.

A question that outlives its tick continues until its own timeouts end it; until then its node counts as unreachable and
is not asked again, so questions cannot pile up. Nodes that answered last time go first, and only they are waited for: a
silent node costs its patience in the tick in which it falls silent, and only a moment in later ones. An answer that
comes too late is not used, because the directory may have changed since; but the next tick waits for its node.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from balancer.clock import Clock
from balancer.errors import BalancerError, Unavailable
from balancer.polling.askers import SHARED, Askers, Question

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A node that did not answer: since when (seconds since 1970), and why in a few words."""

    since: float
    reason: str


GRACE: Final = 1.0
"""Seconds to wait for a node that was silent last time."""


class FanOut(Generic[Answer]):
    """Keeps what must be remembered between ticks: open questions, and since when a node has been silent."""

    def __init__(self, clock: Clock, askers: Askers = SHARED) -> None:
        self._clock = clock
        self._askers = askers
        self._open: dict[str, Question[Answer]] = {}
        self._silent: dict[str, float] = {}

    def ask(self, questions: Mapping[str, Callable[[], Answer]], patience: float) -> dict[str, Answer | Unreachable]:
        """Asks every node; each has `patience` seconds from when it is asked. An answer or `Unreachable` for each."""
        late = {node for node, future in self._open.items() if future.done() and future.exception() is None}
        self._open = {node: future for node, future in self._open.items() if not future.done()}
        doubtful = self._silent.keys() - late
        asked = {
            node: self._askers.submit(questions[node])
            for node in sorted(questions, key=lambda node: node in doubtful)
            if node not in self._open
        }
        self._askers.wait([future for node, future in asked.items() if node not in doubtful], patience)
        self._askers.wait([future for node, future in asked.items() if node in doubtful], min(patience, GRACE))
        self._open |= asked
        self._silent = {node: since for node, since in self._silent.items() if node in questions}
        return {node: self._result(node, asked.get(node), patience) for node in questions}

    def close(self) -> None:
        """Waits for open questions, each of which ends by its own timeouts. Idempotent."""
        for future in self._open.values():
            future.cancel()
        self._askers.wait([future for future in self._open.values() if not future.cancelled()], None)
        self._open.clear()

    def _result(self, node: str, future: Question[Answer] | None, patience: float) -> Answer | Unreachable:
        if future is None or not future.done():
            return self._unreachable(node, f"no answer within {patience:g} s")
        try:
            answer = future.result()
        except BalancerError as error:
            why = error.why if isinstance(error, Unavailable) else str(error)
            return self._unreachable(node, why.removeprefix(f"node {node} "))
        self._silent.pop(node, None)
        return answer

    def _unreachable(self, node: str, reason: str) -> Unreachable:
        since = self._silent.setdefault(node, self._clock.now().timestamp())
        return Unreachable(since, reason)
