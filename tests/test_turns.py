"""Long tests take turns: each run has half of every file, each test is in some runs, and some files are in all."""

from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.mutants import MUTANTS
from tests.support.turns import BY_TURNS, area, not_their_turn, other_versions

pytestmark = pytest.mark.quick
TREE = Path(__file__).parents[1]


class Item:
    """What is asked of pytest's."""

    def __init__(self, nodeid: str, *marks: str) -> None:
        self.nodeid = nodeid
        self.path = Path(nodeid.partition("::")[0])
        self._marks = marks

    def get_closest_marker(self, name: str) -> bool | None:
        return True if name in self._marks else None


def items(file: str, count: int, *marks: str) -> list[pytest.Item]:
    return cast(list[pytest.Item], [Item(f"{file}::test_{number}", *marks) for number in range(count)])


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("room", ["cli", "features/convert"])
def test_a_run_has_half_of_a_file_and_some_run_each_test(room: str, count: int) -> None:
    found = items(f"tests/{room}/test_x.py", count)
    runs = [set(found) - not_their_turn(found, str(seed)) for seed in range(100)]
    assert {len(run) for run in runs} == {(count + 1) // 2}
    assert set.union(*runs) == set(found)
    assert not_their_turn(found, "7") == not_their_turn(found, "7"), "the same in every process"


@pytest.mark.parametrize(
    ("file", "mark"),
    [("cli", "quick"), ("migration", "always"), ("cli", "bench"), ("workloads", ""), ("nodes/session", "")],
)
def test_these_are_in_each_run(file: str, mark: str) -> None:
    assert not_their_turn(items(f"tests/{file}/test_x.py", 9, mark), "1") == set()


def test_one_of_two_versions_is_left_out() -> None:
    found: list[Any] = [Item(f"tests/e2e/test_x.py::test_y[{version}]") for version in ("postgres15", "postgres18")]
    left_out = [other_versions(found, str(seed)) for seed in range(20)]
    assert {len(each) for each in left_out} == {1}
    assert set.union(*left_out) == set(found)


def test_whatever_catches_a_mutant_is_in_each_run() -> None:
    """A step of the argument whose only test takes turns would be unguarded in every other run."""
    files = {TREE / test.partition("::")[0] for mutant in MUTANTS for test in mutant.likely}
    assert files
    by_turns = [file for file in files if area(file) in BY_TURNS]
    assert [file.name for file in by_turns if "pytestmark = pytest.mark.always" not in file.read_text()] == []
