"""Which long tests a run leaves out: another part each time, chosen by the seed, the same in all its processes.

`SAMPLE_SEED=all` leaves nothing out. Called by tests/conftest.py.
"""

import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

ONE_VERSION = ("e2e", "upgrade", "migration", "daemon", "features", "client", "cli", "polling", "policies")
BY_TURNS = ("e2e", "migration", "daemon", "client", "features", "page", "cli", "api", "embedded")
_STORIES = "e2e"
_VERSION = re.compile(r"postgres1[58]|15 to 18|18 to 15")
_STAYS = ("quick", "always", "bench")
_TESTS = Path(__file__).parents[1]


def area(path: Path) -> str:
    """The folder of `tests` that a test belongs to, however deep its room lies in it."""
    inside = path.relative_to(_TESTS) if path.is_absolute() else path.relative_to("tests")
    return inside.parts[0]


def other_versions(items: Iterable[pytest.Item], seed: str) -> set[pytest.Item]:
    """Long tests that are written for both versions of PostgreSQL run on one: these are the others."""
    by_test: dict[str, list[pytest.Item]] = {}
    for item in items:
        if area(item.path) in ONE_VERSION and _VERSION.search(item.nodeid):
            by_test.setdefault(_VERSION.sub("postgres", item.nodeid), []).append(item)
    chances = {name: random.Random(f"{seed} {name}") for name in by_test}
    kept = {chances[name].choice(found) for name, found in by_test.items()}
    return {item for found in by_test.values() for item in found} - kept


def not_their_turn(items: Iterable[pytest.Item], seed: str) -> set[pytest.Item]:
    """Half of each file's long tests. So every feature is tested in each run, and every test runs in every other one.
    Of the stories of the whole product, which have a file each, half of all.

    Files with the mark `always` run whole: each of their tests guards a step, or a right, that no other test does.
    """
    left_out: set[pytest.Item] = set()
    for path, found in _alike(items).items():
        chance = random.Random(f"{seed} {path.parent.name}/{path.name}")
        left_out.update(chance.sample(found, len(found) // 2))
    return left_out


def _alike(items: Iterable[pytest.Item]) -> dict[Path, Sequence[pytest.Item]]:
    found: dict[Path, list[pytest.Item]] = {}
    for item in items:
        stays = any(item.get_closest_marker(name) for name in _STAYS)
        if area(item.path) in BY_TURNS and not stays:
            found.setdefault(item.path.parent if area(item.path) == _STORIES else item.path, []).append(item)
    return {**found}
