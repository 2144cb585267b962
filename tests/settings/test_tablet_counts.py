"""What `config check` says about numbers of tablets that become others, or leave nodes without any."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from balancer.settings import ConfigurationError, Settings, load_settings
from balancer.settings.report import ineffective

pytestmark = pytest.mark.quick


def read(folder: Path, lines: str, nodes: int = 3) -> Settings:
    (folder / "bundles").mkdir()
    (folder / "balancer.toml").write_text('directory = "sqlite:///x"\n')
    written = "".join(f"[nodes.n{number}]\ndsn = 'dbname=d{number}'\n" for number in range(nodes))
    table = f"[tables.t]\nroots = ['t']\nkey = ['id']\n{lines}\n"
    (folder / "bundles" / "shop.toml").write_text(written + table)
    return load_settings(folder / "balancer.toml")


@pytest.mark.parametrize(
    ("lines", "notices"),
    [
        ("layout = 'hash'\ndesired_tablet_count = 10", ["10 becomes 8: a hash table has a power of two"]),
        ("layout = 'hash'\ndesired_tablet_count = 16", []),
        ("layout = 'range'\ndesired_tablet_count = 10", []),
        ("layout = 'hash'\ntablets = 2", ["2 on 3 nodes: 1 of them get no tablet of it before splits"]),
        ("layout = 'hash'\ntablets = 4", []),
        ("layout = 'range'\ntablets = 2", []),
    ],
)
def test_numbers_that_lead_to_something_else_are_named(tmp_path: Path, lines: str, notices: list[str]) -> None:
    found = ineffective(read(tmp_path, lines), datetime(2026, 3, 1, tzinfo=UTC))
    assert [one.message for one in found] == notices


@pytest.mark.parametrize(("tablets", "near"), [(10, "8 or 16"), (3, "2 or 4"), (9000, "8192")])
def test_a_number_that_is_no_power_of_two_is_refused_with_the_nearest(tmp_path: Path, tablets: int, near: str) -> None:
    with pytest.raises(ConfigurationError, match=f"tablets = {tablets}: .*, such as {near}$"):
        read(tmp_path, f"layout = 'hash'\ntablets = {tablets}")
