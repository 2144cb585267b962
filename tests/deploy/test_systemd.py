"""The unit: without warnings, hardened, and naming a program that exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNIT, TEMPLATE = FOLDER / "tablet-balancer.service", FOLDER / "tablet-balancer@.service"
INSTALLED = "/opt/tablet-balancer/bin/balancer"


@pytest.fixture(params=[UNIT, TEMPLATE], ids=["one", "template"])
def unit(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The unit with the program of this environment, since it is not installed where the unit says."""
    original: Path = request.param
    text = original.read_text()
    assert INSTALLED in text
    program = Path(sys.executable).with_name("balancer")
    assert program.exists()
    file = tmp_path / original.name.replace("@", "@shop")
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


def test_the_template_is_the_unit_with_a_group() -> None:
    """The name of the group, its file of variables and nothing else: what one is hardened with, the other is."""
    one, template = (file.read_text().partition("[Unit]")[2].splitlines() for file in (UNIT, TEMPLATE))
    assert [line for line in template if line not in one] == [
        "Description=tablet-balancer: keeps the group %i of a sharded PostgreSQL cluster balanced",
        f"ExecStartPre={INSTALLED} config check --config /etc/tablet-balancer/%i.toml",
        f"ExecStart={INSTALLED} run --config /etc/tablet-balancer/%i.toml",
        "EnvironmentFile=-/etc/tablet-balancer/%i.env",
        "StateDirectory=tablet-balancer/%i",
    ]
    assert len([line for line in one if line not in template]) == 4
    assert len(template) == len(one) + 1
