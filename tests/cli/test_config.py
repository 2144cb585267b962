"""`balancer config`, as a user calls it."""

import json
from pathlib import Path

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
    assert lines[-1] == "10 to mend"
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
