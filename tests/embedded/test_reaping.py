"""A server that was stopped is reaped: none is left that this process believes to be running when it ends."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from balancer.embedded import process
from balancer.embedded.reaper import Keeper

pytestmark = pytest.mark.quick

SLOW = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), os._exit(0)))
print("ready", flush=True)
time.sleep(60)
"""


def test_a_child_is_ours_until_it_is_reaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    child = process.spawn([sys.executable, "-c", SLOW, str(tmp_path)], log, None, tmp_path)
    assert process.until(lambda: "ready" in log.read_text(), 20.0)
    # What the kernel shows of a process whose memory is gone and which has not ended yet.
    monkeypatch.setattr(process, "command_line", lambda _: "")
    process.stop(child.pid, tmp_path, signal.SIGTERM, 20.0)
    assert child.returncode is not None


def test_what_the_keeper_stops_is_reaped(tmp_path: Path) -> None:
    program, file = tmp_path / "postgres", tmp_path / "log"
    program.symlink_to("/usr/bin/tail")
    with Keeper(tmp_path):
        child: subprocess.Popen[bytes] = process.spawn([str(program), "-f", str(file)], file, None, tmp_path)
    assert child.returncode is not None
