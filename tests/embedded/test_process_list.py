"""Servers that are started and stopped side by side are all kept until they have ended."""

import gc
import os
import threading
import warnings
from pathlib import Path

import pytest

from balancer.embedded import process

pytestmark = pytest.mark.quick


def test_no_process_is_forgotten_while_others_are_looked_at(tmp_path: Path) -> None:
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            process.stop(os.getpid() + 1_000_000, tmp_path, process.signal.SIGCONT, 0.0)

    looking = [threading.Thread(target=look) for _ in range(3)]
    for thread in looking:
        thread.start()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pids = []
            for _ in range(150):
                process.spawn(["/bin/true"], tmp_path / "log", None, tmp_path)  # its end shifts those behind it
                pids.append(process.spawn(["/bin/sleep", "20"], tmp_path / "log", None, tmp_path).pid)
            gc.collect()
    finally:
        stop.set()
        for thread in looking:
            thread.join()
    kept = {child.pid for child in process._started}
    for pid in pids:
        process.kill(pid, tmp_path)
    assert set(pids) <= kept
    assert not caught, [str(one.message) for one in caught]
