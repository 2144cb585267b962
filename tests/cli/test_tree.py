"""The tree of commands as a whole: its help, its mistakes, and how it ends."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

from balancer import __version__
from balancer.cli.main import COMMANDS, PANELS
from tests.support.commands import balancer_here as balancer
from tests.support.commands import environment

pytestmark = pytest.mark.quick

SCENARIO = Path(__file__).parents[1] / "scenarios" / "node-added.txt"


def test_the_version_is_said() -> None:
    assert balancer("--version").out == f"tablet-balancer {__version__}\n"


def test_a_command_leaves_the_search_for_garbage_on() -> None:
    assert balancer("status", "--help").code == 0
    assert gc.isenabled()


def test_every_command_stands_in_one_panel() -> None:
    shown = balancer("--help").out
    assert all(f"─ {panel} ─" in shown for panel in PANELS)
    assert sum(map(len, PANELS.values())) == len(COMMANDS)


@pytest.mark.parametrize(
    ("words", "meant"), [("statsu", "'status'"), ("why_not", "'why-not'"), ("config chek", "'check'")]
)
def test_a_mistyped_command_gets_a_suggestion(words: str, meant: str) -> None:
    done = balancer(*words.split())
    assert (done.code, "Did you mean" in done.err, meant in done.err) == (2, True, True), done.err


def test_a_command_that_is_like_nothing_gets_none() -> None:
    done = balancer("frobnicate")
    assert (done.code, "No such command 'frobnicate'" in done.err, "Did you mean" in done.err) == (2, True, False)


@pytest.mark.parametrize("option", [("-o", "json"), ("--output", "json"), ("--output=json",), ("-ojson",)])
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("status", "--directory", "sqlite:///nowhere/d.db"), 2, "the folder /nowhere of the directory's file"),
        (("status", "--no-such-option"), 2, "No such option"),
        (("statsu",), 2, "Did you mean 'status'"),
    ],
)
def test_a_program_gets_its_error_as_a_document(
    words: tuple[str, ...], code: int, message: str, option: tuple[str, ...]
) -> None:
    done = balancer(*words, *option)
    assert (done.code, done.out) == (code, "")
    error = json.loads(done.err)["error"]
    assert error["exit_code"] == code
    assert message in error["message"]


def test_what_a_check_found_is_the_exit_code_of_a_document_too(tmp_path: Path) -> None:
    (tmp_path / "balancer.toml").write_text("tick = 'never'\n")
    done = balancer("config", "check", "--config", tmp_path / "balancer.toml", "-o", "json")
    assert done.code in (1, 2)
    assert json.loads(done.out or done.err)


@pytest.mark.parametrize("words", [("simulate", str(SCENARIO)), ("simulate", str(SCENARIO), "-o", "json")])
def test_a_reader_that_has_seen_enough_is_no_error(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "balancer", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment({"PYTHONUNBUFFERED": "1"})
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read().decode()
        assert (process.wait(60), said) == (0, "")
