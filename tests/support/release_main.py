"""Builds both distributions of a copy of the tree, checks them, and tries them in fresh environments: `make dist`.

Wheels are made from the source archives, which proves that these are complete. Then it types what a user would type:
the version, the demonstration with the extra `embedded`, and an application that has only the client.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import balancer

TREE = Path(__file__).parents[2]
BUILT = ("balancer", "policies", "schedules", "packaging")
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "NOTICE")
CLIENT = (
    "import sys, balancer.client as c; c.Router; c.AsyncRouter; print('client alone:', 'fastapi' not in sys.modules)"
)


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Shows the command and its output; ends the program if it fails."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "BALANCER_"))}
    began = time.monotonic()
    done = subprocess.run([*map(str, command)], cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    print(f"$ {' '.join(Path(str(command[0])).name if n == 0 else str(one) for n, one in enumerate(command))}")
    print((done.stdout + done.stderr).strip()[-2000:], f"({time.monotonic() - began:.0f} s)", flush=True)
    if done.returncode:
        sys.exit(f"failed with exit code {done.returncode}")
    return done.stdout


def copied(place: Path) -> Path:
    """The tree without what an earlier build left there."""
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in BUILT:
        shutil.copytree(TREE / name, place / name, symlinks=True, ignore=ignored)
    for name in FILES:
        shutil.copy(TREE / name, place)
    return place


def built(results: Path, tools: Path, place: Path) -> list[Path]:
    tree = copied(place)
    shutil.rmtree(results, ignore_errors=True)
    for folder in (tree / "packaging" / "client", tree):
        run(tools, "-m", "build", "--no-isolation", "--outdir", results.resolve(), ".", cwd=folder)
    made = sorted(results.iterdir())
    stem = balancer.__version__
    wanted = {f"{name}-{stem}{end}" for name in ("tablet_balancer", "tablet_balancer_client") for end in ENDS}
    if {one.name for one in made} != wanted:
        sys.exit(f"made {sorted(one.name for one in made)} instead of {sorted(wanted)}")
    return made


ENDS = (".tar.gz", "-py3-none-any.whl")


def environment(place: Path) -> Path:
    venv.create(place, with_pip=True)
    return place / "bin"


def tried(results: Path, place: Path) -> None:
    """From the wheels, in environments that have nothing else."""
    here = ("--quiet", "--disable-pip-version-check", "--find-links", results.resolve())
    version = balancer.__version__
    alone = environment(place / "client")
    run(alone / "pip", "install", *here, f"tablet-balancer-client[binary]=={version}")
    if "True" not in run(alone / "python", "-I", "-c", CLIENT, cwd=place):
        sys.exit("the client brings the daemon along")
    whole = environment(place / "whole")
    run(whole / "pip", "install", *here, f"tablet-balancer[embedded]=={version}")
    if version not in run(whole / "balancer", "--version", cwd=place):
        sys.exit("another version is installed")
    run(whole / "balancer", "demo", "--once", cwd=place)


def main(results: Path, tools: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        Path(folder).chmod(0o755)  # the embedded servers have an account of their own
        (Path(folder) / "tree").mkdir()
        made = built(results, tools.absolute(), Path(folder) / "tree")
        run(tools.absolute(), "-m", "twine", "check", "--strict", *made)
        tried(results, Path(folder))
    print(f"{balancer.__version__} is in {results}: {', '.join(one.name for one in made)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
