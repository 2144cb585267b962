"""`balancer simulate`: prints the story, as JSON too, and says by its exit code whether the expectations held."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from balancer.cli.main import app
from balancer.errors import UserError

pytestmark = pytest.mark.quick

STORY = """title small
run 20m
nodes a b
table t hash 4 size=4GB on=a
schedule hours == 0 && minutes < 10
set balancer.enable_cell_balancer true
expect moved <= 2GB
"""


def run(tmp_path: Path, text: str, *arguments: str) -> tuple[int, str]:
    file = tmp_path / "story.txt"
    file.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(app, ["simulate", str(file), *arguments], catch_exceptions=False)
    return result.exit_code, result.stdout


def test_the_story_is_drawn(tmp_path: Path) -> None:
    code, text = run(tmp_path, STORY)
    assert code == 0
    assert "ok   moved <= 2GB: 2.0 GB moved" in text


def test_a_whole_table_moves_and_is_not_split(tmp_path: Path) -> None:
    story = STORY.replace("table t hash 4 size=4GB on=a", "table t whole size=40GB on=a\ntable u whole size=40GB on=a")
    _, text = run(tmp_path, story)
    assert "move 1 a → b (40.0 GB)" in text
    assert "split" not in text
    with pytest.raises(UserError, match="or `table NAME whole …`"):
        run(tmp_path, story.replace("t whole", "t whole 4"))


def test_a_broken_promise_is_exit_code_1(tmp_path: Path) -> None:
    assert run(tmp_path, STORY + "expect moved <= 1GB\n")[0] == 1


def test_json_has_the_samples_and_the_expectations(tmp_path: Path) -> None:
    document = json.loads(run(tmp_path, STORY, "--output", "json")[1])
    assert document["samples"][0]["loads"].keys() == {"a", "b"}
    assert document["expectations"][0]["held"] is True


@pytest.mark.parametrize("text", ["nonsense", "schedule hours +", "nodes a\ndrain b"])
def test_a_mistake_is_one_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="scenario"):
        run(tmp_path, text)
