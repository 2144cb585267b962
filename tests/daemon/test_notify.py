"""What systemd is told."""

import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from balancer.daemon.systemd import Notifier
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.quick


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        yield listener


def test_ready_and_watchdog(tmp_path: Path, systemd: socket.socket) -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    notifier = Notifier(clock, {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "20000000"})
    notifier.ready("leader")
    assert systemd.recv(1000) == b"READY=1\nSTATUS=leader"
    for _ in range(25):
        notifier.alive()
        clock.advance(1)
    said = 0
    while True:
        try:
            said += systemd.recv(1000) == b"WATCHDOG=1"
        except BlockingIOError:
            break
    assert said == 3  # at once, then every ten seconds: half of what systemd allows


def test_without_systemd_nothing_happens() -> None:
    notifier = Notifier(ManualClock(datetime(2026, 1, 1, tzinfo=UTC)), {})
    notifier.ready("leader")
    notifier.alive()
    assert notifier.stopping() is None  # type: ignore[func-returns-value]
