"""The directory in a file: made for its owner alone, refused where everybody may write it, and what else is said."""

import os
import stat
from pathlib import Path

import pytest

from balancer.directory.open import open_directory
from balancer.errors import Refused
from tests.support.commands import balancer_here
from tests.support.directories import fill

pytestmark = pytest.mark.quick


def made(folder: Path) -> Path:
    with open_directory(f"sqlite://{folder}/directory.db") as directory:
        fill(directory)
    return folder / "directory.db"


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_it_is_made_for_its_owner_alone_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with open_directory(f"sqlite://{tmp_path}/directory.db") as directory:
            fill(directory)
            files = sorted(tmp_path.iterdir())
            assert [file.name for file in files] == ["directory.db", "directory.db-shm", "directory.db-wal"]
            assert [mode(file) for file in files] == [0o600] * 3
            assert list(directory.exposures()) == []
    finally:
        os.umask(before)


def test_one_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    file = made(tmp_path)
    file.chmod(0o666)
    with pytest.raises(Refused, match=f"every account of this machine may write the directory's file {file}: chmod"):
        open_directory(f"sqlite://{file}")
    assert balancer_here("status", "--directory", f"sqlite://{file}").code == 4
    file.chmod(0o660)
    with open_directory(f"sqlite://{file}") as directory:
        assert list(directory.exposures()) == [], "a group may be meant to share it"


def test_one_that_everybody_may_read_is_named_and_closed(tmp_path: Path) -> None:
    file = made(tmp_path)
    file.chmod(0o644)
    url = f"sqlite://{file}"
    assert f"WARNING: every account of this machine may read the directory's file {file}" in (
        balancer_here("status", "--directory", url).out
    )
    told = balancer_here("directory", "secure", "--dry-run", "--directory", url)
    assert told.code == 0
    assert "would be given other rights" in told.out
    assert mode(file) == 0o644
    done = balancer_here("directory", "secure", "--directory", url)
    assert (done.code, mode(file)) == (0, 0o640)
    assert "every account" not in balancer_here("status", "--directory", url).out


def test_a_folder_in_which_everybody_may_replace_it_is_named(tmp_path: Path) -> None:
    file = made(tmp_path)
    with open_directory(f"sqlite://{file}") as directory:
        tmp_path.chmod(0o777)
        (sentence,) = directory.exposures()
        assert "may replace the directory's file" in sentence
        tmp_path.chmod(0o1777)
        assert list(directory.exposures()) == []


def test_rights_that_are_opened_under_a_running_instance_are_named(tmp_path: Path) -> None:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as directory:
        fill(directory)
        (tmp_path / "directory.db-wal").chmod(0o602)
        (sentence,) = directory.exposures()
        assert sentence.endswith("may write the directory's file " + str(tmp_path / "directory.db-wal"))
        assert directory.secure(dry_run=False).changed == 1
        assert list(directory.exposures()) == []
