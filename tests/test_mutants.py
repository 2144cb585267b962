"""`make mutants` takes a while; that what its mutants change is still there is seen in each run."""

import subprocess
import sys

import pytest

from tests.support.commands import environment

pytestmark = pytest.mark.quick

_PATCH_ALL = """
from tests.support.mutants import MUTANTS, MutantBroken

for mutant in MUTANTS:
    try:
        mutant.patch()
    except MutantBroken as error:
        print(f"{mutant.name}: {error}")
"""


def test_what_each_mutant_changes_is_there() -> None:
    """In a process of its own, which all of them may spoil."""
    command = [sys.executable, "-c", _PATCH_ALL]
    done = subprocess.run(command, check=False, env=environment(), capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
