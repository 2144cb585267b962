"""`balancer record` on real nodes, and `balancer simulate --from` on what it kept."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.features.replay.poll_file import PollFile, RecordedPoll, read_polls
from balancer.policies.options import BundleOptions
from tests.support.commands import balancer_here
from tests.support.running import Running, product


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, postgres15: PostgresServer, postgres18: PostgresServer
) -> Iterator[Running]:
    with product(tmp_path_factory.mktemp("recorded"), {"a": postgres15, "b": postgres18}) as made:
        yield made


@pytest.fixture(scope="module")
def kept(running: Running, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("kept") / "shop.record"
    result = running.balancer("record", str(file), "--every", "1s", "--for", "4s", "-o", "json")
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert (document["bundle"], document["file"]) == ("shop", str(file))
    assert document["polls"] >= 3
    return file


def test_polls_have_what_the_nodes_measured(kept: Path, running: Running) -> None:
    polls = read_polls(kept)
    view = polls[-1].view
    assert len(set(view.tablets.ids.tolist())) == running.snapshot().tablet_count()
    assert (view.tablets.sizes > 0).any()
    assert [node.id for node in view.nodes] == ["a", "b"]
    assert all(node.condition == "active" for node in view.nodes)


def replayed(kept: Path, *arguments: str) -> Any:
    result = balancer_here("simulate", "--from", kept, *arguments, "-o", "json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_a_setting_is_tried_on_what_was_recorded(kept: Path, tmp_path: Path) -> None:
    """The few seconds of the record, stretched to an hour, with all tablets on one node."""
    hour = tmp_path / "hour"
    stretched(kept, hour)
    found = replayed(hour, "--set", "balancer.enable_cell_balancer=true")
    assert found["settings"] == {"balancer.enable_cell_balancer": [False, True]}
    assert found["replayed"]["moves"] == 0
    assert found["changed"]["moves"] > 0
    assert found["changed"]["moved_bytes"] > 0
    text = balancer_here("simulate", "--from", hour, "--set", "balancer.enable_cell_balancer=true").out
    assert "changed: balancer.enable_cell_balancer = True (recorded: False)" in text
    assert f"moves\t0\t0\t{found['changed']['moves']}\t+{found['changed']['moves']}" in text


def test_a_schedule_is_tried_in_the_bundles_time_zone(kept: Path, tmp_path: Path) -> None:
    hour = tmp_path / "hour"
    began = stretched(kept, hour, "Asia/Tokyo")
    there, elsewhere = (began // 3600 + 9) % 24, (began // 3600) % 24
    on = ("--set", "balancer.enable_cell_balancer=true", "--set")
    moved = [
        replayed(hour, *on, f"balancer.tablet_balancer_schedule=hours == {at:.0f}")["changed"]["moves"]
        for at in (there, elsewhere)
    ]
    assert moved[0] > 0
    assert moved[1] == 0


def stretched(kept: Path, file: Path, zone: str = "UTC") -> float:
    """Polls two minutes apart from a full hour on, all tablets on the first node; returns when they begin."""
    polls = read_polls(kept)
    began = polls[0].view.now // 3600 * 3600
    made = PollFile(file, 64 << 20, 2)
    for at in range(28):
        view = polls[-1].view
        view.tablets.node[:] = 0
        made.add(RecordedPoll(replace(view, now=began + 120 * at), BundleOptions(), zone))
    return float(began)


def test_the_settings_of_a_configuration_can_be_tried(kept: Path, running: Running) -> None:
    result = running.balancer("simulate", "--from", str(kept), "-o", "json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["settings"] == {}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((), "name a scenario, or a record with --from, and not both"),
        (("story.txt", "--from", "x"), "and not both"),
        (("story.txt", "--set", "a=b"), "--set and --config are for a record"),
        (("--from", "nowhere"), "cannot be read: No such file"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: tuple[str, ...], part: str) -> None:
    result = balancer_here("simulate", *arguments)
    assert (result.code, part in result.err) == (2, True), result.err


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("placement.start_threshold", "write PATH=VALUE"),
        ("placement.nothing=1", "there is no option 'nothing'; there are"),
        ("placement.start_threshold=much", "'much' is not a size"),
        ("balancer.tablet_balancer_schedule=hours +", "the schedule 'hours +'"),
        ("placement.stop_threshold=5", "placement.stop_threshold: must not exceed start_threshold"),
        ("balancer.groups.g.metric=cpu", "tablet_balancer_config.groups.g.metric"),
        ("placement.dimensions.luck=1", "placement.dimensions"),
    ],
)
def test_a_setting_that_is_none_is_one_sentence(kept: Path, setting: str, part: str) -> None:
    result = balancer_here("simulate", "--from", kept, "--set", setting)
    assert (result.code, part in result.err, result.err.count("\n")) == (2, True, 1), result.err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--every", "10ms"), "--every 10ms is too short: 1s is the least"),
        (("--every", "soon"), "--every: 'soon' is not a duration"),
        (("--max-size", "much"), "--max-size: 'much' is not a size"),
        (("--bundle", "none"), "there is no bundle 'none'"),
        (("--files", "0"), "a record has 1 to 100 files"),
    ],
)
def test_what_cannot_be_recorded_is_said(
    running: Running, tmp_path: Path, arguments: tuple[str, ...], part: str
) -> None:
    result = running.balancer("record", str(tmp_path / "r"), "--for", "1s", *arguments)
    assert (result.code, part in result.err) == (2, True), result.err
    assert list(tmp_path.iterdir()) == []
