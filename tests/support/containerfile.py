"""Reads deploy/Containerfile, and runs its first stage below a folder: `python -m tests.support.containerfile DIR`."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PREFIX = "/opt/tablet-balancer"


def text() -> str:
    return (ROOT / "deploy" / "Containerfile").read_text()


def commands(word: str, source: str | None = None) -> list[str]:
    """What follows a word, line by line."""
    return re.findall(rf"^{word} (.*)$", text() if source is None else source, re.MULTILINE)


def copied() -> list[list[str]]:
    """COPY lines from the build context: sources and, last, the target."""
    return [shlex.split(line) for line in commands("COPY") if not line.startswith("--from")]


def build(folder: Path) -> None:
    """Every line of the first stage in order, with the paths moved below the folder."""
    source, prefix = folder / "src", folder / "opt"
    source.mkdir(parents=True)
    stage = text().split("\nFROM ")[1]  # before it comes the comment on top
    for word, rest in re.findall(r"^(RUN|COPY) (.*)$", stage, re.MULTILINE):
        print(word, rest, flush=True)
        if word == "RUN":
            line = rest.replace(PREFIX, str(prefix)).replace("python ", f"{sys.executable} ", 1)
            subprocess.run(line, shell=True, cwd=source, check=True)
        else:
            *names, target = shlex.split(rest)
            for name in names:
                put(ROOT / name, source / target, into=target.endswith("/"))
    subprocess.run([prefix / "bin" / "balancer", "--help"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    print("the program runs")


def put(what: Path, target: Path, *, into: bool) -> None:
    if what.is_dir():
        shutil.copytree(what, target, symlinks=what.name == "packaging", ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(what, target / what.name if into else target)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
