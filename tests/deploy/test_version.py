"""The version is said in one place; whatever needs it, has it from there, or is compared with it here."""

import os
import re
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest

import balancer

pytestmark = pytest.mark.quick

TREE = Path(__file__).parents[2]
OTHERS = {".git", ".venv", ".hypothesis", ".mypy_cache", ".ruff_cache", "__pycache__", "build", "node_modules"}


def texts() -> dict[str, str]:
    """Every file of the tree that is text. Environments and caches have ten times as many files: not even listed."""
    found = {}
    for folder, below, names in os.walk(TREE):
        below[:] = [name for name in below if name not in OTHERS and not name.endswith(".egg-info")]
        for path in (Path(folder, name) for name in names):
            if path.is_file() and not path.is_symlink():
                with suppress(UnicodeDecodeError):
                    found[path.relative_to(TREE).as_posix()] = path.read_text()
    return found


TEXTS = texts()


def test_the_tree_was_read() -> None:
    assert {"README.md", "deploy/kubernetes/base/deployment.yaml", "balancer/__init__.py"} <= TEXTS.keys()


def test_both_distributions_take_it_from_the_package() -> None:
    for file in ("pyproject.toml", "packaging/client/pyproject.toml"):
        project = tomllib.loads(TEXTS[file])
        assert "version" in project["project"]["dynamic"]
        assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "balancer.__version__"}


def test_the_daemon_needs_the_other_half_of_the_same_version() -> None:
    needed = tomllib.loads(TEXTS["pyproject.toml"])["project"]["dependencies"]
    assert [one for one in needed if one.startswith("tablet-balancer")] == [
        f"tablet-balancer-client=={balancer.__version__}"
    ]


def test_nothing_else_repeats_it() -> None:
    said = re.compile(
        rf"(?:balancer\S*|[Vv]ersion\S*|newTag)[\s:=@\"'-]*v?{re.escape(balancer.__version__)}(?![\d.]*\d)"
    )
    lists = {name for name in TEXTS if name.startswith("requirements") or name in ("NOTICE", "CHANGELOG.md")}
    repeating = {name for name, text in TEXTS.items() if name not in lists and said.search(text)}
    assert repeating == {"balancer/__init__.py", "pyproject.toml"}


def test_the_changelog_tells_of_this_version_first() -> None:
    heads = re.findall(r"^## (.+)$", TEXTS["CHANGELOG.md"], re.MULTILINE)
    released = [head for head in heads if head != "Unreleased"]
    assert re.fullmatch(rf"{re.escape(balancer.__version__)} \(\d{{4}}-\d\d-\d\d\)", released[0])


# Written in parts, so that this file is not what it looks for.
FOREIGN = "|".join(
    (
        r"pypi\." + "org",
        "python" + "hosted",
        "npm" + r"js\.",
        r"debian\." + "org",
        "--(?:extra-)?index" + "-url",
        r"\.pkg\." + "dev",
        re.escape(f"{TREE}/"),
        "/root/" + r"\w",
    )
)


def test_no_file_names_a_package_registry_or_a_place_of_one_machine() -> None:
    assert [(name, found[0]) for name, text in TEXTS.items() if (found := re.search(FOREIGN, text))] == []
