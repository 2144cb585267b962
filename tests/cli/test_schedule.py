"""`balancer schedule`, as a user calls it."""

import json
from pathlib import Path

import pytest

from tests.support.commands import balancer as process
from tests.support.commands import balancer_here as balancer

AT = ("--at", "2026-06-10T12:00")
TERMINAL = {"FORCE_COLOR": "1", "COLUMNS": "80"}

SHOP = """
timezone = "Europe/Moscow"
[tablet_balancer_config]
tablet_balancer_schedule = "hours < 6 && minutes % 20 == 0"
[tablet_balancer_config.groups.hot]
schedule = "minutes == 7"
[tablet_balancer_config.groups.off]
enable_move = false
enable_reshard = false
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "bundles").mkdir()
    (tmp_path / "balancer.toml").write_text('directory = "sqlite:///x"\nschedule = "hours == 1"\ntick = "2m"\n')
    (tmp_path / "bundles" / "shop.toml").write_text(SHOP)
    (tmp_path / "bundles" / "plain.toml").write_text("")
    return tmp_path / "balancer.toml"


def test_try_prints_the_day_the_windows_and_no_warning() -> None:
    result = balancer("schedule", "try", "hours < 6 && minutes%20==0", "--timezone", "Europe/Berlin", *AT)
    lines = result.out.splitlines()
    assert (result.code, result.err) == (0, "")
    assert lines[:4] == [
        "formula   hours < 6 && minutes % 20 == 0",
        "timezone  Europe/Berlin",
        "now       2026-06-10 12:00 CEST: closed, opens in 12 h",
        "open      18 minutes a day in 18 windows",
    ]
    assert "05  " + "#...................#...................#..................." in lines
    assert "06  " + "." * 60 in lines
    assert lines[-6:-4] == ["start\tend\tlength", "2026-06-11 00:00 CEST\t2026-06-11 00:01 CEST\t1 min"]


def test_try_warns_on_standard_error() -> None:
    result = balancer("schedule", "try", "-1 / (minutes - 30) > 5", *AT)
    assert result.code == 0
    assert "closed, and never opens" in result.out
    assert "warning: the formula fails in 24 minutes of the day, first at 00:30" in result.err
    assert "warning: the formula never opens" in result.err


def test_try_as_json_has_the_same_facts() -> None:
    result = balancer("schedule", "try", "1", *AT, "--output", "json")
    document = json.loads(result.out)
    assert (result.code, result.err) == (0, "")
    assert document["open_minutes_per_day"] == 1440
    assert document["next_windows"] == [{"start": "2026-06-10T12:00:00+00:00", "end": None, "seconds": None}]
    assert document["warnings"] == ["the formula is always open: it restricts nothing"]
    assert document["day"] == ["1" * 60] * 24


def test_try_shows_where_a_formula_is_wrong() -> None:
    result = balancer("schedule", "try", "hours << 2")
    assert result.code == 2
    assert result.err.splitlines()[1:] == ["  hours << 2", "         ^"]
    assert "there are no shifts" in result.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--timezone", "Mars/Base"), "'Mars/Base' is not a time zone"),
        (("--tick", "soon"), "'soon' is not a duration"),
        (("--at", "yesterday"), "'yesterday' is not a moment"),
        (("--at", "9999-12-31"), "the year 9999 is out of range"),
    ],
)
def test_try_refuses_wrong_options_in_a_sentence(arguments: tuple[str, str], words: str) -> None:
    result = balancer("schedule", "try", "1", *arguments)
    assert result.code == 2
    assert words in result.err
    assert len(result.err.splitlines()) == 1


def test_a_terminal_gets_a_coloured_strip_and_a_narrow_one_a_bar() -> None:
    wide = process("schedule", "try", "hours == 3", *AT, env=TERMINAL)
    narrow = process(
        "schedule", "try", "hours == 3 || hours == 4 && minutes < 7", *AT, env=TERMINAL | {"COLUMNS": "50"}
    )
    assert f"\x1b[32m{'█' * 60}\x1b[0m" in wide.out
    assert sum("·" in line for line in wide.out.splitlines()) == 23
    assert "." * 6 + "##+" + "." * 39 in narrow.out.splitlines()


def test_show_says_whose_formula_applies_to_what(config: Path) -> None:
    result = balancer("schedule", "show", "shop", "--config", config, *AT)
    lines = result.out.splitlines()
    assert result.code == 0
    assert lines[0] == "formula   hours < 6 && minutes % 20 == 0  (of bundle shop)"
    assert lines[1] == "timezone  Europe/Moscow"
    assert lines[-6:] == [
        "what\tformula\tof",
        "bundle shop\thours < 6 && minutes % 20 == 0\tbundle shop",
        "group default\thours < 6 && minutes % 20 == 0\tbundle shop",
        "group hot\tminutes == 7\tgroup hot",
        "group off\tswitched off by group off\tbundle shop",
        "heat\thours < 6 && minutes % 20 == 0\tbundle shop",
    ]
    assert "(1 min) is shorter than one tick (2 min)" in result.err


def test_show_of_a_group_and_of_the_clusters_default(config: Path) -> None:
    group = balancer("schedule", "show", "shop", "--group", "hot", "--config", config, *AT, "-o", "json")
    plain = balancer("schedule", "show", "plain", "--config", config, *AT, "-o", "json")
    assert json.loads(group.out)["origin"] == "group hot"
    assert json.loads(plain.out)["formula"] == "hours == 1"
    assert json.loads(plain.out)["applies_to"] == [
        {"what": "bundle plain", "formula": "hours == 1", "of": "the cluster"},
        {"what": "group default", "formula": "hours == 1", "of": "the cluster"},
        {"what": "heat", "formula": "hours == 1", "of": "the cluster"},
    ]


def test_show_of_what_is_not_there(config: Path) -> None:
    bundle = balancer("schedule", "show", "store", "--config", config)
    group = balancer("schedule", "show", "shop", "--group", "x", "--config", config)
    both = balancer("schedule", "show", "shop", "--group", "hot", "--heat", "--config", config)
    assert (bundle.code, group.code, both.code) == (2, 2, 2)
    assert "there are: plain, shop" in bundle.err
    assert "there are: default, hot, off" in group.err
    assert "cannot be given together" in both.err
