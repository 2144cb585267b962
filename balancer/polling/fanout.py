"""Asks all nodes at once, each with a deadline. A slow or dead node is a value, never a stuck tick.

One thread per question, a bounded number of them. A question that outlives its tick goes on until its own timeouts end
it; until then its node counts as unreachable and is not asked again, so questions cannot pile up. Nodes that answered
last time go first, so that dead ones do not keep the living waiting for a thread.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from balancer.clock import Clock
from balancer.errors import BalancerError

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A node that did not answer: since when (seconds since 1970), and why as a sentence."""

    since: float
    reason: str


class FanOut(Generic[Answer]):
    """Keeps what must be remembered between ticks: open questions, and since when a node is silent."""

    def __init__(self, clock: Clock, workers: int = 32) -> None:
        self._clock = clock
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="poll")
        self._open: dict[str, Future[Answer]] = {}
        self._silent: dict[str, float] = {}

    def ask(self, questions: Mapping[str, Callable[[], Answer]], patience: float) -> dict[str, Answer | Unreachable]:
        """Asks every node; returns after `patience` seconds at the latest, with an answer or `Unreachable` for each."""
        self._open = {node: future for node, future in self._open.items() if not future.done()}
        asked = {
            node: self._pool.submit(questions[node])
            for node in sorted(questions, key=lambda node: node in self._silent)
            if node not in self._open
        }
        wait(asked.values(), timeout=patience)
        self._open |= asked
        self._silent = {node: since for node, since in self._silent.items() if node in questions}
        return {node: self._result(node, asked.get(node), patience) for node in questions}

    def close(self) -> None:
        """Waits for open questions, each of which ends by its own timeouts. Idempotent."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _result(self, node: str, future: Future[Answer] | None, patience: float) -> Answer | Unreachable:
        if future is None or not future.done():
            return self._unreachable(node, f"no answer within {patience:g} s")
        try:
            answer = future.result()
        except BalancerError as error:
            return self._unreachable(node, str(error))
        self._silent.pop(node, None)
        return answer

    def _unreachable(self, node: str, reason: str) -> Unreachable:
        since = self._silent.setdefault(node, self._clock.now().timestamp())
        return Unreachable(since, reason)
