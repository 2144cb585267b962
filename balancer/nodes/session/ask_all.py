"""Threads that ask nodes, shared by everything in a process that asks many: as few as needed, however many nodes hang.

At most `AT_ONCE` questions are under way at a time. One that has been under way for longer than `STUCK` seconds no
longer counts, because its node hangs and costs nothing but the thread; so a hundred dead nodes leave as many threads to
the living as there were before. `MOST` bounds them all. Idle threads end after a while.

Asks all nodes at once, each with a deadline. A slow or dead node is a value, never a stuck tick.

A question that outlives its tick continues until its own timeouts end it; until then its node counts as unreachable and
is not asked again, so questions cannot pile up. Nodes that answered last time go first, and only they are waited for: a
silent node costs its patience in the tick in which it falls silent, and only a moment in later ones. An answer that
comes too late is not used, because the directory may have changed since; but the next tick waits for its node.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from balancer.clock import Clock, SystemClock
from balancer.errors import BalancerError, Unavailable

Answer = TypeVar("Answer")

AT_ONCE: Final = 16
"""More would not be faster: only one thread of this process at a time can work on an answer."""
MOST: Final = 256
STUCK: Final = 0.5
LONGEST: Final = 3
_IDLE_SECONDS: Final = 30.0


class Question(Future[Answer]):
    """A question that waits for a thread, is under way, or is answered."""

    began: float | None = None
    """When it was asked, by the askers' clock; None: not yet."""


class AskPool:
    """Safe to use from any thread. The threads do not keep the process from ending: each question has timeouts of its
    own, and one that is cut off leaves nothing half-done."""

    def __init__(self, clock: Clock, at_once: int = AT_ONCE, most: int = MOST) -> None:
        self._clock = clock
        self._at_once = at_once
        self._most = most
        self._waiting: deque[tuple[Question[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._began: dict[int, float] = {}  # thread → when it took up its question
        self._threads = 0
        self._idle = 0

    def submit(self, question: Callable[[], Answer]) -> Question[Answer]:
        """Asks as soon as there is a thread for it."""
        future: Question[Answer] = Question()
        with self._changed:
            self._waiting.append((future, question))
            self._changed.notify()
            self._hire()
        return future

    def make_room(self) -> None:
        """Lets others run in place of those that hang. Threads that wait for answers call it now and then."""
        with self._changed:
            self._hire()

    def wait(self, asked: list[Question[Any]], seconds: float | None) -> None:
        """Waits until all are answered, or have been under way for this many seconds. Also waits for what has not been
        asked yet, three times as long at most: then so many hang that there is no thread for it."""
        left: Collection[Question[Any]] = asked
        began = self._clock.monotonic()
        while left:
            self.make_room()
            pauses = [pause for one in left if (pause := self._left(one, seconds)) > 0]
            given_up = seconds is not None and self._clock.monotonic() - began >= LONGEST * seconds
            if not pauses or given_up:
                return
            left = wait_for(left, timeout=min(STUCK, *pauses)).not_done  # type: ignore[assignment]

    def _left(self, asked: Question[Any], seconds: float | None) -> float:
        if seconds is None or asked.began is None:
            return STUCK
        return asked.began + seconds - self._clock.monotonic()

    def ask_all(self, questions: Mapping[str, Callable[[], Answer]]) -> dict[str, Answer | BalancerError]:
        """Every node's answer, or our error instead; each question must end by itself."""
        asked = {node: self.submit(question) for node, question in questions.items()}
        self.wait(list(asked.values()), None)
        answers: dict[str, Answer | BalancerError] = {}
        for node, future in asked.items():
            try:
                answers[node] = future.result()
            except BalancerError as error:
                answers[node] = error
        return answers

    def _hire(self) -> None:
        """With the lock: as many new threads as there are questions for which nobody is free."""
        now = self._clock.monotonic()
        busy = sum(now - since < STUCK for since in self._began.values()) + self._idle
        needed = min(len(self._waiting) - self._idle, self._at_once - busy, self._most - self._threads)
        for _ in range(needed):
            self._threads += 1
            self._idle += 1
            threading.Thread(target=self._work, name="asker", daemon=True).start()

    def _work(self) -> None:
        me = threading.get_ident()
        while (taken := self._take(me)) is not None:
            future, question = taken
            if future.set_running_or_notify_cancel():
                try:
                    answer = question()
                except BaseException as error:  # noqa: BLE001 - the caller gets it
                    future.set_exception(error)
                else:
                    future.set_result(answer)
            del future, question, taken
            with self._changed:
                self._began.pop(me, None)
                self._idle += 1

    def _take(self, me: int) -> tuple[Question[Any], Callable[[], Any]] | None:
        with self._changed:
            if not self._waiting:
                self._changed.wait(_IDLE_SECONDS)
            self._idle -= 1
            if not self._waiting:
                self._threads -= 1
                return None
            future, question = self._waiting.popleft()
            self._began[me] = future.began = self._clock.monotonic()
            return future, question


SHARED: Final = AskPool(SystemClock())
"""The one of this process."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A node that did not answer: since when (seconds since 1970), and why in a few words."""

    since: float
    reason: str


GRACE: Final = 1.0
"""Seconds to wait for a node that was silent last time."""


class FanOut(Generic[Answer]):
    """Keeps what must be remembered between ticks: open questions, and since when a node has been silent."""

    def __init__(self, clock: Clock, askers: AskPool = SHARED) -> None:
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
