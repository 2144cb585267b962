"""The client's half of the package `balancer`: the files of parts.txt and no other.

Both distributions install into one folder, so each file belongs to exactly one of them: what one of them removes is
not missed by the other. The daemon's depends on this one and has the rest (setup.py beside its pyproject.toml).
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PARTS = frozenset((Path(__file__).parent / "parts.txt").read_text().split())


class ClientParts(build_py):
    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found = super().find_package_modules(package, package_dir)
        return [one for one in found if f"{package}/{one[1]}".replace(".", "/") + ".py" in PARTS]


setup(cmdclass={"build_py": ClientParts})
