"""The alert rules fire when they should, and only then: some days of metrics, played by promtool."""

import subprocess
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"


def test_promtool_accepts_the_rules_and_they_fire_when_they_should() -> None:
    for command in (["check", "rules", FOLDER / "alerts.yml"], ["test", "rules", FOLDER / "alerts_test.yml"]):
        done = subprocess.run(["promtool", *map(str, command)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
