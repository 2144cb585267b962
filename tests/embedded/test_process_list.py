"""Servers that are started and stopped side by side are all kept until they have ended."""

import threading
from pathlib import Path

import pytest

from balancer.embedded import process

pytestmark = pytest.mark.quick


class Child:
    """As `Popen`, for the list: alive or not; asking the first time may take until somebody says so."""

    pid = 0

    def __init__(self, code: int | None, answer: threading.Event | None = None) -> None:
        self.code = code
        self.answer = answer
        self.asked = threading.Event()

    def poll(self) -> int | None:
        first = not self.asked.is_set()
        self.asked.set()
        if first and self.answer is not None:
            self.answer.wait(10)
        return self.code


def test_no_living_process_is_forgotten_by_two_that_look_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = threading.Event()
    ended, slow, living = Child(0), Child(None, answer), Child(None)
    children: list[Child] = [ended, slow, living]
    monkeypatch.setattr(process, "_started", children)
    looks = [threading.Thread(target=process._works_on, args=(1, tmp_path)) for _ in range(2)]
    looks[0].start()
    assert slow.asked.wait(10)
    looks[1].start()
    looks[1].join(0.3)  # without a lock it gets to its end, and takes the first place from under the other
    answer.set()
    for look in looks:
        look.join()
    assert children == [slow, living]
