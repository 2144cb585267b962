"""What a run leaves out of large tables: never all cases of a kind, and nothing where all of them are asked for."""

import pytest

from tests.support import sampling

pytestmark = pytest.mark.quick
ROWS, COLUMNS = list(range(9)), list("abcd")


@pytest.mark.parametrize("seed", ["1", "2", "3"])
@pytest.mark.parametrize("each", [1, 2, 4])
def test_every_row_and_every_column_is_there(monkeypatch: pytest.MonkeyPatch, seed: str, each: int) -> None:
    monkeypatch.setattr(sampling, "SEED", seed)
    found = sampling.crossed(ROWS, COLUMNS, each, "x")
    assert len(set(found)) == len(found) == 9 * each
    assert {row for row, _ in found} == set(ROWS)
    assert {column for _, column in found} == set(COLUMNS)
    assert found == sampling.crossed(ROWS, COLUMNS, each, "x"), "the same in every process"


def test_some_run_has_each_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for seed in range(100):
        monkeypatch.setattr(sampling, "SEED", str(seed))
        seen |= set(sampling.crossed(ROWS, COLUMNS, 1, "x"))
    assert len(seen) == len(ROWS) * len(COLUMNS)


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_of_neighbours_one_is_there(monkeypatch: pytest.MonkeyPatch, seed: str) -> None:
    monkeypatch.setattr(sampling, "SEED", seed)
    assert sampling.thinned(ROWS, 2, "x") in ([0, 2, 4, 6, 8], [1, 3, 5, 7])


def test_everything_is_there_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SEED", "all")
    assert sampling.crossed(ROWS, COLUMNS, 1, "x") == [(row, column) for row in ROWS for column in COLUMNS]
    assert sampling.thinned(ROWS, 2, "x") == sampling.sampled(ROWS, 2, "x") == ROWS
