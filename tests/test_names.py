"""One word, one thing: no two modules and no two classes of one name, unless they are the same thing in two layers."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

TREE = Path(__file__).parents[1]

MODULES = {
    "doctor": "the command and what it calls",
    "explain": "the command and what it calls",
    "forwarding": "the daemon's part and the statements on a node",
    "heat": "the document over HTTP and what it shows",
    "leftovers": "the daemon's part and the statements on a node",
    "plan": "the command and what it shows",
    "plans": "the document over HTTP and what it shows",
    "route": "the same answer on the command line and over HTTP",
    "run": "the command and what it calls",
    "schedule": "the command, the document over HTTP and what both show",
    "tablets": "the command and the document over HTTP",
}
CLASSES = {
    "Command": "an operator's wish in the directory; Django calls every command of manage.py so",
    "KeyColumn": "a key's column in the directory and, with its collation, on a node",
    "PageMap": "what the client needs of the directory's, as a protocol",
}

CLASS = re.compile(r"^[ \t]*class ([A-Za-z]\w*)", re.MULTILINE)


def sources() -> list[Path]:
    return [path for folder in ("balancer", "policies", "schedules") for path in (TREE / folder).rglob("*.py")]


@cache
def classes(path: Path) -> set[str]:
    """Of one file. It takes long: only those files are read so in which a line looks like a class of another's name."""
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)}


def test_no_two_modules_have_one_name() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for path in sources():
        if not path.stem.startswith("__"):
            places[path.stem].add(str(path.resolve().relative_to(TREE)))
    twice = {name: sorted(found) for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in twice.items() if not MODULES.get(name)} == {}
    assert sorted(twice) == sorted(MODULES), "the list of exceptions has a name that is used once"


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
