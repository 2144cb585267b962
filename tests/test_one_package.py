"""Two distributions install one import package, each file from one of them; the client's needs nothing of the other.

An application may have packages named policies and schedules.
"""

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import balancer

TREE = Path(__file__).parents[1]
CLIENT = TREE / "packaging" / "client"


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def contents(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The client's and the daemon's."""
    folder, tree = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("tree") / "tree"
    # A copy: a build takes whatever an earlier one has left in the folder `build`.
    names = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "NOTICE")
    for name in ("balancer", "policies", "schedules", "packaging"):
        ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
        shutil.copytree(TREE / name, tree / name, symlinks=True, ignore=ignored)
    for name in names:
        shutil.copy(TREE / name, tree)
    pip("wheel", "--no-deps", "--wheel-dir", folder, tree / "packaging" / "client", tree)
    (client,) = folder.glob("tablet_balancer_client-*.whl")
    (daemon,) = folder.glob("tablet_balancer-*.whl")
    return client, daemon


def run_in(folder: Path, *path: Path, lines: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-S", "-c", "\n".join(lines)],  # without the editable installation that we are
        cwd=folder,
        env={"PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        check=False,
    )


def modules_of_the_client() -> set[str]:
    """What its modules import, directly or not, of this package: by their text, so also what is imported late."""
    found: set[Path] = set()
    waiting = list((TREE / "balancer" / "client").rglob("*.py"))
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        waiting += [one for name in imported(file) for one in files_of(name)]
    return {str(file.relative_to(TREE)) for file in found}


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_of(name: str) -> Iterator[Path]:
    """A module's file and those of the packages around it. The practice cluster is the daemon's, and said so."""
    parts = name.split(".")
    if parts[0] != "balancer" or name.startswith("balancer.testing"):
        return
    for length in range(1, len(parts) + 1):
        place = TREE.joinpath(*parts[:length])
        yield from (file for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists())


@pytest.mark.quick
def test_the_clients_files_are_those_that_it_needs() -> None:
    listed = (CLIENT / "parts.txt").read_text().split()
    assert listed == sorted({*modules_of_the_client(), "balancer/py.typed"}), (
        "write this into packaging/client/parts.txt"
    )


@pytest.mark.quick
def test_both_have_one_version_and_the_daemon_wants_exactly_that_client() -> None:
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    assert f"tablet-balancer-client=={balancer.__version__}" in project["dependencies"]
    client = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
    assert {line.partition(">")[0] for line in client["dependencies"]} == {"kazoo", "psycopg", "psycopg-pool"}


def test_each_file_is_in_one_wheel_and_they_are_one_import_package(wheels: tuple[Path, Path]) -> None:
    client, daemon = map(contents, wheels)
    assert client & daemon == set(), "what one removes must not be missed by the other"
    assert client == set((CLIENT / "parts.txt").read_text().split())
    folders = {name.split("/")[0] for name in client | daemon}
    assert folders == {"balancer"}
    sources = {str(file.relative_to(TREE)) for file in (TREE / "balancer").rglob("*.py")}
    for linked in ("policies", "schedules"):
        sources |= {f"balancer/{file.relative_to(TREE)}" for file in (TREE / linked).rglob("*.py")}
    assert sources <= client | daemon
    assert "balancer/api/page/index.html" in daemon
    assert {str(file.relative_to(TREE)) for file in (TREE / "balancer").rglob("*.sql")} <= daemon


def test_an_application_with_packages_of_the_same_names_can_use_the_client_alone(
    wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    installed, application = tmp_path / "site", tmp_path / "application"
    pip("install", "--no-deps", "--target", installed, wheels[0])
    for name in ("policies", "schedules"):
        (application / name).mkdir(parents=True)
        (application / name / "__init__.py").write_text("MINE = True\n")
    here = next(Path(entry) for entry in sys.path if entry.endswith("site-packages"))
    lines = (
        "import sys, policies, schedules",
        f"sys.path.append({str(here)!r})",  # psycopg and the others; ours comes first
        "from balancer.client import Router",
        "early = {'kazoo', 'sqlite3', 'balancer.client.async_router', 'balancer.policies.options'} & set(sys.modules)",
        "assert not early, early",
        "from balancer.client import AsyncRouter",
        "import balancer, balancer.client.testing, balancer.directory.zookeeper.backend",
        "assert policies.MINE and schedules.MINE",
        f"assert balancer.__file__.startswith({str(installed)!r}), balancer.__file__",
        "heavy = {'numpy', 'fastapi', 'pydantic', 'structlog', 'sqlalchemy', 'django', 'typer', 'sqlparse'}",
        "heavy &= set(sys.modules)",
        "assert not heavy, heavy",
        "import importlib.util",
        "assert importlib.util.find_spec('balancer.daemon') is None",
        "try: balancer.client.testing.PracticeCluster",
        "except balancer.errors.UserError as error: assert 'tablet-balancer[embedded]' in str(error)",
        "else: raise SystemExit('the daemon is not here')",
    )
    said = run_in(application, application, installed, lines=lines)
    assert said.returncode == 0, said.stderr


def test_the_client_stays_whole_when_the_daemon_is_removed(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    """In an environment of its own; the packages that both need are looked up beside it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    python = tmp_path / "env" / "bin" / "python"
    pip("--python", python, "install", "--no-deps", *wheels)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    assert (site / "balancer" / "daemon" / "daemon.py").exists()
    pip("--python", python, "uninstall", "--yes", "tablet-balancer")
    left = {str(file.relative_to(site)) for file in (site / "balancer").rglob("*") if file.is_file()}
    assert {name for name in left if "__pycache__" not in name} == contents(wheels[0])


def test_a_source_distribution_of_the_client_has_its_files_and_not_links(tmp_path: Path) -> None:
    wanted = tomllib.loads((CLIENT / "pyproject.toml").read_text())["build-system"]["requires"]
    pip("install", "--target", tmp_path / "tools", *wanted)  # as pip does for a build of its own
    line = f"import setuptools.build_meta as b; b.build_sdist({str(tmp_path)!r})"
    done = run_in(CLIENT, tmp_path / "tools", lines=(line,))
    assert done.returncode == 0, done.stderr
    (made,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        names = {member.name.partition("/")[2]: member for member in archive.getmembers()}
        assert set((CLIENT / "parts.txt").read_text().split()) | {"setup.py", "parts.txt", "LICENSE"} <= set(names)
        assert not any(member.issym() or member.islnk() for member in names.values())


@pytest.mark.parametrize("name", ["policies", "schedules"])
@pytest.mark.quick
def test_no_module_can_be_loaded_under_two_names(name: str) -> None:
    said = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=TREE, capture_output=True, text=True, check=False
    )
    assert f"this folder is the package balancer.{name}" in said.stderr


@pytest.mark.quick
def test_a_plain_checkout_works(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", "import balancer.policies.plan.plan as plan; print(plan.__name__)"],
        cwd=TREE,
        env={"PYTHONPATH": str(TREE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "balancer.policies.plan.plan"
