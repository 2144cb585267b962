"""A directory is made by those who fill it; whoever only reads is told that there is none, and makes nothing."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from balancer.directory.contract import Directory
from balancer.directory.open import open_directory
from balancer.errors import UserError
from tests.support.commands import balancer_here as balancer
from tests.support.directories import Opener, fill


def mistyped(address: str) -> str:
    return address + "s"


def test_a_reader_makes_no_directory(address: str) -> None:
    for _ in range(2):  # a first look that had made one would be found by the second
        with pytest.raises(UserError, match="there is no directory"):
            open_directory(address, create=False)
    if address.startswith("sqlite"):
        assert list(Path(urlsplit(address).path).parent.iterdir()) == []


def test_a_reader_opens_what_somebody_has_made(address: str, directory: Directory) -> None:
    with open_directory(address, create=False) as empty:
        assert empty.snapshot().version == 0
    fill(directory)
    with open_directory(address, create=False) as filled:
        assert filled.snapshot().tablet_count() == directory.snapshot().tablet_count() > 0


def test_a_mistyped_name_is_wrong_input_and_says_which_there_are(address: str, opener: Opener) -> None:
    fill(opener())
    for command in ("status", "tablets", "history", "moves"):
        assert balancer(command, "--directory", address).code == 0
        answer = balancer(command, "--directory", mistyped(address))
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.count("\n") == 1
        parts = urlsplit(address)
        if parts.scheme == "zk":
            name = parts.path[1:]
            assert f"there is no directory {name}s in ZooKeeper at {parts.netloc}; there are: " in answer.err
            assert name in answer.err.partition("there are: ")[2].strip().split(", ")
        else:
            assert f"there is no directory in the file {parts.path}s: it does not exist" in answer.err
