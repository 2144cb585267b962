"""Every story in tests/scenarios is told again: its expectations hold and its text is the golden one, to the byte.

After a change of decisions, look at `balancer simulate FILE`, and keep it as the new golden file if it is better.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from balancer.cli.simulate import read, tell
from balancer.policies.options import PlannedLoad
from balancer.policies.simulator_report import check, draw, time_above

FOLDER = Path(__file__).parent.parent / "scenarios"
STORIES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("file", STORIES, ids=lambda file: file.stem)
def test_a_story_is_told_as_it_was_and_keeps_its_promises(file: Path) -> None:
    story = tell(read(file))
    assert [verdict for verdict in check(story) if not verdict.held] == []
    assert draw(story) == file.with_suffix(".golden").read_text(encoding="utf-8")


def test_a_window_at_night_mends_the_peaks_of_the_day() -> None:
    """Planned by the day at most a tenth of the time above 1.2 times the share that planning by the moment spends."""
    scenario = read(FOLDER / "night-window.txt")
    moment = replace(scenario.options, placement=replace(scenario.options.placement, load=PlannedLoad.NOW))
    spent = {
        name: time_above(tell(replace(scenario, options=options)), 1.2, 2 * 86400.0)
        for name, options in (("profile", scenario.options), ("now", moment))
    }
    print({name: f"{seconds / 60:.0f} minutes of 4320" for name, seconds in spent.items()})
    assert spent["now"] > 6 * 3600.0
    assert spent["profile"] <= spent["now"] / 10


def test_all_stories_are_here() -> None:
    assert {file.stem for file in STORIES} >= {
        "hot-tail",
        "skewed-vbuckets",
        "node-added",
        "node-drained",
        "node-lost",
        "unequal-nodes",
        "two-dimensions",
        "zipf-tenants",
        "daily-shift",
        "full-disks",
    }
