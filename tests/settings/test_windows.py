"""Which schedule applies to what in a bundle."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from balancer.errors import UserError
from balancer.schedules import Formula
from balancer.settings import BundleSettings, Settings, load_settings
from balancer.settings.schedules import bundle_schedule, group_schedule, heat_schedule, in_zone

pytestmark = pytest.mark.quick


def load(folder: Path, cluster: str, bundle: str) -> tuple[Settings, BundleSettings]:
    (folder / "bundles").mkdir()
    (folder / "balancer.toml").write_text(f'directory = "sqlite:///x"\n{cluster}')
    (folder / "bundles" / "shop.toml").write_text(bundle)
    settings = load_settings(folder / "balancer.toml")
    return settings, settings.bundle("shop")


GROUPS = """
[tablet_balancer_config]
tablet_balancer_schedule = "hours < 6"
[tablet_balancer_config.groups.hot]
schedule = "minutes < 5"
[tablet_balancer_config.groups.cold]
enable_move = false
enable_reshard = false
[heat]
schedule = "hours == 3"
"""


def test_group_and_heat_before_bundle_before_cluster(tmp_path: Path) -> None:
    settings, shop = load(tmp_path, 'schedule = "hours == 1"', GROUPS)
    assert bundle_schedule(settings, shop).formula == Formula("hours < 6")
    assert group_schedule(settings, shop, "hot").level == "group hot"
    assert group_schedule(settings, shop, "hot").formula == Formula("minutes < 5")
    assert group_schedule(settings, shop, "default").level == "bundle shop"
    assert heat_schedule(settings, shop).formula == Formula("hours == 3")


def test_the_clusters_formula_where_the_bundle_has_none(tmp_path: Path) -> None:
    settings, shop = load(tmp_path, 'schedule = "hours == 1"', "")
    for found in (
        bundle_schedule(settings, shop),
        group_schedule(settings, shop, "default"),
        heat_schedule(settings, shop),
    ):
        assert (found.formula, found.level) == (Formula("hours == 1"), "the cluster")


def test_always_open_where_nothing_is_set(tmp_path: Path) -> None:
    settings, shop = load(tmp_path, "", "")
    found = bundle_schedule(settings, shop)
    assert (found.level, found.schedule().closes_at(datetime(2026, 1, 1, tzinfo=UTC))) == ("", None)


def test_switches(tmp_path: Path) -> None:
    settings, shop = load(tmp_path, "", GROUPS + "enable = false\n")
    assert group_schedule(settings, shop, "cold").disabled_by == "group cold"
    assert heat_schedule(settings, shop).disabled_by == "heat"
    assert bundle_schedule(settings, shop).enabled


def test_an_unknown_group_is_named_with_those_there_are(tmp_path: Path) -> None:
    settings, shop = load(tmp_path, "", GROUPS)
    with pytest.raises(UserError, match="no group 'warm'; there are: cold, default, hot"):
        group_schedule(settings, shop, "warm")


def test_the_bundles_zone_decides(tmp_path: Path) -> None:
    settings, shop = load(tmp_path, 'schedule = "hours == 3"', 'timezone = "Europe/Moscow"')
    assert in_zone(shop, bundle_schedule(settings, shop)).is_open(datetime(2026, 1, 1, 0, 30, tzinfo=UTC))
