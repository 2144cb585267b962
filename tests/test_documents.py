"""Documents say what the code says."""

import re
from pathlib import Path

import pytest

from balancer.migration.machine import Track, table_text

pytestmark = pytest.mark.quick

TREE = Path(__file__).parents[1]


def transitions() -> str:
    return "\n\n".join(f"### {track.capitalize()}\n\n```text\n{table_text(track)}\n```" for track in Track)


def test_the_transitions_are_those_of_the_machine() -> None:
    text = (TREE / "docs" / "architecture.md").read_text()
    _, _, rest = text.partition("<!-- transitions -->\n")
    shown, _, _ = rest.partition("<!-- end of transitions -->")
    assert shown.strip() == transitions(), "write this into docs/architecture.md:\n" + transitions()


def test_the_modules_that_the_walks_pass_are_there() -> None:
    text = (TREE / "docs" / "architecture.md").read_text()
    walks = text[text.index("## Walks") : text.index("## Transitions")]
    names = re.findall(r"`((?:api|cli|client|daemon|migration|nodes|planner|policies|polling)/[a-z_]+)`", walks)
    assert len(names) > 25
    missing = [name for name in names if not (TREE / "balancer" / f"{name}.py").exists()]
    assert missing == []


def test_a_move_passes_at_most_eight_modules() -> None:
    text = (TREE / "docs" / "architecture.md").read_text()
    walk = text[text.index("**`balancer move`.**") : text.index("## Transitions")]
    assert len(set(re.findall(r"`([a-z]+/[a-z_]+)`", walk))) <= 8
