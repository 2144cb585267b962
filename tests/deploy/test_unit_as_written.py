"""Every command of the unit, run as it is written there, by somebody who speaks systemd's part of the protocol.

Only the places differ: the program is this environment's, the configuration a temporary one.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from balancer.embedded.process import free_port

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "tablet-balancer.service"
PATIENCE = 60.0
WATCHDOG_SECONDS = 4.0


class Manager:
    """What systemd does with a service of Type=notify."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unit = UNIT.read_text()
        self.config = folder / "balancer.toml"
        (folder / "bundles").mkdir()
        self.config.write_text(f'directory = "sqlite://{folder}/shop.db"\n[http]\nlisten = "127.0.0.1:{free_port()}"\n')
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / "notify"))
        self._socket.settimeout(PATIENCE)

    def close(self) -> None:
        self._socket.close()

    def command(self, key: str, pid: int = 0) -> list[str]:
        """The only line of this key."""
        (line,) = re.findall(rf"^{key}=(.*)$", self._unit, re.MULTILINE)
        program = str(Path(sys.executable).with_name("balancer"))
        line = line.replace("/opt/tablet-balancer/bin/balancer", program).replace("$MAINPID", str(pid))
        return shlex.split(line.replace("/etc/tablet-balancer/balancer.toml", str(self.config)))

    def environment(self) -> dict[str, str]:
        """What the unit sets, and what systemd adds."""
        (line,) = re.findall(r"^Environment=(.*)$", self._unit, re.MULTILINE)
        set_by_unit = dict(pair.split("=", 1) for pair in line.split())
        path = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        watchdog = str(int(WATCHDOG_SECONDS * 1e6))
        return {**path, **set_by_unit, "NOTIFY_SOCKET": str(self._folder / "notify"), "WATCHDOG_USEC": watchdog}

    def run(self, key: str, pid: int = 0) -> subprocess.CompletedProcess[str]:
        command = self.command(key, pid)
        return subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, check=False, timeout=PATIENCE
        )

    @contextmanager
    def started(self) -> Iterator[subprocess.Popen[bytes]]:
        with (self._folder / "log").open("wb") as log:
            process = subprocess.Popen(self.command("ExecStart"), env=self.environment(), stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait(PATIENCE)

    def hears(self, wanted: str) -> str:
        """The next message that begins so."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            message = self._socket.recv(4096).decode()
            if message.startswith(wanted):
                return message
        raise AssertionError(f"{wanted} was not said within {PATIENCE:.0f} s")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path)
    yield made
    made.close()


def test_a_wrong_configuration_keeps_the_service_from_starting(manager: Manager) -> None:
    checked = manager.run("ExecStartPre")
    assert checked.returncode == 0, checked.stderr
    manager.config.write_text('directory = "sqlite:///shop.db"\ntik = "1s"\n')
    refused = manager.run("ExecStartPre")
    assert refused.returncode == 2
    assert "tik" in refused.stderr


def test_start_watchdog_reload_and_stop_are_told_to_systemd(manager: Manager) -> None:
    with manager.started() as process:
        assert manager.hears("READY=1") == "READY=1\nSTATUS=0 bundles"
        manager.hears("WATCHDOG=1")
        manager.hears("WATCHDOG=1")
        assert manager.run("ExecReload", process.pid).returncode == 0
        assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", manager.hears("RELOADING=1"))
        manager.hears("READY=1")
        process.terminate()
        manager.hears("STOPPING=1")
        assert process.wait(PATIENCE) == 0
