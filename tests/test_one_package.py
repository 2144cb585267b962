"""The distribution installs one import package; an application may have packages named policies and schedules."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TREE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(TREE)]
    subprocess.run(build, check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    return made


def test_a_wheel_has_one_import_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    folders = {name.split("/")[0] for name in names}
    assert {name for name in folders if not name.endswith(".dist-info")} == {"balancer"}
    assert {"balancer/policies/plan.py", "balancer/schedules/formula.py", "balancer/api/page/index.html"} <= set(names)


def test_an_application_with_packages_of_the_same_names_can_use_the_client(wheel: Path, tmp_path: Path) -> None:
    installed, application = tmp_path / "site", tmp_path / "application"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    for name in ("policies", "schedules"):
        (application / name).mkdir(parents=True)
        (application / name / "__init__.py").write_text("MINE = True\n")
    lines = (
        "import policies, schedules",
        "from balancer.client import Router",
        "import balancer, balancer.policies.plan, balancer.schedules.formula",
        "assert policies.MINE and schedules.MINE",
        f"assert balancer.__file__.startswith({str(installed)!r}), balancer.__file__",
    )
    said = subprocess.run(
        [sys.executable, "-c", "; ".join(lines)],
        cwd=application,
        env={"PYTHONPATH": f"{application}:{installed}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr


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
        [sys.executable, "-c", "import balancer.policies.plan as plan; print(plan.__name__)"],
        cwd=TREE,
        env={"PYTHONPATH": str(TREE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "balancer.policies.plan"
