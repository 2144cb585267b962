"""`balancer config`, as a user calls it."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from balancer.policies.options import GB
from balancer.policies.resize.scope import size_bounds
from balancer.settings import load_settings
from balancer.settings.report import ineffective
from tests.support.commands import balancer, balancer_here

TEN_MISTAKES = {
    "balancer.toml": 'directory = "redis://x"\ntick = "soon"\ncolour = "red"\n',
    "bundles/a.toml": 'mode = "auto"\n[migration]\nwrite_pause_buget = "1s"\nwal_budget = "much"\n',
    "bundles/b.toml": "[nodes.x]\nweight = -1\n[tables.t]\nroots = ['t']\nlayout = 'hash'\nkey = []\n",
    "bundles/c.toml": "[heat\n",
}


def make(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder / "balancer.toml"


def test_ten_mistakes_are_ten_located_messages_and_exit_2(tmp_path: Path) -> None:
    result = balancer("config", "check", "--config", make(tmp_path, TEN_MISTAKES))
    lines = result.err.splitlines()
    assert result.code == 2
    assert lines[-1] == "10 to fix"
    assert len(lines) == 11
    for name, count in (("balancer.toml", 3), ("a.toml", 3), ("b.toml", 3), ("c.toml", 1)):
        assert sum(line.split(": ")[0].endswith(name) for line in lines) == count
    assert "Traceback" not in result.err


def test_the_same_mistakes_as_json(tmp_path: Path) -> None:
    result = balancer_here("config", "check", "--config", make(tmp_path, TEN_MISTAKES), "--output", "json")
    assert result.code == 2
    assert len(json.loads(result.out)) == 10


def test_show_prints_no_secret(tmp_path: Path) -> None:
    files = {
        "balancer.toml": 'directory = "sqlite:///x"\n',
        "bundles/shop.toml": "[nodes.a]\ndsn = 'postgresql://u:hush@h/d'\n",
    }
    result = balancer_here("config", "show", "shop", "--config", make(tmp_path, files))
    assert result.code == 0
    assert "nodes.a.dsn\tpostgresql://u@h/d" in result.out
    assert "hush" not in result.out + result.err


def test_no_configuration_says_where_it_is_looked_for(tmp_path: Path) -> None:
    result = balancer_here("config", "check", "--config", tmp_path / "none.toml")
    assert result.code == 2
    assert "the file does not exist" in result.err


GROUPS = """
[tablet_balancer_config]
default_in_memory_group = "cache"
[tablet_balancer_config.groups.load]
parameterized = { metric = "write_rate_1h + read_rate_1h", max_action_count = 5, enable_reshard = true }
[tablet_balancer_config.groups.cache]
parameterized = { per_table_uniform = true }
[tablet_balancer_config.groups.later]
[nodes.a]
dsn = "postgresql://u@h/d"
[tables.t]
roots = ["t"]
layout = "hash"
key = ["id"]
group = "load"
desired_tablet_count = 4
desired_tablet_metric = 7.5
[tables.m]
roots = ["m"]
layout = "hash"
key = ["id"]
in_memory_mode = "compressed"
enable_parameterized = true
"""


def test_parameterized_is_read_as_yt_writes_it(tmp_path: Path) -> None:
    files = {"balancer.toml": 'directory = "sqlite:///x"\n', "bundles/shop.toml": GROUPS}
    result = balancer_here("config", "show", "shop", "--config", make(tmp_path, files))
    shown = dict(line.split("\t", 1) for line in result.out.splitlines())
    prefix, file = "tablet_balancer_config.groups.load", tmp_path / "bundles" / "shop.toml"
    assert shown[f"{prefix}.metric"] == f"write_rate_1h + read_rate_1h\t{file}"
    assert shown[f"{prefix}.max_action_count"] == f"5\t{file}"
    assert shown[f"{prefix}.reshard_by_metric"].split("\t")[0].lower() == "true"
    assert shown[f"{prefix}.reshard_by_metric"].endswith(str(file))
    assert shown[f"{prefix}.enable_reshard"].endswith("default")
    assert not [key for key in shown if "parameterized." in key]


def test_settings_without_effect_are_named(tmp_path: Path) -> None:
    files = {"balancer.toml": 'directory = "sqlite:///x"\n', "bundles/shop.toml": GROUPS}
    result = balancer_here("config", "check", "--config", make(tmp_path, files), "--output", "json")
    assert result.code == 0
    assert [(one["key"], one["no_effect"]) for one in json.loads(result.out)] == [
        ("tablet_balancer_config.groups.cache.per_table_uniform", True),
        ("tablet_balancer_config.groups.later", True),
        ("tables.t.desired_tablet_metric", True),
        ("tables.m.enable_parameterized", True),
    ]
    plain = balancer_here("config", "check", "--config", tmp_path / "balancer.toml")
    assert "groups.later has no effect: no table of the bundle is in the group" in plain.out


def test_every_metric_is_parsed_and_said_once(tmp_path: Path) -> None:
    groups = """
[tablet_balancer_config]
default_in_memory_group = "nobody"
safe_used_tablet_static_ratio = 1.5
[tablet_balancer_config.groups.one]
metric = "write_rate +"
[tablet_balancer_config.groups.two]
parameterized = { metric = "cpu" }
[tablet_balancer_config.groups.three]
metric = "bytes"
parameterized = { metric = "rows", max_action_count = 0 }
"""
    files = {"balancer.toml": 'directory = "sqlite:///x"\n', "bundles/shop.toml": groups}
    result = balancer_here("config", "check", "--config", make(tmp_path, files), "--output", "json")
    prefix = "tablet_balancer_config."
    assert result.code == 2
    assert [one["key"].removeprefix(prefix) for one in json.loads(result.out)] == [
        "safe_used_tablet_static_ratio",
        "default_in_memory_group",
        "groups.one.metric",
        "groups.two.parameterized.metric",
        "groups.three.metric",
        "groups.three.max_action_count",
    ]


@pytest.mark.parametrize(
    ("sizes", "used"),
    [
        ('min_tablet_size = "1GB"', False),
        ('min_tablet_size = "1GB"\ndesired_tablet_size = "2GB"', False),
        ('min_tablet_size = "3GB"\ndesired_tablet_size = "2GB"\nmax_tablet_size = "4GB"', False),
        ('min_tablet_size = "1GB"\ndesired_tablet_size = "2GB"\nmax_tablet_size = "2GB"', False),
        ('min_tablet_size = "1GB"\ndesired_tablet_size = "2GB"\nmax_tablet_size = "4GB"', True),
    ],
)
def test_three_sizes_of_a_table_that_do_not_fit_give_way_to_the_bundles(tmp_path: Path, sizes: str, used: bool) -> None:
    (tmp_path / "bundles").mkdir()
    table = f'[tables.orders]\nroots = ["public.orders"]\nlayout = "range"\nkey = ["id"]\n{sizes}\n'
    (tmp_path / "bundles" / "shop.toml").write_text(table)
    (tmp_path / "balancer.toml").write_text('directory = "sqlite:///x.db"\n')
    settings = load_settings(tmp_path / "balancer.toml")
    options = settings.bundle("shop").options
    bounds = size_bounds(options.balancer, options.table("orders"), 100 * GB, 4)
    assert bounds.source == ("the table's sizes" if used else "the bundle's sizes")
    said = [
        one for one in ineffective(settings, datetime(2026, 3, 1, tzinfo=UTC)) if "bundle's sizes apply" in str(one)
    ]
    assert len(said) == (not used)


def test_a_window_into_which_nothing_ever_fits_is_named(tmp_path: Path) -> None:
    """Where the schedule gates starts only, as by default, there is nothing to say."""
    shop = '[tablet_balancer_config]\ntablet_balancer_schedule = "minutes % 20 == 0"\n'
    files = {"balancer.toml": 'directory = "sqlite:///x"\n', "bundles/shop.toml": shop}
    plain = balancer_here("config", "check", "--config", make(tmp_path, files))
    assert (plain.code, "desired size" in plain.out) == (0, False)
    files["bundles/shop.toml"] += '[migration]\nfinish_by = "window"\n'
    strict = balancer_here("config", "check", "--config", make(tmp_path, files))
    assert strict.code == 0
    assert "migration.finish_by: no tablet of the desired size fits into any window" in strict.out
    assert "the largest that fits has 1.9 GB" in strict.out
    shown = balancer_here("schedule", "show", "shop", "--config", tmp_path / "balancer.toml")
    tried = balancer_here("schedule", "try", "minutes % 20 == 0", "--finish-by", "window")
    assert "the largest that fits has 1.9 GB" in shown.err
    assert "the largest that fits has 1.9 GB" in tried.err
    files["bundles/shop.toml"] = shop + '[migration]\nfinish_by = "noon"\n'
    refused = balancer_here("config", "check", "--config", make(tmp_path, files))
    assert refused.code == 2
    assert 'must be "any", "window", "park" or a time of day such as "06:00"' in refused.err
