"""The defaults are YT's; those that are not are in the table of docs/policies.md, as they are."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from balancer.policies.options import GB, MB, BalancerOptions, GroupOptions, TableOptions

pytestmark = pytest.mark.quick

POLICIES = Path(__file__).parents[2] / "docs" / "policies.md"
# As YT's reference has them.
BUNDLE = {
    "min_tablet_size": 128 * MB,
    "desired_tablet_size": 10 * GB,
    "max_tablet_size": 20 * GB,
    "min_in_memory_tablet_size": 512 * MB,
    "desired_in_memory_tablet_size": 1 * GB,
    "max_in_memory_tablet_size": 2 * GB,
    "enable_tablet_size_balancer": True,
    "enable_in_memory_cell_balancer": True,
    "enable_cell_balancer": False,
    "soft_in_memory_cell_balance_threshold": 0.05,
    "hard_in_memory_cell_balance_threshold": 0.15,
    "tablet_to_cell_ratio": 5.0,
    "safe_used_tablet_static_ratio": 1.0,
}
GROUP = {
    "enable_move": True,
    "enable_reshard": True,
    "max_action_count": 50,
    "node_deviation_threshold": 0.1,
    "cell_deviation_threshold": 0.1,
    "min_relative_metric_improvement": 0.0,
    "per_table_uniform": False,
}
TABLE = {"enable_auto_reshard": True, "enable_auto_tablet_move": True, "enable_parameterized": False}


def test_what_differs_is_in_the_table_and_nothing_else_is() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|", POLICIES.read_text(encoding="utf-8"), re.MULTILINE)
    theirs = BUNDLE | GROUP | TABLE
    ours = asdict(TableOptions()) | asdict(BalancerOptions()) | asdict(GroupOptions())
    assert {name for name, _, _ in listed} == {name for name, value in theirs.items() if ours[name] != value}
    for name, yt, here in listed:
        if here.startswith("`"):
            assert (yt, here) == (f"`{theirs[name]:g}`", f"`{ours[name]:g}`")
