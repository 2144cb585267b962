"""What a tired operator gets wrong: one sentence at once, the right exit code, and nothing left behind."""

from pathlib import Path

import pytest

from balancer.directory.contract import Directory
from balancer.errors import Unavailable
from balancer.terminal import operate
from tests.support.commands import balancer_here as balancer

pytestmark = pytest.mark.quick

ENDLESS = "x" * 5000
SPACED = "x y " * 1500


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("pause", "shopp"), 2, "there is no bundle 'shopp'; there are: shop"),
        (("drain", "pg-x"), 2, "there is no node 'pg-x' in the directory; there are: pg-a, pg-b, pg-c"),
        (("move", "9999", "pg-b"), 2, "there is no tablet 9999 in the directory"),
        (("move", "1", "pg-x"), 2, "there is no node 'pg-x' in the directory; there are: pg-a, pg-b, pg-c"),
        (("undrain", "pg-x"), 2, "there is no node 'pg-x' in the directory"),
        (("history", "--node", "pg-x"), 2, "there is no node 'pg-x' in the directory"),
        (("explain", "pg-x"), 2, "there is no node 'pg-x' in the directory"),
        (("why-not", "1", "pg-x"), 2, "there is no node 'pg-x' in the directory"),
        (("tablets", "--node", "pg-x"), 2, "there is no node 'pg-x' in the directory"),
        (("pin", "one"), 2, "'one' is not a tablet's id: ids are numbers, see `balancer tablets`"),
        (("cancel", "m1"), 4, "there is no migration or order 'm1': see `balancer moves`, `balancer status`"),
        (("apply", "p1"), 4, "there is no plan 'p1': a newer one may have taken its place, see `balancer plan`"),
        (("merge", "1"), 4, "a merge needs two tablets or more"),
        (("table", "double", "shop", "ordres"), 2, "there is no table 'ordres' in the directory; known tables: "),
    ],
)
def test_what_the_leader_would_refuse_is_refused_at_once_and_not_left_waiting(
    directory: Directory, address: str, words: tuple[str, ...], code: int, sentence: str
) -> None:
    result = balancer(*words, "--directory", address)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith(sentence)
    assert result.err.count("\n") == 1
    assert not directory.snapshot().commands


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("apply", "hot:1", ENDLESS, ENDLESS, ENDLESS), "Got unexpected extra argument(s) (x"),
        (("apply", "hot:1", *("many" for _ in range(3000))), "Got unexpected extra argument(s) (many many"),
        (("status", f"--{ENDLESS}"), "No such option: --x"),
        (("status", "-o", ENDLESS), "is not one of 'text', 'json'"),
        ((ENDLESS,), "No such command 'x"),
        ((f"--{ENDLESS}",), "No such option: --x"),
        (("status", ENDLESS), "there are: shop"),
        (("status", SPACED), "there are: shop"),
        (("status", "\x1b" * 5000), "there are: shop"),
        (("status", ENDLESS, "-o", "json"), "there are: shop"),
        (("status", f"--{ENDLESS}", "-o", "json"), "No such option: --x"),
        (("config", "check", "--config", ENDLESS), "cannot be read: File name too long"),
        (("simulate", ENDLESS), "cannot be read: File name too long"),
    ],
    ids=lambda value: " ".join(word[:12] for word in value[:3]) if isinstance(value, tuple) else "",
)
def test_words_without_an_end_are_answered_with_a_short_sentence(
    directory: Directory, address: str, words: tuple[str, ...], told: str
) -> None:
    where = ("--directory", address) if words[0] in ("status", "apply") else ()
    result = balancer(*words, *where, env={"COLUMNS": "80"})
    assert (result.code, result.out) == (2, "")
    assert told in _unframed(result.err)
    assert (len(result.err) < 1500, result.err.count("\n") < 20) == (True, True), result.err


def _unframed(text: str) -> str:
    """What stands in the frame for people, on one line."""
    return " ".join(text.replace("│", " ").split())


def test_where_nobody_leads_that_is_said_and_the_command_waits(directory: Directory) -> None:
    with pytest.raises(Unavailable, match=r"^no instance has led within 0 s; the command \w+ waits in the directory"):
        operate.give(directory, "drain", {"node": "pg-a"}, patience=0.1)
    assert len(directory.snapshot().commands) == 1


def test_a_leader_that_does_not_answer_is_named(directory: Directory) -> None:
    leadership = directory.campaign("host-a", timeout=10)
    assert leadership is not None
    with pytest.raises(Unavailable, match=r"^the leader host-a has not answered within 0 s"):
        operate.give(directory, "drain", {"node": "pg-a"}, patience=0.1)
    leadership.resign()


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("hot",),
        ("tablets",),
        ("moves",),
        ("plan", "shop"),
        ("explain", "tablet", "1"),
        ("why-not", "1", "pg-b"),
        ("move", "1", "pg-b"),
        ("split", "1"),
        ("drain", "pg-a"),
        ("pause", "shop"),
        ("route", "orders", "7"),
        ("pgbouncer", "sync", "--admin", "host=127.0.0.1 port=1", "--file", "databases.ini"),
        ("history",),
        ("directory", "export"),
        ("directory", "check"),
        ("table", "double", "shop", "orders"),
        ("verify", "orders"),
        ("doctor",),
        ("node", "list"),
        ("forward", "shop"),
    ],
    ids=" ".join,
)
def test_a_directory_that_is_not_there_is_wrong_input_and_is_not_made(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "shop.toml").write_text('[nodes.pg-a]\ndsn = "host=127.0.0.1 port=1"\n')
    (tmp_path / "balancer.toml").write_text(f'directory = "sqlite://{tmp_path}/dierctory.db"\n')
    result = balancer(*words, "--config", tmp_path / "balancer.toml")
    sentence = f"there is no directory in the file {tmp_path}/dierctory.db: it does not exist\n"
    assert (result.code, result.out, result.err) == (2, "", sentence)
    assert {path.name for path in tmp_path.iterdir()} == {"bundles", "balancer.toml"}


def test_a_folder_instead_of_a_file_is_a_sentence(tmp_path: Path) -> None:
    result = balancer("status", "--directory", f"sqlite://{tmp_path}")
    assert (result.code, result.err.count("\n")) == (3, 1)
    assert "Traceback" not in result.err


def test_a_file_error_that_nobody_expected_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/var/lib/x")

    monkeypatch.setattr("balancer.cli.status.directory_of", full)
    result = balancer("status")
    assert (result.code, result.out, result.err) == (1, "", "/var/lib/x: No space left on device\n")
