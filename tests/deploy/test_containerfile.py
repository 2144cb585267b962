"""The Containerfile names only what is there, and starts what the package installs.

Its RUN lines need a package registry; `python -m tests.support.containerfile FOLDER` runs them as written, below a
folder, and then the program that comes out of them.
"""

import tomllib
from pathlib import Path

import pytest

from tests.support.containerfile import ROOT, commands, copied

pytestmark = pytest.mark.quick


def test_everything_that_is_copied_is_there() -> None:
    sources = [source for line in copied() for source in line[:-1]]
    assert {"requirements-runtime.txt", "pyproject.toml", "balancer", "policies", "schedules"} <= set(sources)
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_every_package_of_the_distribution_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {name.removesuffix("*").removesuffix(".") for name in packages(project)}
    sources = {Path(source).name for line in copied() for source in line[:-1]}
    assert wanted <= sources
    assert project["project"]["readme"] in sources, "the build reads it"


def packages(project: dict[str, dict[str, dict[str, dict[str, dict[str, list[str]]]]]]) -> list[str]:
    return project["tool"]["setuptools"]["packages"]["find"]["include"]


def test_it_starts_the_program_that_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (entry,), (arguments,) = commands("ENTRYPOINT"), commands("CMD")
    assert entry == '["balancer"]'
    assert "balancer" in project["project"]["scripts"]
    assert arguments.startswith('["run", "--config"')
