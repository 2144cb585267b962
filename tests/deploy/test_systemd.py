"""The unit: without warnings, hardened, and naming a program that exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "tablet-balancer.service"
INSTALLED = "/opt/tablet-balancer/bin/balancer"


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with the program of this environment, since it is not installed where the unit says."""
    text = UNIT.read_text()
    assert INSTALLED in text
    program = Path(sys.executable).with_name("balancer")
    assert program.exists()
    file = tmp_path / UNIT.name
    file.write_text(text.replace(INSTALLED, str(program)))
    return file


def test_systemd_finds_nothing_to_warn_of(unit: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_its_exposure_is_at_most_two(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    exposure = re.search(r"exposure level for \S+ ([\d.]+)", done.stdout)
    assert exposure is not None
    assert float(exposure[1]) <= 2.0


def test_it_is_watched_reloaded_and_told_to_stop_gently() -> None:
    text = UNIT.read_text()
    for line in ("Type=notify", "WatchdogSec=60", "Restart=always", "ExecReload=/bin/kill -HUP $MAINPID"):
        assert f"\n{line}\n" in text
