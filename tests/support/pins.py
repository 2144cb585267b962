"""What an image contains: the pinned lists, what needs what, and the NOTICE made from both.

`python -m tests.support.pins runtime` prints requirements-runtime.txt as requirements.txt and pyproject.toml have it,
`python -m tests.support.pins notice` prints NOTICE. `make lock` calls both; tests compare them with what is committed.
"""

import re
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
IMAGE = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "python_version": "3.13"}
IMAGE["python_full_version"] = "3.13.0"
HEAD = """\
tablet-balancer

Licensed under the Apache License, Version 2.0: see LICENSE.

An image made by deploy/Containerfile contains, beside this software, the image python:3.13-slim (Debian and CPython,
with their own notices in /usr/share/doc and /usr/local/lib) and the packages below, each with its licence's text in its
.dist-info folder. The wheel psycopg-binary contains libpq, OpenSSL, Kerberos, OpenLDAP and Cyrus SASL libraries; the
wheel numpy contains OpenBLAS and libgfortran.
"""

VENDORED = """\
The page (balancer/api/page) has in it, each with its licence's text beside it:
"""


def blocks(name: str) -> dict[str, str]:
    """The lines of each pin of a list, hashes included; a package may have several, for several Pythons."""
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)", (ROOT / name).read_text().strip()):
        package = canonicalize_name(Requirement(_first(block)).name)
        found[package] = f"{found[package]}\n{block}" if package in found else block
    return found


def pins(name: str) -> list[Requirement]:
    """The requirements of a list, as written."""
    lines = (ROOT / name).read_text().splitlines()
    return [Requirement(_first(line)) for line in lines if line and not line.startswith((" ", "#"))]


def needed() -> set[str]:
    """Every package that the dependencies in pyproject.toml lead to, by what the installed packages say."""
    waiting = [*dependencies("."), *dependencies("packaging/client")]
    found: set[tuple[str, str]] = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        for extra in ("", *wanted.extras):
            if (name, extra) in found:
                continue
            found.add((name, extra))
            for text in distribution(name).requires or ():
                one = Requirement(text)
                if one.marker is None or _applies(one, extra):
                    waiting.append(one)
    return {name for name, _ in found}


def dependencies(folder: str) -> list[Requirement]:
    """What one of our two distributions says it needs; the other one is not a third-party package."""
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    found = [Requirement(text) for text in project["dependencies"]]
    return [one for one in found if one.name != "tablet-balancer-client"]


def runtime() -> str:
    """The pins of requirements.txt that an installation without extras needs, on any platform."""
    kept = needed() | {canonicalize_name(pin.name) for pin in pins("requirements.txt") if _elsewhere(pin)}
    return "\n".join(block for name, block in blocks("requirements.txt").items() if name in kept) + "\n"


def notice() -> str:
    """What an image contains, and under which licences."""
    rows = []
    for pin in pins("requirements-runtime.txt"):
        if pin.marker is None or pin.marker.evaluate({**_environment(), **IMAGE}):
            version = str(pin.specifier).removeprefix("==")
            rows.append(f"{pin.name} {version}: {licence(pin.name)}")
    return f"{HEAD}\n" + "\n".join(rows) + f"\n\n{VENDORED}\n" + "\n".join(vendored()) + "\n"


def vendored() -> list[str]:
    """Third-party code in the page."""
    listed = tomllib.loads((ROOT / "balancer" / "api" / "page" / "vendored.toml").read_text())
    return [f"{name} {about['version']}: {about['licence']}" for name, about in listed.items()]


def licence(package: str) -> str:
    """As the package says it: by expression, otherwise by classifier, otherwise in its own words."""
    metadata = distribution(package).metadata
    classifiers = [
        text.rpartition(" :: ")[2] for text in metadata.get_all("Classifier") or () if text.startswith("License ::")
    ]
    expression = metadata["License-Expression"]
    own = (metadata["License"] or "").strip().splitlines()
    return expression or " and ".join(classifiers) or (own[0] if own else "")


def _first(block: str) -> str:
    return block.splitlines()[0].split("#")[0].rstrip("\\ ")


def _applies(requirement: Requirement, extra: str) -> bool:
    assert requirement.marker is not None
    return requirement.marker.evaluate({**_environment(), "extra": extra})


def _environment() -> dict[str, str]:
    return {name: str(value) for name, value in default_environment().items()}


def _elsewhere(pin: Requirement) -> bool:
    """A pin for other platforms: it is not installed here."""
    return pin.marker is not None and "win32" in str(pin.marker)


if __name__ == "__main__":
    sys.stdout.write({"runtime": runtime, "notice": notice}[sys.argv[1]]())
