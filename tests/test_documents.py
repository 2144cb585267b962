"""Documents say what the code says."""

import ast
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
    names = re.findall(r"`((?:api|checks|cli|client|daemon|migration|nodes|planner|policies|polling)/[a-z_]+)`", walks)
    assert len(names) > 25
    missing = [name for name in names if not (TREE / "balancer" / f"{name}.py").exists()]
    assert missing == []


def test_a_move_passes_at_most_eight_modules() -> None:
    text = (TREE / "docs" / "architecture.md").read_text()
    walk = text[text.index("**`balancer move`.**") : text.index("## Transitions")]
    assert len(set(re.findall(r"`([a-z]+/[a-z_]+)`", walk))) <= 8


def support_rows() -> list[str]:
    folder = TREE / "tests" / "support"
    rows = []
    for path in sorted(folder.rglob("*.py")):
        if path.name != "__init__.py":
            sentence = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0].replace("|", "\\|")
            rows.append(f"| `{path.relative_to(folder).with_suffix('')}` | {sentence} |")
    return rows


def test_the_index_of_what_tests_are_made_of_is_complete() -> None:
    text = (TREE / "tests" / "support" / "README.md").read_text()
    shown = [line for line in text.splitlines() if line.startswith("| `")]
    assert shown == support_rows(), "write this into tests/support/README.md:\n" + "\n".join(support_rows())
