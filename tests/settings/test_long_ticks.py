"""Heat is looked at in ticks only, so ticks are short by default, and `config check` says what long ones cost."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from balancer.features.replay.command import told
from balancer.policies.simulator.report import time_above
from balancer.policies.simulator.scenario import parse_scenario
from balancer.settings import load_settings
from balancer.settings.files import DaemonFile
from balancer.settings.report import LONGEST_TICK, ineffective

pytestmark = pytest.mark.quick

CROWD = Path(__file__).parents[1] / "scenarios" / "flash-crowd.txt"


@pytest.mark.parametrize(("tick", "keys"), [("10s", []), ("1m", []), ("61s", ["tick"]), ("5m", ["tick"])])
def test_a_tick_in_which_a_flash_crowd_passes_is_named(tmp_path: Path, tick: str, keys: list[str]) -> None:
    file = tmp_path / "balancer.toml"
    file.write_text(f'directory = "sqlite:///x"\ntick = "{tick}"\n')
    assert [one.key for one in ineffective(load_settings(file), datetime(2026, 3, 1, tzinfo=UTC))] == keys


def minutes_above(tick: float) -> float:
    """Of the hour of a flash crowd."""
    text = CROWD.read_text(encoding="utf-8").replace("tick 30s", f"tick {tick:.0f}s")
    return time_above(told(parse_scenario(text))[0], 1.2) / 60.0


def test_the_longest_tick_without_a_notice_spreads_a_flash_crowd_and_five_minutes_do_not() -> None:
    assert float(DaemonFile.model_fields["tick"].default) <= LONGEST_TICK
    assert minutes_above(LONGEST_TICK) <= 20
    assert minutes_above(300.0) >= 40
