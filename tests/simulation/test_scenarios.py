"""Every story in tests/scenarios is told again: its expectations hold and its text is the golden one, to the byte.

After a change of decisions, look at `balancer simulate FILE`, and keep it as the new golden file if it is better.
"""

from pathlib import Path

import pytest

from balancer.cli.simulate import read, tell
from balancer.policies.simulator_report import draw

FOLDER = Path(__file__).parent.parent / "scenarios"
STORIES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("file", STORIES, ids=lambda file: file.stem)
def test_a_story_is_told_as_it_was_and_keeps_its_promises(file: Path) -> None:
    story, verdicts = tell(read(file))
    assert [verdict for verdict in verdicts if not verdict.held] == []
    assert draw(story) == file.with_suffix(".golden").read_text(encoding="utf-8")


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
