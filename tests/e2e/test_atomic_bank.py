"""Money between three servers while tablets move and clients, servers, directory and instance die: every transfer is
whole. `make bank` runs it longer."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom

import pytest

from tests.support import bank
from tests.support.servers import fast_place, new_folder

pytestmark = pytest.mark.always


@pytest.fixture
def folder() -> Iterator[Path]:
    made = new_folder(fast_place())
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_every_transfer_is_whole_whatever_dies(folder: Path) -> None:
    seed = SystemRandom().randrange(1_000_000)
    print(f"BANK_SEED={seed}")
    assert bank.run(folder, 8.0, seed) == []


ACCOUNTS = dict.fromkeys(range(1, bank.ACCOUNTS + 1), (1000, ""))


@pytest.mark.quick
def test_the_books_of_an_honest_bank_are_right() -> None:
    log = "begun 1.1 1 2 5\ndone 1.1\nbegun 1.2 1 2 9\nrefused 1.2\nbegun 1.3 3 4 7\nbegun 1.4 5 6 1\nunknown 1.4\n"
    books = ACCOUNTS | {1: (995, "1.1;"), 2: (1005, "1.1;"), 5: (999, "1.4;"), 6: (1001, "1.4;")}
    assert bank.faults(log, books) == []


@pytest.mark.quick
@pytest.mark.parametrize(
    ("log", "changed", "fault"),
    [
        ("begun 1.1 1 2 5\ndone 1.1\n", {}, "done and stands (0, 0)"),
        ("begun 1.1 1 2 5\nrefused 1.1\n", {1: (995, "1.1;"), 2: (1005, "1.1;")}, "refused and stands (1, 1)"),
        ("begun 1.1 1 2 5\n", {1: (995, "1.1;")}, "unknown and stands (1, 0)"),
        ("begun 1.1 1 2 5\ndone 1.1\n", {1: (990, "1.1;1.1;"), 2: (1010, "1.1;1.1;")}, "stands (2, 2)"),
        ("begun 1.1 1 2 5\nmissing 1.1\n", {}, "did not find an account of 1 and 2"),
        ("", {1: (999, "")}, "the sum is 599999"),
    ],
)
def test_a_fault_in_the_books_is_found(log: str, changed: dict[int, tuple[int, str]], fault: str) -> None:
    assert any(fault in found for found in bank.faults(log, ACCOUNTS | changed))
