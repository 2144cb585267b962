"""A bundle's file written with the names of YT's table attributes, in all spellings."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from balancer.policies.options import GB, TableOptions
from balancer.settings import ConfigurationError, Settings, load_settings
from balancer.settings.report import effective, ineffective

pytestmark = pytest.mark.quick

SIZES = "{ min_tablet_size = '1GB', desired_tablet_size = '2GB', max_tablet_size = '4GB' }"


def read(folder: Path, lines: str) -> Settings:
    (folder / "bundles").mkdir()
    (folder / "balancer.toml").write_text('directory = "sqlite:///x"\n')
    table = f"[tablet_balancer_config.groups.g]\n[tables.t]\nroots = ['t']\nlayout = 'hash'\nkey = ['id']\n{lines}\n"
    (folder / "bundles" / "shop.toml").write_text(table)
    return load_settings(folder / "balancer.toml")


@pytest.mark.parametrize(
    ("rule", "lines", "options"),
    [
        ("flat keys", "enable_auto_reshard = false", {"enable_auto_reshard": False}),
        ("nested keys are the same", "tablet_balancer_config = { group = 'g' }", {"group": "g"}),
        (
            "nested sizes count as the table's",
            f"tablet_balancer_config = {SIZES}",
            {"min_tablet_size": GB, "desired_tablet_size": 2 * GB, "max_tablet_size": 4 * GB},
        ),
        (
            "counts may be nested",
            "tablet_balancer_config = { desired_tablet_count = 8, min_tablet_count = 4 }",
            {"desired_tablet_count": 8, "min_tablet_count": 4},
        ),
        (
            "switches may be nested",
            "tablet_balancer_config = { enable_auto_tablet_move = false, enable_parameterized = false }",
            {"enable_auto_tablet_move": False, "enable_parameterized": False},
        ),
        (
            "the metric may be nested",
            "tablet_balancer_config = { desired_tablet_metric = 7.5 }",
            {"desired_tablet_metric": 7.5},
        ),
        ("enable_tablet_balancer was resharding", "enable_tablet_balancer = false", {"enable_auto_reshard": False}),
        ("disable_tablet_balancer its opposite", "disable_tablet_balancer = true", {"enable_auto_reshard": False}),
        (
            "both where they are nested",
            "tablet_balancer_config = { disable_tablet_balancer = true }",
            {"enable_auto_reshard": False},
        ),
        (
            "said twice alike is said once",
            "min_tablet_count = 2\ntablet_balancer_config = { min_tablet_count = 2 }",
            {"min_tablet_count": 2},
        ),
    ],
)
def test_every_spelling_means_what_it_means_in_yt(
    tmp_path: Path, rule: str, lines: str, options: dict[str, Any]
) -> None:
    assert read(tmp_path, lines).bundle("shop").options.table("t") == TableOptions(**options), rule


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("tablet_balancer_config = 5", "tablet_balancer_config must be a table"),
        ("tablet_balancer_config = { colour = 1 }", "unknown key; allowed here: enable_auto_reshard"),
        ("tablet_balancer_config = { zones = ['a'] }", "unknown key; allowed here: enable_auto_reshard"),
        ("tablet_balancer_config = { min_tablet_count = 0 }", "tables.t.min_tablet_count: must be 1 or more"),
        ("disable_tablet_balancer = 'perhaps'", "disable_tablet_balancer must be true or false"),
        ("min_tablet_count = 2\ntablet_balancer_config = { min_tablet_count = 3 }", "set only min_tablet_count"),
        ("enable_auto_reshard = true\ndisable_tablet_balancer = true", "set only enable_auto_reshard"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_sentence(tmp_path: Path, lines: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(tmp_path, lines)
    assert sentence in str(refused.value)
    assert len(refused.value.mistakes) == 1


@pytest.mark.parametrize(
    ("lines", "notices"),
    [
        ("enable_tablet_balancer = true", ["YT gave this name up: write enable_auto_reshard"]),
        (
            "tablet_balancer_config = { disable_tablet_balancer = false }",
            ["YT gave this name up: write enable_auto_reshard with the opposite value"],
        ),
        ("tablet_balancer_config = { enable_auto_reshard = true }", []),
    ],
)
def test_a_name_that_yt_gave_up_is_read_with_a_notice(tmp_path: Path, lines: str, notices: list[str]) -> None:
    found = ineffective(read(tmp_path, lines), datetime(2026, 3, 1, tzinfo=UTC))
    assert [one.message for one in found if one.key.startswith("tables.t")] == notices


def test_a_nested_value_is_said_to_come_from_the_file(tmp_path: Path) -> None:
    settings = read(tmp_path, "tablet_balancer_config = { min_tablet_count = 2 }")
    origins = {one.key: one.origin for one in effective(settings, "shop")}
    assert origins["tables.t.min_tablet_count"] == str(tmp_path / "bundles" / "shop.toml")
    assert origins["tables.t.enable_auto_reshard"] == "default"
