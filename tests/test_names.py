"""One word, one thing: a module's name says what it adds to its room's, and no two classes have one name.

Two rooms may use the same plain name (`plan`, `command`, `statements`): it is told apart by the room.
"""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

TREE = Path(__file__).parents[1]

OF_THE_ROOM = {
    "balancer/daemon/daemon": "the class Daemon",
    "policies/plan/plan": "the function that makes the whole plan",
    "policies/simulator/simulator": "the class Simulator",
    "schedules/schedule": "the class Schedule",
}
"""Modules that are called as their room is."""
CLASSES = {
    "Command": "an operator's wish in the directory; Django calls every command of manage.py so",
    "KeyColumn": "a key's column in the directory and, with its collation, on a node",
    "Leader": "what a process has and does while it leads; as HTTP shows who leads",
    "PageMap": "what the client needs of the directory's, as a protocol",
}

CLASS = re.compile(r"^[ \t]*class ([A-Za-z]\w*)", re.MULTILINE)


def sources() -> list[Path]:
    return [path for folder in ("balancer", "policies", "schedules") for path in (TREE / folder).rglob("*.py")]


@cache
def classes(path: Path) -> set[str]:
    """Of one file. It takes long: only those files are read so in which a line looks like a class of another's name."""
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)}


def carries(module: str, room: str) -> bool:
    """Whether a module's name repeats that of its room, in the singular or the plural."""
    words = {room, room.removesuffix("s"), room + "s"}
    return any(module == word or module.startswith(word + "_") or module.endswith("_" + word) for word in words)


def test_no_module_repeats_the_name_of_its_room() -> None:
    modules = {path.relative_to(TREE) for path in sources() if not path.stem.startswith("__")}
    found = {str(path.with_suffix("")) for path in modules if carries(path.stem, path.parent.name)}
    assert sorted(found) == sorted(OF_THE_ROOM)


def test_a_name_means_one_thing_in_a_room() -> None:
    """A module beside a folder of its name would hide it, or be hidden."""
    assert [str(path) for path in sources() if path.with_suffix("").is_dir()] == []


@pytest.mark.parametrize(
    ("module", "room", "repeats"),
    [("steps_copy", "steps", True), ("copy", "steps", False), ("http_directory", "directory", True),
     ("node_poll", "nodes", True), ("plan", "plan", True), ("planned", "plan", False)],
)  # fmt: skip
def test_what_repeats_a_name(module: str, room: str, repeats: bool) -> None:
    assert carries(module, room) is repeats


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, set[Path]] = defaultdict(set)
    for path in sources():
        for name in CLASS.findall(path.read_text()):
            places[name].add(path.resolve())
    found = {
        name: [path for path in paths if name in classes(path)] for name, paths in places.items() if len(paths) > 1
    }
    twice = {name: sorted(str(path.relative_to(TREE)) for path in paths) for name, paths in found.items() if paths[1:]}
    assert {name: found for name, found in twice.items() if not CLASSES.get(name)} == {}
    assert sorted(twice) == sorted(CLASSES), "the list of exceptions has a name that is used once"
