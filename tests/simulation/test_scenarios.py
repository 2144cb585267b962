"""Every story in tests/scenarios is told again: its expectations hold and its text is the golden one, to the byte.

After a change of decisions, look at `balancer simulate FILE`, and keep it as the new golden file if it is better.
"""

from functools import cache
from pathlib import Path

import pytest

from balancer.features.replay.command import read
from balancer.features.replay.command import told as tell
from balancer.policies.simulator.report import StoryVerdict, draw, time_above
from balancer.policies.simulator.simulator import Story

FOLDER = Path(__file__).parent.parent / "scenarios"
PEAKS = ("night-window", "night-window-now")
STORIES = sorted(FOLDER.glob("*.txt"))


@cache
def told(file: Path) -> tuple[Story, list[StoryVerdict]]:
    """A story takes seconds: it is told once."""
    return tell(read(file))


@pytest.mark.parametrize("file", STORIES, ids=lambda file: file.stem)
def test_a_story_is_told_as_it_was_and_keeps_its_promises(file: Path) -> None:
    story, verdicts = told(file)
    assert [verdict for verdict in verdicts if not verdict.held] == []
    assert draw(story) == file.with_suffix(".golden").read_text(encoding="utf-8")


def test_a_window_at_night_mends_the_peaks_of_the_day() -> None:
    """Planned by the day at most a tenth of the time above 1.2 times the share that planning by the moment spends."""
    day, moment = (time_above(told(FOLDER / f"{name}.txt")[0], 1.2, 86400.0) for name in PEAKS)
    assert moment > 12 * 3600.0
    assert day <= moment / 10


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
        "flash-crowd",
        "moving-front",
        "night-window",
        "growth",
        "rolling-replacement",
        "noise",
    }
