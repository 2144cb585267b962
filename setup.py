"""The daemon's half of the package `balancer`: everything but the client, which is a distribution of its own.

Both install into one folder, so each file belongs to exactly one of them; `packaging/client/parts.txt` names the
client's. An editable installation of this one has both halves: it is the folder itself.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CLIENTS = frozenset((Path(__file__).parent / "packaging" / "client" / "parts.txt").read_text().split())


class DaemonParts(build_py):
    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found = super().find_package_modules(package, package_dir)
        return [one for one in found if f"{package}/{one[1]}".replace(".", "/") + ".py" not in CLIENTS]

    def find_data_files(self, package: str, src_dir: str) -> list[str]:
        return [file for file in super().find_data_files(package, src_dir) if Path(file).as_posix() not in CLIENTS]


setup(cmdclass={"build_py": DaemonParts})
