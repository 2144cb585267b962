"""`balancer compare-placements`, as a user runs it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from balancer.cli.main import app
from balancer.directory.open import open_directory
from balancer.errors import UserError
from tests.support.commands import balancer_here as balancer
from tests.support.directories import fill, small_cluster

pytestmark = pytest.mark.quick

FUNCTIONS = ["modulo", "rendezvous", "jump", "fibonacci", *["ring"] * 4]
RINGS = [1, 100, 256, 1000]


def test_synthetic_keys_are_compared_by_every_function() -> None:
    result = balancer("compare-placements", "--keys", "5000", "--nodes", "10")
    assert result.code == 0
    lines = result.out.splitlines()
    assert [line.split("\t")[0] for line in lines] == [
        "function",
        *FUNCTIONS[:4],
        *(f"ring ({count:,})" for count in RINGS),
    ]
    assert lines[3].split("\t")[3] == "90.91 %"
    assert lines[3].split("\t")[6] == "500.0"


def run(*arguments: str) -> str:
    """In this process: starting another one costs more than the command."""
    return CliRunner().invoke(app, ["compare-placements", *arguments], catch_exceptions=False).output


def test_json_has_the_same_figures_for_programs() -> None:
    arguments = ("--keys", "2000", "--weights", "1,2,1", "--seed", "9", "--output", "json")
    document, again = json.loads(run(*arguments)), json.loads(run(*arguments))
    assert document["nodes"] == {"node-1": 1.0, "node-2": 2.0, "node-3": 1.0}
    assert (document["keys"], document["seed"]) == (2000, 9)
    assert [row["function"] for row in document["functions"]] == FUNCTIONS
    for row in [*document["functions"], *again["functions"]]:
        assert row.pop("milliseconds") > 0
    assert document == again


def test_the_ring_has_as_many_points_as_asked_for_and_is_more_even_with_more() -> None:
    document = json.loads(run("--keys", "50000", "--points", "1,50,1000", "--output", "json"))
    rings = [row for row in document["functions"] if row["function"] == "ring"]
    assert [row["points"] for row in rings] == [1, 50, 1000]
    assert rings[0]["deviation"] > rings[1]["deviation"] > rings[2]["deviation"]


@pytest.mark.parametrize("points", ["", "x", "0", "1,10001", "1.5"])
def test_wrong_numbers_of_points_are_named(points: str) -> None:
    with pytest.raises(UserError, match="--points"):
        run("--points", points)


@pytest.fixture
def address(tmp_path: Path) -> str:
    """A directory with the bundle `shop`: three nodes, eight vbuckets."""
    found = f"sqlite://{tmp_path}/directory.db"
    with open_directory(found) as directory:
        fill(directory, small_cluster())
    return found


def test_vbuckets_of_a_bundle_are_compared_with_how_they_are_placed_now(address: str) -> None:
    document = json.loads(run("--bundle", "shop", "--directory", address, "-o", "json"))
    assert (document["keys"], document["bundle"]) == (8, "shop")
    assert sorted(document["nodes"]) == ["pg-a", "pg-b", "pg-c"]
    assert [row["function"] for row in document["functions"]] == ["present", *FUNCTIONS]
    assert document["functions"][0]["stay_when_one_comes"] is None
    assert document["functions"][0]["deviation"] == document["functions"][1]["deviation"]


@pytest.mark.parametrize("weights", ["1,x", "1,0", "nan", ""])
def test_wrong_weights_are_named(weights: str) -> None:
    with pytest.raises(UserError, match="--weights"):
        run("--weights", weights)


def test_an_unknown_bundle_is_named_with_those_there_are(address: str) -> None:
    with pytest.raises(UserError, match="there is no bundle shopp; there are shop"):
        run("--bundle", "shopp", "--directory", address)
